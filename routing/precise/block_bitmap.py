"""Which engines hold a block, as one integer mask per block, and which of these are pending rather than observed.

A shelf is one medium of one cache group of one engine; it owns one bit of the masks. Emptying a shelf takes a new bit
at once and sweeps the old one out little by little: a cleared cache of a million blocks must not block the process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain


class BlockRefcounts:
    """Holds how often each block stands here: engines compute the same block twice and remove the copies one by one."""

    __slots__ = ("bit", "copies", "inferred", "overdue", "pending", "reported")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.copies: dict[int, int] = {}
        """Copies beyond the first, by link."""
        self.pending: dict[int, int] = {}
        """How many requests will leave this link here, by link."""
        self.reported: set[int] = set()
        """Pending links that an event has reported since: from then on events decide."""
        self.overdue: dict[int, str] = {}
        """Links that must have been computed here by now, though no event has reported them yet; by ticket."""
        self.inferred: set[int] = set()
        """Links that no event has reported, but that the engine was seen to reuse."""


class BlockBitmap:
    """Map each link to a mask of shelves, of held and of pending blocks."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        self.version = 0
        """Another whenever there is a new shelf, or one has become of another kind."""
        self._free: list[int] = []
        self._made = 0
        self._stale: list[tuple[int, Iterator[int]]] = []

    def __len__(self) -> int:
        return len(self.held)

    def new_refcounts(self) -> BlockRefcounts:
        self.version += 1
        if self._free:
            return BlockRefcounts(self._free.pop())
        self._made += 1
        return BlockRefcounts(1 << (self._made - 1))

    def put(self, refcounts: BlockRefcounts, link: int) -> None:
        """Add one copy. A pending block is now reported and counted once."""
        if link in refcounts.pending:
            refcounts.reported.add(link)
        if link in refcounts.overdue:
            del refcounts.overdue[link]
            self._unpend(refcounts, link)
        mask = self.held.get(link, 0)
        if link in refcounts.inferred:
            refcounts.inferred.discard(link)
        elif mask & refcounts.bit:
            refcounts.copies[link] = refcounts.copies.get(link, 0) + 1
        else:
            # A block only on this shelf shares the shelf's own integer: with many engines masks are large.
            self.held[link] = mask | refcounts.bit if mask else refcounts.bit

    def remove(self, refcounts: BlockRefcounts, link: int) -> None:
        """One copy less."""
        more = refcounts.copies.get(link, 0)
        if more > 1:
            refcounts.copies[link] = more - 1
        elif more:
            del refcounts.copies[link]
        else:
            self._unset(refcounts.bit, link)

    def infer(self, refcounts: BlockRefcounts, link: int) -> None:
        """It must be there, though no event has said so."""
        if not self.is_held(refcounts, link):
            refcounts.inferred.add(link)
            self.held[link] = self.held.get(link, 0) | refcounts.bit

    def erase(self, refcounts: BlockRefcounts, link: int) -> None:
        """It cannot be there, whatever events have said."""
        refcounts.copies.pop(link, None)
        refcounts.inferred.discard(link)
        self._unset(refcounts.bit, link)

    def is_held(self, refcounts: BlockRefcounts, link: int) -> bool:
        return bool(self.held.get(link, 0) & refcounts.bit)

    def add_pending(self, refcounts: BlockRefcounts, links: Iterable[int]) -> None:
        """One request more that will leave these blocks on the shelf."""
        counts, masks, bit = refcounts.pending, self.pending, refcounts.bit
        for link in links:
            counts[link] = counts.get(link, 0) + 1
            masks[link] = masks.get(link, 0) | bit

    def remove_pending(self, refcounts: BlockRefcounts, links: Iterable[int]) -> None:
        """Undo `add_pending`."""
        counts = refcounts.pending
        for link in links:
            if counts[link] > 1:
                counts[link] -= 1
                continue
            del counts[link]
            refcounts.reported.discard(link)
            self._unpend(refcounts, link)

    def mark_computed(self, refcounts: BlockRefcounts, links: Sequence[int], who: str) -> Sequence[int]:
        """Mark pending links as computed. Return those that no event has reported yet: they stay pending."""
        due = [link for link in links if link not in refcounts.reported and not self.is_held(refcounts, link)]
        refcounts.overdue.update(dict.fromkeys(due, who))
        self.remove_pending(refcounts, links)
        return due

    def expire(self, refcounts: BlockRefcounts, links: Iterable[int], who: str) -> None:
        """Give up what events have not reported by now."""
        for link in links:
            if refcounts.overdue.get(link) == who:
                del refcounts.overdue[link]
                self._unpend(refcounts, link)

    def transfer_pending(self, old: BlockRefcounts, new: BlockRefcounts) -> None:
        """Move the pending links of one shelf to another."""
        new.pending, new.reported, new.overdue = old.pending, old.reported, old.overdue
        old.pending, old.reported, old.overdue = {}, set(), {}
        for link in new.pending.keys() | new.overdue.keys():
            self.pending[link] = self.pending[link] & ~old.bit | new.bit

    def masks_of(self, links: Iterable[int]) -> Sequence[int]:
        """Return the mask of each link, held and pending together."""
        held, pending_links = self.held.get, self.pending.get
        if not self.pending:
            return [held(link, 0) for link in links]
        return [held(link, 0) | pending_links(link, 0) for link in links]

    def discard(self, bitmaps: Collection[BlockRefcounts], links: Iterable[int]) -> None:
        """Drop shelves with all their links. Their bits are reused once swept."""
        for refcounts in bitmaps:
            links_left, refcounts.pending, refcounts.overdue = (
                refcounts.pending.keys() | refcounts.overdue.keys(),
                {},
                {},
            )
            for link in links_left:
                self._unpend(refcounts, link)
        mask = sum(refcounts.bit for refcounts in bitmaps)
        if mask:
            supposed = [link for refcounts in bitmaps for link in refcounts.inferred]
            self._stale.append((mask, chain(supposed, links)))

    def sweep(self, max_links: int) -> None:
        """Clear dropped bits from at most `max_links` links."""
        while self._stale and max_links > 0:
            mask, links = self._stale[-1]
            for link in links:
                self._unset(mask, link)
                max_links -= 1
                if max_links <= 0:
                    return
            self._stale.pop()
            while mask:
                lowest = mask & -mask
                self._free.append(lowest)
                mask ^= lowest

    def _unpend(self, refcounts: BlockRefcounts, link: int) -> None:
        if link in refcounts.pending or link in refcounts.overdue:
            return
        left = self.pending[link] & ~refcounts.bit
        if left:
            self.pending[link] = left
        else:
            del self.pending[link]

    def _unset(self, bits: int, link: int) -> None:
        mask = self.held.get(link, 0)
        left = mask & ~bits
        if left:
            self.held[link] = left
        elif mask:
            del self.held[link]

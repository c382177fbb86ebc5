"""Which engines hold a block, as one integer mask per block, and what of it is promised or due rather than seen.

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
        """Promised links that an event has reported since: from then on events decide."""
        self.overdue: dict[int, str] = {}
        """Links that must have been computed here by now, though no event has reported them yet; by ticket."""
        self.inferred: set[int] = set()
        """Links that no event has reported, but that the engine was seen to reuse."""


class BlockBitmap:
    """Link to a mask of shelves, for what is held and for what is promised or due."""

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

    def put(self, shelf: BlockRefcounts, link: int) -> None:
        """One copy more. What was only supposed to be there is told now, and stands there once."""
        if link in shelf.pending:
            shelf.reported.add(link)
        if link in shelf.overdue:
            del shelf.overdue[link]
            self._unpromise(shelf, link)
        mask = self.held.get(link, 0)
        if link in shelf.inferred:
            shelf.inferred.discard(link)
        elif mask & shelf.bit:
            shelf.copies[link] = shelf.copies.get(link, 0) + 1
        else:
            # A block that stands on this shelf only shares the shelf's own integer: with many engines masks are large.
            self.held[link] = mask | shelf.bit if mask else shelf.bit

    def remove(self, shelf: BlockRefcounts, link: int) -> None:
        """One copy less."""
        more = shelf.copies.get(link, 0)
        if more > 1:
            shelf.copies[link] = more - 1
        elif more:
            del shelf.copies[link]
        else:
            self._unset(shelf.bit, link)

    def infer(self, shelf: BlockRefcounts, link: int) -> None:
        """It must be there, though no event has said so."""
        if not self.is_held(shelf, link):
            shelf.inferred.add(link)
            self.held[link] = self.held.get(link, 0) | shelf.bit

    def erase(self, shelf: BlockRefcounts, link: int) -> None:
        """It cannot be there, whatever events have said."""
        shelf.copies.pop(link, None)
        shelf.inferred.discard(link)
        self._unset(shelf.bit, link)

    def is_held(self, shelf: BlockRefcounts, link: int) -> bool:
        return bool(self.held.get(link, 0) & shelf.bit)

    def add_pending(self, shelf: BlockRefcounts, links: Iterable[int]) -> None:
        """One request more that will leave these blocks on the shelf."""
        counts, masks, bit = shelf.pending, self.pending, shelf.bit
        for link in links:
            counts[link] = counts.get(link, 0) + 1
            masks[link] = masks.get(link, 0) | bit

    def remove_pending(self, shelf: BlockRefcounts, links: Iterable[int]) -> None:
        """The opposite of `promise`."""
        counts = shelf.pending
        for link in links:
            if counts[link] > 1:
                counts[link] -= 1
                continue
            del counts[link]
            shelf.reported.discard(link)
            self._unpromise(shelf, link)

    def mark_computed(self, shelf: BlockRefcounts, links: Sequence[int], who: str) -> Sequence[int]:
        """What was promised has been computed. Returns the links that no event has reported: those are due."""
        due = [link for link in links if link not in shelf.reported and not self.is_held(shelf, link)]
        shelf.overdue.update(dict.fromkeys(due, who))
        self.remove_pending(shelf, links)
        return due

    def expire(self, shelf: BlockRefcounts, links: Iterable[int], who: str) -> None:
        """Give up what events have not reported by now."""
        for link in links:
            if shelf.overdue.get(link) == who:
                del shelf.overdue[link]
                self._unpromise(shelf, link)

    def transfer_pending(self, old: BlockRefcounts, new: BlockRefcounts) -> None:
        """What is promised or due on one shelf is so on another instead."""
        new.pending, new.reported, new.overdue = old.pending, old.reported, old.overdue
        old.pending, old.reported, old.overdue = {}, set(), {}
        for link in new.pending.keys() | new.overdue.keys():
            self.pending[link] = self.pending[link] & ~old.bit | new.bit

    def masks_of(self, links: Iterable[int]) -> Sequence[int]:
        """What is held, promised or due of each link."""
        held, promised = self.held.get, self.pending.get
        if not self.pending:
            return [held(link, 0) for link in links]
        return [held(link, 0) | promised(link, 0) for link in links]

    def discard(self, shelves: Collection[BlockRefcounts], links: Iterable[int]) -> None:
        """Shelves are thrown away, with all the links that may stand on them. Their bits come back once swept."""
        for shelf in shelves:
            links_left, shelf.pending, shelf.overdue = shelf.pending.keys() | shelf.overdue.keys(), {}, {}
            for link in links_left:
                self._unpromise(shelf, link)
        mask = sum(shelf.bit for shelf in shelves)
        if mask:
            supposed = [link for shelf in shelves for link in shelf.inferred]
            self._stale.append((mask, chain(supposed, links)))

    def sweep(self, most: int) -> None:
        """Take thrown-away bits out of at most so many links."""
        while self._stale and most > 0:
            mask, links = self._stale[-1]
            for link in links:
                self._unset(mask, link)
                most -= 1
                if most <= 0:
                    return
            self._stale.pop()
            while mask:
                lowest = mask & -mask
                self._free.append(lowest)
                mask ^= lowest

    def _unpromise(self, shelf: BlockRefcounts, link: int) -> None:
        if link in shelf.pending or link in shelf.overdue:
            return
        left = self.pending[link] & ~shelf.bit
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

"""One engine's KV blocks: holders, cached content, and the order of eviction.

A block is blank (free), anonymous (held by one sequence, no content another could use), held (cached content with a
count of its holders) or idle (cached content without holders; least recently used goes first). Independent of
sequences, tokens or time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class PagedCache:
    """`total` blocks under caller's ids; blank ones are used before an idle one is evicted."""

    __slots__ = ("_anonymous", "_blank", "_holders", "_idle", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._blank = total
        self._anonymous = 0
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __repr__(self) -> str:
        return (
            f"<PagedCache {len(self._holders)} held, {self._anonymous} anonymous, {len(self._idle)} idle, "
            f"{self._blank} blank of {self.total}>"
        )

    def __contains__(self, block: int) -> bool:
        return block in self._holders or block in self._idle

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return self._blank + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that some sequence holds."""
        return self.total - self.available

    def match(self, chain: Iterable[int]) -> tuple[int, int]:
        """How many leading blocks of `chain` are cached, and how many of those are idle (acquiring them costs room)."""
        holders, idle = self._holders, self._idle
        hits = idle_hits = 0
        for block in chain:
            if block in holders:
                hits += 1
            elif block in idle:
                hits += 1
                idle_hits += 1
            else:
                break
        return hits, idle_hits

    def acquire(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these cached blocks."""
        holders, idle = self._holders, self._idle
        for block in blocks:
            count = holders.get(block)
            if count is None:
                del idle[block]
                holders[block] = 1
            else:
                holders[block] = count + 1

    def take(self, count: int) -> None:
        """Turn `count` available blocks anonymous, evicting idle ones when no blank ones are left."""
        if count > self.available:
            raise ValueError(f"{count} blocks wanted, {self.available} available")
        blank = min(count, self._blank)
        self._blank -= blank
        for _ in range(count - blank):
            self._idle.popitem(last=False)
        self._anonymous += count

    def name(self, block: int) -> bool:
        """Give one anonymous block its content. No when that content is cached already: the block stays a duplicate."""
        if block in self._holders or block in self._idle:
            return False
        self._holders[block] = 1
        self._anonymous -= 1
        return True

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each block of a chain; blocks without holders turn idle, the tail to go first."""
        holders, idle = self._holders, self._idle
        for block in reversed(blocks):
            count = holders[block] - 1
            if count:
                holders[block] = count
            else:
                del holders[block]
                idle[block] = None

    def retire(self, blocks: Sequence[int], blank: int) -> None:
        """Give back anonymous blocks: these turn idle under their content's ids, the tail to go first; `blank` more,
        and those whose content is cached already, turn blank.
        """
        holders, idle = self._holders, self._idle
        for block in reversed(blocks):
            if block in holders or block in idle:
                blank += 1
                if block in idle:
                    idle.move_to_end(block)
            else:
                idle[block] = None
                self._anonymous -= 1
        self._blank += blank
        self._anonymous -= blank

    def forget_idle(self) -> None:
        """Drop all cached content without holders."""
        self._blank += len(self._idle)
        self._idle.clear()

    def audit(self) -> None:
        """Raise unless every block is in exactly one place."""
        counted = self._blank + self._anonymous + len(self._holders) + len(self._idle)
        sound = counted == self.total and self._blank >= 0 and self._anonymous >= 0
        if not sound or self._holders.keys() & self._idle.keys() or any(count < 1 for count in self._holders.values()):
            raise AssertionError(repr(self))

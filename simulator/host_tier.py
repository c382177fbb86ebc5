"""KV blocks in the memory of an engine's host, as vLLM's native offloading keeps them. Independent of time.

Each full block is copied here when it is computed, so one that the engine's cache has evicted can be loaded again. The
copy costs the engine nothing; the load has a rate, which the engine counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class HostTier:
    """At most `total` blocks, least recently used evicted first; 0 keeps nothing."""

    __slots__ = ("_blocks", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def put(self, block: int) -> None:
        """Keep a block, or its place in the order of eviction anew."""
        if self.total:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
            if len(self._blocks) > self.total:
                self._blocks.popitem(last=False)

    def match(self, chain: Iterable[int]) -> int:
        """Return how many leading blocks of `chain` are here."""
        hits = 0
        for block in chain:
            if block not in self._blocks:
                break
            hits += 1
        return hits

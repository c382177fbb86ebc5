"""Which prompt prefixes are used again and again: learned from the prompts of one gateway, as hashes, without text.

A radix tree of recent prompts finds where prompts part; the end of each shared run counts its uses, which fade. A
prefix that only one conversation continues gets a new end with each turn and therefore never counts as hot. Sizes are
in the unit of `Prompt.size`; time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import exp

from routing.blocks import Prompt
from routing.prefix_index import EngineRadixCache

MEMORY_S = 300.0
"""Decay constant of uses."""

MIN_USES = 1.5
"""Decayed uses, beside the one that was first, from which a prefix counts as hot: two more have shared it recently."""

MAX_PREFIXES = 4_096

MAX_BLOCKS = 1 << 16
"""Of the tree; what was used longest ago is forgotten first."""

UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """One prefix that prompts share."""

    key: int
    """Its last block."""
    blocks: int
    uses: float
    """Decayed."""


class HotPrefixes:
    """The prefixes that prompts of one gateway share."""

    def __init__(self, *, max_prefixes: int = MAX_PREFIXES, max_blocks: int = MAX_BLOCKS) -> None:
        self._tree = EngineRadixCache(UNBOUNDED, max_blocks)
        self._uses: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """Decayed uses and their time, by last block."""
        self._max_prefixes = max_prefixes
        self._turn = 0

    def __len__(self) -> int:
        return len(self._uses)

    def observe(self, prompt: Prompt, now_s: float) -> HotPrefix | None:
        """Count a prompt. Returns the longest of its prefixes that is hot now; None where none is."""
        self._turn += 1
        found, blocks, hot = self._tree.insert(prompt, self._turn), prompt.blocks, None
        self._tree.evict()
        for end, _ in found.earlier:
            key = blocks[end - 1]
            uses = self.uses_of(key, now_s) + 1.0
            self._uses[key] = uses, now_s
            self._uses.move_to_end(key)
            if uses >= MIN_USES:
                hot = HotPrefix(key, end, uses)
        while len(self._uses) > self._max_prefixes:
            self._uses.popitem(last=False)
        return hot

    def uses_of(self, key: int, now_s: float) -> float:
        """Return the decayed uses of the prefix that ends with this block; 0 where there are none."""
        uses, at_s = self._uses.get(key, (0.0, now_s))
        return uses * exp((at_s - now_s) / MEMORY_S)

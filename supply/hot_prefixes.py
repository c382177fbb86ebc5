"""Which prompt prefixes are used again and again: learned from the prompts of one gateway, as hashes, without text.

A radix tree of recent prompts finds where prompts part; the end of each shared run counts its uses, which fade. A
prefix that only one conversation continues gets a new end with each turn and therefore never counts as hot. Sizes are
in the unit of `Prompt.size`; time is an argument. What does not fit any more is taken from the tenant that holds most:
the many prompts of one tenant displace only its own.
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
"""Of the tree; what its tenant used longest ago is forgotten first."""

MAX_SPARED = 8
"""Prompts looked at in vain for room for one."""

UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """One prefix that prompts share."""

    key: int
    """Its last block."""
    blocks: int
    uses: float
    """Decayed."""


class TenantParts:
    """What each tenant has in a bounded table, in the order in which it was put: keys with their weights."""

    def __init__(self) -> None:
        self._parts: dict[str | None, OrderedDict[int, int]] = {}
        self._weights: dict[str | None, int] = {}
        self._tenants: dict[int, str | None] = {}
        """Whose each key is."""

    def put(self, key: int, tenant: str | None, weight: int = 1) -> None:
        """Put a key as the newest of a tenant, whosever it was."""
        self.remove(key)
        self._tenants[key] = tenant
        self._parts.setdefault(tenant, OrderedDict())[key] = weight
        self._weights[tenant] = self._weights.get(tenant, 0) + weight

    def put_back(self, key: int) -> None:
        """Have a key be the newest of its tenant."""
        self._parts[self._tenants[key]].move_to_end(key)

    def remove(self, key: int) -> None:
        """Remove a key, if it is there."""
        if key not in self._tenants:
            return
        tenant = self._tenants.pop(key)
        part = self._parts[tenant]
        self._weights[tenant] -= part.pop(key)
        if not part:
            del self._parts[tenant], self._weights[tenant]

    def next_out(self, last: str | None) -> int | None:
        """Return the oldest key of the tenant that has most; None where there is none. `last`: the tenant that has put
        something last, which is taken without looking at all others if it has more than the mean.
        """
        weights = self._weights
        if not weights:
            return None
        held = weights.get(last, 0)
        if held * len(weights) <= sum(weights.values()) and len(weights) > 1:
            last = max(weights, key=lambda tenant: (weights[tenant], str(tenant)))
        return next(iter(self._parts[last]))


class HotPrefixes:
    """The prefixes that prompts of one gateway share."""

    def __init__(self, *, max_prefixes: int = MAX_PREFIXES, max_blocks: int = MAX_BLOCKS) -> None:
        self._tree = EngineRadixCache(UNBOUNDED, UNBOUNDED)
        self._prompts: dict[int, tuple[tuple[int, ...], int]] = {}
        """Blocks and turn of the prompts that brought new ones, by last block."""
        self._brought = TenantParts()
        """The same prompts, with how many new blocks each has brought."""
        self._uses: dict[int, tuple[float, float]] = {}
        """Decayed uses and their time, by last block."""
        self._used = TenantParts()
        """The keys of these, of the tenant that has used each last."""
        self._max_blocks = max_blocks
        self._max_prefixes = max_prefixes
        self._turn = 0

    def __len__(self) -> int:
        return len(self._uses)

    def observe(self, prompt: Prompt, now_s: float, tenant: str | None = None) -> HotPrefix | None:
        """Count a prompt of a tenant. Returns the longest of its prefixes that is hot now; None where none is."""
        self._turn += 1
        found, blocks, hot = self._tree.insert(prompt, self._turn), prompt.blocks, None
        if found.cached_blocks < len(blocks):
            key = blocks[-1]
            self._prompts[key] = blocks, self._turn
            self._brought.put(key, tenant, len(blocks) - found.cached_blocks)
            self._make_room(tenant)
        for end, _ in found.earlier:
            key = blocks[end - 1]
            uses = self.uses_of(key, now_s) + 1.0
            self._uses[key] = uses, now_s
            self._used.put(key, tenant)
            if uses >= MIN_USES:
                hot = HotPrefix(key, end, uses)
        while len(self._uses) > self._max_prefixes and (coldest := self._used.next_out(tenant)) is not None:
            self._used.remove(coldest)
            del self._uses[coldest]
        return hot

    def _make_room(self, tenant: str | None) -> None:
        """Forget prompts until the rest fits; some that were used since they were put come behind the others once."""
        spared = 0
        while len(self._tree) > self._max_blocks and (key := self._brought.next_out(tenant)) is not None:
            blocks, turn = self._prompts[key]
            used_turn = self._tree.used_turn(blocks)
            if used_turn > turn and spared < MAX_SPARED:
                spared += 1
                self._prompts[key] = blocks, used_turn
                self._brought.put_back(key)
                continue
            self._brought.remove(key)
            del self._prompts[key]
            self._tree.forget_end(blocks, self._prompts)

    def uses_of(self, key: int, now_s: float) -> float:
        """Return the decayed uses of the prefix that ends with this block; 0 where there are none."""
        uses, at_s = self._uses.get(key, (0.0, now_s))
        return uses * exp((at_s - now_s) / MEMORY_S)

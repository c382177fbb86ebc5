"""How many leading tokens of a prompt an engine can reuse, from which blocks its cache groups hold.

Models that mix kinds of layers keep a cache group per kind, each with blocks and rules of its own, and only what every
group can continue from is reusable. Restated from vLLM's `kv_cache_coordinator.py`; independent of events and engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, lcm
from typing import Protocol

RECURRENT_KINDS = frozenset({"mamba"})
"""Recurrent states: the last state covers all before it."""

SLIDING_WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla"})
"""Only the blocks of the last window are needed."""

UNCACHED_KINDS = frozenset({"cross_attention", "encoder_only_attention"})
"""Never reused across prompts by their prefix."""


class GroupShape(Protocol):
    """One cache group of an engine."""

    @property
    def kind(self) -> str: ...
    @property
    def window_tokens(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...


class GroupBlocks(GroupShape, Protocol):
    """And for a given prompt which of its full blocks the group holds."""

    @property
    def held(self) -> Sequence[object]: ...


def leading_hit_tokens(groups: Sequence[GroupBlocks], max_tokens: int) -> int:
    """Tokens of the longest prefix, of at most `max_tokens`, that all groups can go on from."""
    needed = [group for group in groups if group.kind not in UNCACHED_KINDS]
    if not needed:
        return 0
    grain = lcm(*(group.block_tokens for group in needed))
    length = max_tokens // grain * grain
    while length:
        before = length
        for group in needed:
            length = _group_hit(group, length, grain)
        if length == before:
            break
    return length


def _group_hit(group: GroupBlocks, max_tokens: int, grain: int) -> int:
    if group.kind in RECURRENT_KINDS:
        return _last_state(group, max_tokens, grain)
    if group.kind in SLIDING_WINDOW_KINDS and group.window_tokens:
        return _last_window(group, max_tokens, grain)
    return count_leading_held(group.held, max_tokens // group.block_tokens) * group.block_tokens // grain * grain


def count_leading_held(held: Sequence[object], max_count: int) -> int:
    """How many of the first `max_count` are held without a gap."""
    for position, one in enumerate(held[:max_count]):
        if not one:
            return position
    return min(max_count, len(held))


def _last_state(group: GroupBlocks, max_tokens: int, grain: int) -> int:
    for end in range(max_tokens, 0, -grain):
        if group.held[end // group.block_tokens - 1]:
            return end
    return 0


def window_blocks(group: GroupShape) -> int:
    """How many blocks before a place are needed to go on from there. The next token itself belongs to the window."""
    return ceil((group.window_tokens - 1) / group.block_tokens)


def _last_window(group: GroupBlocks, max_tokens: int, grain: int) -> int:
    """The longest prefix whose last window is held, or whose whole is where it is shorter than a window."""
    window = window_blocks(group)
    for end in range(max_tokens, 0, -grain):
        last = end // group.block_tokens
        if all(group.held[max(0, last - window) : last]):
            return end
    return 0

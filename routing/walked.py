"""What a walk down a prompt says of every engine: how much it holds, and how much work is left."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from routing.blocks import Prompt
from routing.cost import prefill_work
from routing.roster import Roster
from routing.tokens import Ruler


def prefix_of(prompt: Prompt, size: int) -> int:
    """The last block of a prompt's beginning that is so long."""
    return prompt.blocks[bisect_left(prompt.ends, size, 0, len(prompt.blocks))]


def warmth_of(
    walked: Sequence[tuple[int, int]], roster: Roster, ruler: Ruler, prompt_tokens: float, growth: float
) -> tuple[list[float], list[float]]:
    """Warm tokens and prefill work of every engine, from (mask of engines, size held). Alike are reckoned together."""
    cold = roster.mask
    for mask, _ in walked:
        cold ^= mask
    # What most of them hold (nothing, or a common system prompt) is filled in for all, the rest one by one.
    groups = sorted([*walked, (cold, 0)] if cold else walked, key=_engines_in, reverse=True)
    warm_tokens: list[float] = []
    work: list[float] = []
    for mask, size in groups:
        # The last token is always computed, and only whole KV blocks are reused.
        warm = max(0.0, min(ruler.tokens(size), prompt_tokens - 1)) // roster.block_tokens * roster.block_tokens
        cold_work = prefill_work(prompt_tokens - warm, prompt_tokens, growth)
        if not work:
            warm_tokens = [warm] * len(roster.engines)
            work = [cold_work] * len(roster.engines)
            continue
        for place in roster.places(mask):
            warm_tokens[place] = warm
            work[place] = cold_work
    return warm_tokens, work


def _engines_in(group: tuple[int, int]) -> int:
    return group[0].bit_count()

"""Candidates by hand: a few engines of which a policy sees what is warm and what is queued."""

from __future__ import annotations

from collections.abc import Sequence

from routing.blocks import Prompt
from routing.candidates import Candidates
from routing.pods import Engine
from routing.request import Api, Request

BLOCK = 100
"""Tokens."""


def requested(blocks: Sequence[int], *, name: str = "r", session: str | None = None) -> Request:
    """A prompt of full blocks."""
    size = BLOCK * len(blocks)
    prompt = Prompt(tuple(blocks), range(BLOCK, size + 1, BLOCK), size)
    return Request(name, Api.CHAT, "m", prompt, stream=True, session=session)


def seen(
    request: Request, *, warm: Sequence[float], ahead: Sequence[float] = (), running: Sequence[float] = ()
) -> Candidates:
    """As many engines as `warm` has entries, at 1,000 tokens/s and steps of 10 ms."""
    count, size = len(warm), request.prompt.size
    nothing = [0.0] * count
    return Candidates(
        engines=[Engine(slot, f"pod-{slot}") for slot in range(count)],
        now_s=0.0,
        prompt_tokens=size,
        output_tokens=request.expected_output_tokens,
        warm_tokens=warm,
        prefill_work=[size - held for held in warm],
        own_s=[(size - held) * 0.001 for held in warm],
        ahead_s=[tokens * 0.001 for tokens in ahead] or nothing,
        running=running or nothing,
        kv_tokens=nothing,
        kv_capacity=[1e6] * count,
        min_kv_capacity=1e6,
        prefill_overhead_s=nothing,
        seconds_per_token=[0.001] * count,
        step_base_s=[0.01] * count,
        step_per_sequence_s=[0.001] * count,
        residence_s=nothing,
        last_turn=[0] * count,
        ready_since_s=nothing,
        newest_since_s=0.0,
    )


def winner(costs: Sequence[float]) -> int:
    """The position with the least; it must be the only one."""
    least = min(costs)
    assert list(costs).count(least) == 1, costs
    return list(costs).index(least)

"""Rung and pod chosen together: what a rung would cost and how soon it would begin, where it would be placed now.

Pure. A warm prefix on the larger model may beat a cold start on the smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WARM_ENOUGH = 0.5
"""Of a conversation's prompt: while so much of it is held where it was, it stays there."""


@dataclass(frozen=True, slots=True)
class View:
    """One rung, on the engine that would be chosen for it now."""

    at: int
    price: float | None
    """Of the whole answer, with what is warm priced as such; None where no engine can be had."""
    ttft_s: float | None
    warm_share: float
    """Of the prompt."""


def cheaper_above(first: View, above: Sequence[View], climbs: float) -> int:
    """The rung to begin at: one above `first` where that costs no more, all in all, and begins no later.

    `climbs` is the share of answers that are thrown away: the price of a low rung has as
    much of the next one's in it.
    """
    if first.price is None or first.ttft_s is None:
        return first.at
    for view in reversed(above):
        if view.price is None or view.ttft_s is None or view.ttft_s > first.ttft_s:
            continue
        if view.price <= first.price + climbs * view.price:
            return view.at
    return first.at


def stays(before: View, first: View, climbs: float) -> bool:
    """Whether a conversation stays on the higher rung that answered it before.

    Leaving loses the prefix that is warm there; the loss is in the price of the rung it would begin at.
    """
    if before.price is None:
        return False
    if before.warm_share >= WARM_ENOUGH or first.price is None:
        return True
    return before.price <= first.price + climbs * before.price

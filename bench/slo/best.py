"""Finds the best load of a scenario: where first come, first served on the least loaded engine does best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

NEAR = 1.03
"""The load is found to 3 %: around its peak goodput is flat."""


@dataclass(frozen=True, slots=True)
class Best:
    """A load in requests a second, and what it brings."""

    load: float
    met_per_s: float
    met_tokens_per_s: float


def find_best(play: Callable[[float], Best], first_per_s: float) -> Best:
    """The peak of goodput over load; `play` measures it at one. Goodput rises with load, and then falls."""
    low = middle = play(first_per_s)
    while (high := play(2 * middle.load)).met_per_s > middle.met_per_s:
        low, middle = middle, high
    if low is middle:
        while (low := play(0.5 * middle.load)).met_per_s > middle.met_per_s:
            middle, high = low, middle
    while high.load > low.load * NEAR**2:
        # The wider side of the best that was seen is narrowed.
        if high.load / middle.load > middle.load / low.load:
            tried = play((middle.load * high.load) ** 0.5)
            low, middle, high = (middle, tried, high) if tried.met_per_s > middle.met_per_s else (low, middle, tried)
        else:
            tried = play((low.load * middle.load) ** 0.5)
            low, middle, high = (low, tried, middle) if tried.met_per_s > middle.met_per_s else (tried, middle, high)
    return middle

"""A straight line through measurements: how fast something grows. Knows nothing of what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SETTLING = 1 / 3
"""Of a run: caches fill and allocators warm up; what comes after it is judged."""

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Trend:
    """By least squares."""

    level: float
    """The mean of what is judged."""
    an_hour: float
    growth: float
    """Over all that is judged."""
    fill_up: float
    """Growth before that, from the first measurement on: caches that fill, code that runs for the first time."""


def trend_of(at_s: Sequence[float], values: Sequence[float]) -> Trend:
    """Of measurements at rising times in seconds, three at least. Raises ValueError where there are fewer."""
    begins = at_s[0] + SETTLING * (at_s[-1] - at_s[0]) if at_s else 0.0
    judged = [(time_s, value) for time_s, value in zip(at_s, values, strict=True) if time_s >= begins]
    if len(judged) < 3:
        raise ValueError(f"{len(judged)} measurements show no trend")
    times, levels = [time_s for time_s, _ in judged], [value for _, value in judged]
    middle_s, level = sum(times) / len(times), sum(levels) / len(levels)
    spread = sum((time_s - middle_s) ** 2 for time_s in times)
    slope = sum((time_s - middle_s) * (value - level) for time_s, value in judged) / spread if spread else 0.0
    begin = level + slope * (times[0] - middle_s)
    return Trend(level, slope * HOUR_S, slope * (times[-1] - times[0]), begin - values[0])

"""Counts of values by bucket, as Prometheus has them. Independent of what is counted."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(slots=True)
class Histogram:
    """Counts per bucket; the last one is beyond every limit."""

    limits: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.limits) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times."""
        self.counts[bisect_left(self.limits, value)] += times
        self.total += value * times

"""Where a list of numbers lies: its mean and the points of its distribution that people ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """All in the unit of the numbers; zeros where there were none."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def spread_of(numbers: Iterable[float]) -> Spread:
    """Measure any list of numbers."""
    ordered = sorted(numbers)
    mean = sum(ordered) / len(ordered) if ordered else 0.0
    return Spread(mean, *(at_share(ordered, share) for share in (0.5, 0.9, 0.95, 0.99)))


def at_share(ordered: Sequence[float], share: float) -> float:
    """The member of an ordered list below which `share` of it lies: one that was seen, not a blend of two."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def middle_spread(spreads: Sequence[Spread]) -> Spread:
    """The median of each point by itself, over several measurements of the same thing."""
    return Spread(*(median(points) for points in zip(*map(astuple, spreads), strict=True)))

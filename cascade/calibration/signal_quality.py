"""How well a signal tells which answers gain from escalating, and how sure the figures of a calibration are.

Intervals are of 95 %. An area under the ROC curve (AUROC) whose interval reaches 0.5 may be chance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import NormalDist

from cascade.calibration.examples import Example

CONFIDENCE = 0.95
DISTANCE = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SignalQuality:
    """How one model's signal tells its answers that the next model betters."""

    auroc: Interval
    gaining: int
    """Answers that the next model betters."""
    others: int

    @property
    def is_chance(self) -> bool:
        """Whether nothing shows that the signal is better than chance."""
        return self.auroc.low <= 0.5


def signal_quality(examples: Sequence[Example], index: int) -> SignalQuality:
    """Return the AUROC of a model's signal for the benefit of the next model; 0.5, 0 to 1 where there is none."""
    known = [each for each in examples if isfinite(each.signals[index])]
    gaining = [each.signals[index] for each in known if each.scores[index + 1] > each.scores[index]]
    others = sorted(each.signals[index] for each in known if each.scores[index + 1] <= each.scores[index])
    if not gaining or not others:
        return SignalQuality(Interval(0.5, 0.0, 1.0), len(gaining), len(others))
    above = sum(len(others) - (bisect_left(others, one) + bisect_right(others, one)) / 2 for one in gaining)
    auroc = above / (len(gaining) * len(others))
    return SignalQuality(_auroc_interval(auroc, len(gaining), len(others)), len(gaining), len(others))


def _auroc_interval(auroc: float, gaining: int, others: int) -> Interval:
    """Hanley and McNeil (Radiology, 1982)."""
    both_gaining, both_others = auroc / (2.0 - auroc), 2.0 * auroc * auroc / (1.0 + auroc)
    squared = auroc * auroc
    variance = (
        auroc * (1.0 - auroc)
        + (gaining - 1) * max(0.0, both_gaining - squared)
        + (others - 1) * max(0.0, both_others - squared)
    ) / (gaining * others)
    # Of very few examples the formula is too sure: the variance of a single pair is at most a quarter.
    error = DISTANCE * sqrt(max(variance, 0.25 / (gaining * others)))
    return Interval(auroc, max(0.0, auroc - error), min(1.0, auroc + error))


def share_interval(share: float, count: int) -> Interval:
    """Return the interval of a share of so many examples (Wilson, 1927)."""
    if not count:
        return Interval(share, 0.0, 1.0)
    squared = DISTANCE * DISTANCE / count
    middle = (share + squared / 2) / (1.0 + squared)
    error = DISTANCE * sqrt(share * (1.0 - share) / count + squared / (4 * count)) / (1.0 + squared)
    return Interval(share, max(0.0, middle - error), min(1.0, middle + error))


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the interval of a mean, by normal approximation; the mean of nothing is 0."""
    count = len(values)
    if not count:
        return Interval(0.0, 0.0, 0.0)
    mean = sum(values) / count
    variance = sum((value - mean) ** 2 for value in values) / max(1, count - 1)
    error = DISTANCE * sqrt(variance / count)
    return Interval(mean, mean - error, mean + error)


@dataclass(frozen=True, slots=True)
class DependentExamples:
    """Examples that are not independent draws."""

    examples: int
    """Examples that share their group with another one."""
    groups: int
    max_group: int


def dependent_examples(examples: Sequence[Example]) -> DependentExamples:
    """Return how many examples share their prompt, or their value of the column `group`, with others."""
    counts = Counter(each.group for each in examples if each.group)
    shared = [count for count in counts.values() if count > 1]
    return DependentExamples(sum(shared), len(shared), max(shared, default=0))

"""Counts of values by bucket, as Prometheus histograms have them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

TIME_LIMITS_S = tuple(0.001 * 2**power for power in range(18))
"""Upper bounds of our own buckets of seconds: 1 ms to 131 s."""

TOKEN_LIMITS = tuple(float(16 * 2**power) for power in range(15))
"""Upper bounds of our own buckets of tokens: 16 to 262,144."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values by bucket: `limits` ascend, `counts` has one entry more for values above them; `total` is their sum."""

    limits: tuple[float, ...] = ()
    counts: tuple[float, ...] = (0.0,)
    total: float = 0.0

    @property
    def count(self) -> float:
        """Return the number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Return the mean; None without values."""
        count = self.count
        return self.total / count if count > 0 else None

    def quantile(self, share: float) -> float | None:
        """Return the value below which `share` (0 to 1) lie, linear within its bucket; None without values or buckets.

        A value above all limits is given as the last limit.
        """
        count = self.count
        if count <= 0 or not self.limits:
            return None
        wanted, seen = share * count, 0.0
        for index, (limit, held) in enumerate(zip(self.limits, self.counts, strict=False)):
            if held > 0 and seen + held >= wanted:
                low = self.limits[index - 1] if index else 0.0
                return low + (limit - low) * max(wanted - seen, 0.0) / held
            seen += held
        return self.limits[-1]

    def share_above(self, limit: float) -> float | None:
        """Return the share (0 to 1) of values in buckets that begin at `limit` or above it; None without values."""
        count = self.count
        if count <= 0 or not self.limits:
            return None
        first = bisect_left(self.limits, limit) + 1
        return sum(self.counts[first:]) / count

    def plus(self, other: Distribution | None) -> Distribution:
        """Add the values of another one; one with other limits adds its count and sum to the bucket of its mean."""
        if other is None or other.count <= 0:
            return self
        if self.count <= 0:
            return other
        if other.limits == self.limits:
            counts = tuple(own + its for own, its in zip(self.counts, other.counts, strict=True))
        else:
            place = bisect_left(self.limits, other.mean or 0.0)
            counts = tuple(held + other.count * (index == place) for index, held in enumerate(self.counts))
        return Distribution(self.limits, counts, self.total + other.total)

    def minus(self, before: Distribution) -> Distribution | None:
        """Return what was added since `before`; None where the limits differ or a count has fallen."""
        if before.limits != self.limits:
            return None
        counts = tuple(own - its for own, its in zip(self.counts, before.counts, strict=True))
        if min(counts) < 0:
            return None
        return Distribution(self.limits, counts, max(self.total - before.total, 0.0))


def distribution_of(values: Iterable[float], limits: Sequence[float] = TIME_LIMITS_S) -> Distribution:
    """Count values into buckets."""
    counts = [0.0] * (len(limits) + 1)
    total = 0.0
    for value in values:
        counts[bisect_left(limits, value)] += 1
        total += value
    return Distribution(tuple(limits), tuple(counts), total)


def from_cumulative(buckets: Iterable[tuple[float, float]], total: float, count: float) -> Distribution:
    """Build one from Prometheus' cumulative buckets (limit, count up to it), in any order, without `+Inf`."""
    ordered = sorted(buckets)
    seen = [0.0, *(held for _, held in ordered), count]
    counts = tuple(max(after - before, 0.0) for before, after in pairwise(seen))
    return Distribution(tuple(limit for limit, _ in ordered), counts, total)


def medians_by_step(values: Iterable[tuple[float, float]], step_s: float) -> tuple[tuple[float, float], ...]:
    """Return the begin of each step of `step_s` that has values, and their median. `values`: (Unix time, value).

    Steps begin at multiples of `step_s`, and are in order of time.
    """
    steps: dict[int, list[float]] = {}
    for at_s, value in values:
        steps.setdefault(int(at_s // step_s), []).append(value)
    return tuple((step * step_s, median(steps[step])) for step in sorted(steps))

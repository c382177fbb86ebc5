"""Values that all metric collectors share: the type of a family, and a histogram without locks or label look-ups."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | InfoMetricFamily | SummaryMetricFamily

ENGINE_LABELS = ("upstream", "dp_rank")
"""URL of the pod, and data-parallel rank: vLLM's label `engine`, which is "0" where there is only one."""

OTHER = "other"
"""The label value of everything beyond a bound on label values."""

MAX_TENANT_LABELS = 100
"""Tenants with series of their own, in each process."""


class TenantLabels:
    """The label values of tenants: the first that a process sees have their own for its life, all others share one.

    One per process, so that a tenant has the same label value in all metrics.
    """

    __slots__ = ("_max_tenants", "_named")

    def __init__(self, max_tenants: int = MAX_TENANT_LABELS) -> None:
        self._max_tenants = max_tenants
        self._named: set[str] = set()

    def of(self, tenant: str | None) -> str:
        """Return the label value of a tenant; empty where there is none."""
        if tenant is None:
            return ""
        if tenant in self._named:
            return tenant
        if len(self._named) >= self._max_tenants:
            return OTHER
        self._named.add(tenant)
        return tenant


def engine_labels(name: str) -> tuple[str, str]:
    """Return the values of the labels `ENGINE_LABELS` of an engine named `URL` or `URL#RANK`."""
    upstream, _, rank = name.partition("#")
    return upstream, rank or "0"


class Histogram:
    """Counts per bucket, each up to its bound and the last without one, and the sum of all values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = [own + its for own, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


def cumulative_buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the cumulative buckets that Prometheus expects: each bound as text, with the count of values up to it."""
    seen = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    return buckets

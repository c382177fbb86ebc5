"""Exports findings to Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.diagnosis.doctor import Doctor
from gateway.runtime.metric_families import OTHER, Family

MAX_SERIES = 200
"""Findings with a series of their own; those beyond it share the pool `other`."""


@dataclass(frozen=True, eq=False)
class FindingCollector(Collector):
    """Shows the findings of the last look, and which pods are drained for theirs."""

    doctor: Doctor
    drained: Callable[[], Iterable[tuple[str, str]]]
    """Pool and URL of each drained pod."""

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        diagnosis = self.doctor.diagnosis
        found = GaugeMetricFamily(
            "hearth_findings", "Findings that last, by severity.", labels=("finding", "pool", "severity")
        )
        counts: Counter[tuple[str, str, str]] = Counter()
        for finding in diagnosis.findings:
            pool = finding.pool if len(counts) < MAX_SERIES else OTHER
            counts[finding.recipe, pool, finding.severity.value] += 1
        for labels, count in counts.items():
            found.add_metric(labels, count)
        yield found
        yield GaugeMetricFamily(
            "hearth_unchecked_findings",
            "Findings that could not be checked because figures are missing.",
            len(diagnosis.gaps),
        )
        pools = Counter(pool for pool, _ in self.drained())
        drained = GaugeMetricFamily("hearth_finding_drained_pods", "Pods drained for a finding.", labels=("pool",))
        for pool, count in pools.items():
            drained.add_metric((pool,), count)
        yield drained

"""Monitoring of pairs: counts for Prometheus, and a warning for prefill pods that no connector can pair."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.pipeline.record import Outcome
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import restarted
from gateway.runtime.metric_families import Family, Histogram, cumulative_buckets
from routing.decision.placement import AttemptReceipt
from routing.decision.router import Router
from routing.pairing.partners import UnpairedReason, unpaired

LOOK_S = 1.0

TRANSFER_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

SETTLED_S = 10.0
"""How long a prefill pod is unpaired before it is reported: pods of a deployment start one after the other."""


class PairMetrics(Collector):
    """Counts pairs by connector and result, and fallbacks by reason. Observes records."""

    def __init__(self) -> None:
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._actual: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(TRANSFER_BUCKETS))
        self._predicted: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(TRANSFER_BUCKETS))

    def on_outcome(self, outcome: Outcome) -> None:
        """Count the attempts of a request that has ended."""
        for attempt in outcome.attempts:
            if attempt.prefill_engine is not None:
                self._count(attempt)
            if attempt.fallback_reason is not None:
                self._fallbacks[attempt.fallback_reason.value] += 1

    def _count(self, attempt: AttemptReceipt) -> None:
        name = attempt.connector or ""
        self._pairs[name, attempt.result] += 1
        if attempt.actual_transfer_s is not None and attempt.predicted_transfer_s is not None:
            self._actual[name].observe(attempt.actual_transfer_s)
            self._predicted[name].observe(attempt.predicted_transfer_s)

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        pairs = CounterMetricFamily(
            "hearth_pair_attempts",
            "Attempts with prefill and decode on two pods, by result.",
            labels=("connector", "result"),
        )
        for (connector, end), count in self._pairs.items():
            pairs.add_metric((connector, end), count)
        yield pairs
        fallbacks = CounterMetricFamily(
            "hearth_pair_fallbacks",
            "Attempts that were not or could not be served by a pair, by cause.",
            labels=("reason",),
        )
        for reason, count in self._fallbacks.items():
            fallbacks.add_metric((reason,), count)
        yield fallbacks
        for name, words, histograms in (
            (
                "hearth_kv_transfer_duration_seconds",
                "From the end of the prefill to the first token of a pair.",
                self._actual,
            ),
            (
                "hearth_kv_transfer_predicted_seconds",
                "Predicted time from the end of the prefill to the first token of a pair.",
                self._predicted,
            ),
        ):
            family = HistogramMetricFamily(name, words, labels=("connector",))
            for connector, histogram in histograms.items():
                family.add_metric((connector,), cumulative_buckets(histogram), histogram.total)
            yield family


class UnpairedPrefillMonitor:
    """Reports prefill pods that are in no pair, once each, with a fix. Requests are served without them."""

    def __init__(self, router: Router, log_event: LogFunction, clock: Callable[[], float]) -> None:
        self._router = router
        self._log_event = log_event
        self._clock = clock
        self._version = -1
        self._found: dict[str, UnpairedReason] = {}
        self._since_s: dict[str, float] = {}
        self._reported: dict[str, UnpairedReason] = {}

    @restarted("unpaired pods")
    async def run(self) -> None:
        """Look every second, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Report pods that have been unpaired for `SETTLED_S`, unless the same was reported of them."""
        fleet, now_s = self._router.fleet, self._clock()
        if fleet.version != self._version:
            self._version = fleet.version
            self._found = unpaired(fleet, self._router.pairing.connectors)
            self._since_s = {url: self._since_s.get(url, now_s) for url in self._found}
            present = {pod.url for pod in fleet.pods}
            self._reported = {url: why for url, why in self._reported.items() if url in present}
        for url, why in self._found.items():
            if self._reported.get(url) is not why and self._has_settled(url):
                self._reported[url] = why
                connector = pod.facts.kv_connector if (pod := fleet.pod(url)) else None
                self._log_event("warning", "prefill_pod_unpaired", upstream=url, kv_connector=connector, fix=why.value)

    def standing_warnings(self) -> Iterator[tuple[str, str]]:
        """Yield event and URL of each prefill pod that is in no pair."""
        return (("prefill_pod_unpaired", url) for url in self._found if self._has_settled(url))

    def _has_settled(self, url: str) -> bool:
        return self._clock() - self._since_s[url] >= SETTLED_S

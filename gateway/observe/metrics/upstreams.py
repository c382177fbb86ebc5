"""Figures of each pod, from which an operator sees which one is sick: attempts, first tokens, state, last error.

Pods that have left have no series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from gateway.fleet.pod_state import WatchedPod
from gateway.observe.metrics.request_groups import AttemptSums
from gateway.runtime.metric_families import ENGINE_LABELS, Family, engine_labels
from routing.fleet import Fleet

MAX_PODS = 4096

LABELS = ("upstream",)


@dataclass(slots=True)
class AttemptCounters:
    """Attempts on one pod."""

    results: Counter[str] = field(default_factory=Counter)
    first_tokens: int = 0
    ttft_s: float = 0.0
    """Sum of the times from the choice of the engine to its first token."""


class UpstreamCounters:
    """Counts attempts by pod."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.by_url: dict[str, AttemptCounters] = {}

    def add(self, sums: AttemptSums) -> None:
        """Count attempts that have ended."""
        url = sums.engine.partition("#")[0]
        held = self.by_url.get(url)
        if held is None:
            if len(self.by_url) >= MAX_PODS:
                self._forget_gone()
            held = self.by_url[url] = AttemptCounters()
        held.results[sums.result] += sums.attempts
        held.first_tokens += sums.first_tokens
        held.ttft_s += sums.ttft_s

    def families(self) -> Iterator[Family]:
        """Return the metric families of this moment."""
        self._forget_gone()
        attempts = CounterMetricFamily(
            "hearth_upstream_attempts", "Attempts on the pod, by result.", labels=("upstream", "result")
        )
        ttft = SummaryMetricFamily(
            "hearth_upstream_time_to_first_token_seconds",
            "From the choice of the engine to its first token.",
            labels=LABELS,
        )
        for url, held in self.by_url.items():
            for result, count in held.results.items():
                attempts.add_metric((url, result), count)
            ttft.add_metric((url,), held.first_tokens, held.ttft_s)
        yield from (attempts, ttft)

    def _forget_gone(self) -> None:
        for url in [url for url in self.by_url if self._fleet.pod(url) is None]:
            del self.by_url[url]


@dataclass(frozen=True, eq=False)
class UpstreamCollector(Collector):
    """Shows the state of each pod at the moment of a scrape, one value per pod."""

    fleet: Fleet
    pods: Callable[[], Iterable[WatchedPod]]
    clock: Callable[[], float]
    wall_clock: Callable[[], float]

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        info = GaugeMetricFamily(
            "hearth_upstream_info", "Pool and region of the pod.", labels=("upstream", "pool", "region")
        )
        state = GaugeMetricFamily("hearth_upstream_state", "1 for the state of the pod.", labels=("upstream", "state"))
        breaker = GaugeMetricFamily(
            "hearth_upstream_breaker_state", "1 for the state of its circuit breaker.", labels=("upstream", "state")
        )
        failed = GaugeMetricFamily(
            "hearth_upstream_last_error_timestamp_seconds",
            "Unix time of the pod's last error, by reason.",
            labels=("upstream", "reason"),
        )
        opened = CounterMetricFamily(
            "hearth_breaker_opens", "Times that the circuit breaker of the pod opened.", labels=LABELS
        )
        age = GaugeMetricFamily("hearth_scrape_age_seconds", "Seconds since the last scrape of the pod.", labels=LABELS)
        usage = GaugeMetricFamily(
            "hearth_engine_kv_usage_ratio",
            "Part of the engine's KV cache in use, as of the last scrape.",
            labels=ENGINE_LABELS,
        )
        waiting = GaugeMetricFamily(
            "hearth_engine_waiting_requests",
            "Requests in the engine's own queue, as of the last scrape.",
            labels=ENGINE_LABELS,
        )
        now_s, since_epoch_s = self.clock(), self.wall_clock()
        for pod in self.pods():
            url, known = pod.url, self.fleet.pod(pod.url)
            info.add_metric((url, pod.discovered.pool or "", pod.discovered.region or ""), 1.0)
            state.add_metric((url, (known.state if known else pod.standing()).value), 1.0)
            breaker.add_metric((url, pod.breaker.state.value), 1.0)
            if pod.last_error is not None:
                failed.add_metric((url, pod.last_error), since_epoch_s - (now_s - pod.failed_s))
            opened.add_metric((url,), pod.breaker.open_count)
            if pod.metrics is not None and pod.scraped_s >= 0:
                age.add_metric((url,), max(0.0, now_s - pod.scraped_s))
            for rank, reading in (pod.metrics.engines if pod.metrics else {}).items():
                labels = engine_labels(f"{url}#{rank}")
                usage.add_metric(labels, reading.kv_usage or 0.0)
                waiting.add_metric(labels, reading.waiting or 0.0)
        yield from (info, state, breaker, failed, opened, age, usage, waiting)


def waiting_by_engine(pods: Iterable[WatchedPod]) -> dict[str, float]:
    """Return the requests that wait in engines' own queues by the last scrape, by name of the engine."""
    waiting: dict[str, float] = {}
    for pod in pods:
        readings = pod.metrics.engines if pod.metrics else {}
        for rank, reading in readings.items():
            waiting[pod.url if len(readings) == 1 else f"{pod.url}#{rank}"] = reading.waiting or 0.0
    return waiting

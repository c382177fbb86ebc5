"""Metrics of each tier and pool, for autoscalers and operators: queues, rejections, and attainment of SLOs.

Only pools that exist and tiers that are used have series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.observe.metrics.pools import pools_of
from gateway.observe.metrics.request_groups import RequestGroup
from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.runtime.metric_families import Family
from routing.fleet import Fleet
from tenancy.objective import DEFAULT_TIER

LABELS = ("tier", "pool")


class QueuedRequests(NamedTuple):
    """Requests of one tier that wait for engines of one model."""

    tier: str
    model: str
    requests: int
    backlog_s: float
    """Seconds that they would take at the recent rate."""


def queued_requests_of(room: AdmissionQueue) -> Callable[[], Iterator[QueuedRequests]]:
    """Return a function that lists the waiting requests by tier and group of engines, named by one of their models."""

    def now() -> Iterator[QueuedRequests]:
        for model, queue in room.admission.queues.items() if room.admission is not None else ():
            for line in queue.tier_queues.values():
                yield QueuedRequests(line.tier.name, model, line.waiting, line.backlog_s)

    return now


class WaitingForPodCollector(Collector):
    """Shows how many requests wait for a pod of each model that `model_list` names or a pod serves."""

    def __init__(self, room: AdmissionQueue, fleet: Fleet) -> None:
        self._room = room
        self._fleet = fleet

    def collect(self) -> Iterator[Family]:
        """Return the gauge. Those of `model_list` start at zero, so that the series exist before the first request."""
        gauge = GaugeMetricFamily(
            "hearth_waiting_for_pod_requests",
            "Requests that wait because no pod of their model is ready.",
            labels=("model_name",),
        )
        counts = dict.fromkeys(sorted(self._fleet.configured_models), 0)
        for model, count in self._room.waiting_for_pod.items():
            if model in counts or self._fleet.knows(model):  # A client must not be able to make series.
                counts[model] = count
        for model, count in counts.items():
            gauge.add_metric((model,), count)
        yield gauge


@dataclass(slots=True)
class TierModelCounters:
    """Requests of one tier for one model."""

    slo_requests: int = 0
    """Requests with an SLO, gateway rejections included."""
    slo_met: int = 0
    slo_met_tokens: int = 0
    rejections: Counter[str] = field(default_factory=Counter)


class TierCounters:
    """Counts requests that have an SLO or a tier other than the default."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._tallies: dict[tuple[str, str], TierModelCounters] = {}

    def add(self, group: RequestGroup) -> None:
        """Count requests that have ended."""
        if group.tier == DEFAULT_TIER.name and group.slo_met is None:
            return
        model = group.model
        if not self._fleet.knows(model):
            return  # A client must not be able to make series by inventing models.
        tally = self._tallies.get((group.tier, model))
        if tally is None:
            tally = self._tallies[group.tier, model] = TierModelCounters()
        if group.reason is not None:
            tally.rejections[group.reason.value] += group.requests
        if group.slo_met is None:
            return
        tally.slo_requests += group.requests
        if group.slo_met:
            tally.slo_met += group.requests
            tally.slo_met_tokens += group.output_tokens

    def by_pool(self) -> dict[tuple[str, str], list[TierModelCounters]]:
        """Return counts by tier and pool. Those of models that no pod serves any more are dropped."""
        pools = pools_of(self._fleet)
        for key in [key for key in self._tallies if key[1] not in pools]:
            del self._tallies[key]
        grouped: dict[tuple[str, str], list[TierModelCounters]] = {}
        for (tier, model), tally in self._tallies.items():
            grouped.setdefault((tier, pools[model]), []).append(tally)
        return grouped


class TierCollector(Collector):
    """Shows counts and queues by tier and pool at the moment of a scrape."""

    def __init__(self, tallies: TierCounters, fleet: Fleet, waiting: Callable[[], Iterable[QueuedRequests]]) -> None:
        self._tallies = tallies
        self._fleet = fleet
        self._waiting = waiting

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        grouped = self._tallies.by_pool()
        yield from self._queues(grouped)
        shown: tuple[tuple[str, str, Callable[[TierModelCounters], float]], ...] = (
            (
                "hearth_slo_requests",
                "Requests with a latency objective, rejections by the gateway included.",
                lambda tally: tally.slo_requests,
            ),
            ("hearth_slo_met_requests", "Requests that met their latency objective.", lambda tally: tally.slo_met),
            (
                "hearth_goodput_tokens",
                "Output tokens of requests that met their latency objective.",
                lambda tally: tally.slo_met_tokens,
            ),
        )
        for name, words, count_of in shown:
            counter = CounterMetricFamily(name, words, labels=LABELS)
            for key, tallies in grouped.items():
                counter.add_metric(key, sum(map(count_of, tallies)))
            yield counter
        rejected_count = CounterMetricFamily(
            "hearth_tier_rejections", "Requests rejected by the gateway, by tier.", labels=(*LABELS, "reason")
        )
        for key, tallies in grouped.items():
            for reason, count in sum((tally.rejections for tally in tallies), Counter[str]()).items():
                rejected_count.add_metric((*key, reason), count)
        yield rejected_count

    def _queues(self, known: Iterable[tuple[str, str]]) -> Iterator[Family]:
        """Return the queue gauges. An empty queue is zero, not absent: an autoscaler must see it empty."""
        pools = pools_of(self._fleet)
        requests: Counter[tuple[str, str]] = Counter(dict.fromkeys(known, 0))
        backlog_s: dict[tuple[str, str], float] = dict.fromkeys(known, 0.0)
        for waiting in self._waiting():
            key = waiting.tier, pools.get(waiting.model, waiting.model)
            requests[key] += waiting.requests
            backlog_s[key] = backlog_s.get(key, 0.0) + waiting.backlog_s
        queued = GaugeMetricFamily("hearth_queued_requests", "Requests in the queue.", labels=LABELS)
        backlog = GaugeMetricFamily(
            "hearth_queue_drain_seconds", "Time to drain the queue at the recent rate.", labels=LABELS
        )
        for key, count in requests.items():
            queued.add_metric(key, count)
            backlog.add_metric(key, backlog_s[key])
        yield queued
        yield backlog

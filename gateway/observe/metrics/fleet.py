"""Collects the state of the gateway, its pods and engines at the moment of a scrape: pods that left have no series."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.discovery.aggregator import PodAggregator
from gateway.replica_sync.peer_load import LoadBySlot, own_load
from gateway.runtime.metric_families import ENGINE_LABELS, Family, engine_labels
from routing.decision.router import Router
from routing.pods import Engine, PodState


@dataclass(frozen=True, eq=False)
class FleetCollector(Collector):
    """Shows what is open in the gateway, upstreams by state, and what the ledger holds of each engine."""

    router: Router
    open_requests: Callable[[], int]
    open_connections: Callable[[], int]
    dropped_lines: Callable[[], Mapping[str, int]]
    peer_load: Callable[[], LoadBySlot] = dict
    """The load that other gateways have placed on our engines."""
    tasks: Callable[[], int] = int

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        yield from self._gateway()
        yield self._pods()
        yield from self._engines()

    def _gateway(self) -> Iterator[Family]:
        yield GaugeMetricFamily("hearth_requests_in_flight", "Requests in flight.", self.open_requests())
        yield GaugeMetricFamily("hearth_downstream_connections", "Client connections.", self.open_connections())
        yield GaugeMetricFamily(
            "hearth_event_loop_tasks",
            "Tasks of the event loop: some per request, and a few constant ones.",
            self.tasks(),
        )
        yield GaugeMetricFamily(
            "hearth_prefix_index_blocks", "Blocks in the approximate prefix index.", len(self.router.index)
        )
        dropped = CounterMetricFamily(
            "hearth_log_lines_dropped", "Log lines that were not written in time.", labels=("log",)
        )
        for name, count in self.dropped_lines().items():
            dropped.add_metric((name,), count)
        yield dropped

    def _pods(self) -> Family:
        states = dict.fromkeys(PodState, 0)
        for known in self.router.fleet.pods:
            states[known.state] += 1
        by_state = GaugeMetricFamily("hearth_upstreams", "Pods by state.", labels=("state",))
        for state, count in states.items():
            by_state.add_metric((state.value,), count)
        return by_state

    def _engines(self) -> Iterator[Family]:
        router, theirs = self.router, self.peer_load()
        ledger, costs, index = router.ledger, router.costs, router.index
        engines = [engine for pod in router.fleet.pods for engine in pod.engines]
        own = {engine.slot: own_load(ledger, engine.slot, theirs) for engine in engines}
        shown: tuple[tuple[str, str, Callable[[Engine], float | None]], ...] = (
            (
                "hearth_engine_running_requests",
                "Running requests of this gateway.",
                lambda engine: own[engine.slot].running,
            ),
            (
                "hearth_engine_pending_prefill_tokens",
                "Prompt tokens of this gateway's requests that the engine has not computed yet.",
                lambda engine: own[engine.slot].prefill_tokens,
            ),
            (
                "hearth_engine_kv_tokens",
                "KV tokens of this gateway's requests on the engine.",
                lambda engine: own[engine.slot].kv_tokens,
            ),
            ("hearth_engine_kv_capacity_tokens", "KV cache capacity.", lambda engine: engine.kv_tokens),
            (
                "hearth_engine_external_running_requests",
                "Running requests that were not placed by these gateways, as of the last scrape.",
                lambda engine: ledger.external[engine.slot].running,
            ),
            (
                "hearth_engine_prefix_index_bytes",
                "Prompt bytes assumed to be cached.",
                lambda engine: index.size_of(engine.slot),
            ),
            (
                "hearth_engine_prefill_seconds_per_token",
                "Learned prefill time per token.",
                lambda engine: costs.seconds_per_token[engine.slot],
            ),
            (
                "hearth_engine_step_seconds",
                "Learned time of a decode step.",
                lambda engine: costs.step_base_s[engine.slot],
            ),
        )
        for name, words, value_of in shown:
            family = GaugeMetricFamily(name, words, labels=ENGINE_LABELS)
            for engine in engines:
                if (value := value_of(engine)) is not None:
                    family.add_metric(engine_labels(engine.name), value)
            yield family


class SourceCollector(Collector):
    """Shows what each source of pods has reported, when, and whether it can be reached."""

    def __init__(self, census: PodAggregator, clock: Callable[[], float]) -> None:
        self._census = census
        self._clock = clock

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return all metric families of this moment."""
        labels = ("source",)
        pods = GaugeMetricFamily(
            "hearth_discovery_source_upstreams", "Pods in the last list of the source.", labels=labels
        )
        age = GaugeMetricFamily(
            "hearth_discovery_source_age_seconds", "Seconds since the last list of the source of pods.", labels=labels
        )
        up = GaugeMetricFamily("hearth_discovery_source_up", "0 while the source of pods fails.", labels=labels)
        now_s = self._clock()
        for source in self._census.sources:
            up.add_metric((source.name,), float(not source.trouble))
            if (word := self._census.last_snapshot(source)) is not None:
                pods.add_metric((source.name,), len(word.pods))
                age.add_metric((source.name,), max(0.0, now_s - word.at_s))
        yield from (pods, age, up)

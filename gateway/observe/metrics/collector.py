"""Shows tallies, fleet and ledger to Prometheus, read at the moment of a scrape: who is gone has no series."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from gateway.cluster.peer_load import ByEngine, own_load
from gateway.fleet.watched import WatchedPod
from gateway.observe.metrics.counters import Histogram, ModelTally, Tallies
from routing.decision.router import Router
from routing.pods import Engine, Standing

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | InfoMetricFamily


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is asked for at each scrape besides the tallies."""

    router: Router
    pods: Callable[[], Iterable[WatchedPod]]
    open_requests: Callable[[], int]
    open_connections: Callable[[], int]
    dropped_lines: Callable[[], Mapping[str, int]]
    clock: Callable[[], float]
    theirs: Callable[[], ByEngine] = dict
    """What others have on our engines."""
    tasks: Callable[[], int] = int


def make_registry() -> CollectorRegistry:
    """A registry of its own, with what is known of the process: other gateways in this interpreter share nothing."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class Exposition(Collector):
    """Makes families of what the others hold."""

    def __init__(self, tallies: Tallies, gauges: Gauges) -> None:
        self._tallies = tallies
        self._gauges = gauges

    def collect(self) -> Iterator[Family]:
        """All families of this moment."""
        yield InfoMetricFamily(
            "hearth_build",
            "Version of the gateway.",
            value={"version": version("hearth-gateway"), "python": platform.python_version()},
        )
        yield from self._requests()
        yield self._unresumed()
        yield from self._model_histograms()
        yield from self._model_counters()
        yield from self._tenants()
        yield from self._gateway()
        yield from self._pods()
        yield from self._engines()

    def _requests(self) -> Iterator[Family]:
        models = self._tallies.models
        requests = CounterMetricFamily(
            "hearth_requests", "Requests that have ended.", labels=("model_name", "status", "reason")
        )
        retries = CounterMetricFamily(
            "hearth_retries",
            "Attempts after which another pod was tried, by how they ended.",
            labels=("model_name", "ended"),
        )
        refusals: dict[str, int] = {reason.value: count for reason, count in self._tallies.early.items()}
        for name, tally in models.items():
            for (status, reason), count in tally.requests.items():
                requests.add_metric((name, str(status), reason), count)
                if reason:
                    refusals[reason] = refusals.get(reason, 0) + count
            for ended, count in tally.retries.items():
                retries.add_metric((name, ended), count)
        yield requests
        yield retries
        refused = CounterMetricFamily(
            "hearth_refusals", "Requests refused by the gateway, those at the door included.", labels=("reason",)
        )
        for reason, count in refusals.items():
            refused.add_metric((reason,), count)
        yield refused

    def _unresumed(self) -> Family:
        family = CounterMetricFamily(
            "hearth_unresumed", "Streams that were cut and that nobody went on with.", labels=("model_name", "why")
        )
        for name, tally in self._tallies.models.items():
            for why, count in tally.unresumed.items():
                family.add_metric((name, why), count)
        return family

    def _model_histograms(self) -> Iterator[Family]:
        shown: tuple[tuple[str, str, Callable[[ModelTally], Histogram]], ...] = (
            ("hearth_time_to_first_token_seconds", "From arrival to first token.", lambda tally: tally.ttft_s),
            ("hearth_time_per_output_token_seconds", "Mean per stream, after its first.", lambda tally: tally.tpot_s),
            ("hearth_request_duration_seconds", "From arrival to end.", lambda tally: tally.duration_s),
        )
        for name, words, histogram_of in shown:
            family = HistogramMetricFamily(name, words, labels=("model_name",))
            for model, tally in self._tallies.models.items():
                histogram = histogram_of(tally)
                family.add_metric((model,), cumulated(histogram), histogram.total)
            yield family

    def _model_counters(self) -> Iterator[Family]:
        shown: tuple[tuple[str, str, Callable[[ModelTally], float]], ...] = (
            ("hearth_prompt_tokens", "Prompt tokens, by the engines' count.", lambda tally: tally.prompt_tokens),
            ("hearth_cached_tokens", "Prompt tokens that engines reused.", lambda tally: tally.cached_tokens),
            ("hearth_generation_tokens", "Tokens generated.", lambda tally: tally.output_tokens),
            ("hearth_shared_answers", "Requests given another's answer as well.", lambda tally: tally.shared_answers),
            ("hearth_resumed", "Streams whose pod was lost, gone on with by another.", lambda tally: tally.resumed),
            ("hearth_resume_wasted_tokens", "Computed again for that.", lambda tally: tally.wasted_tokens),
            (
                "hearth_judged_requests",
                "Requests whose prediction could be checked.",
                lambda tally: tally.judged_requests,
            ),
            (
                "hearth_predicted_warm_tokens",
                "Warm tokens predicted for them.",
                lambda tally: tally.predicted_warm_tokens,
            ),
            ("hearth_real_warm_tokens", "Warm tokens their engines told.", lambda tally: tally.real_warm_tokens),
            ("hearth_missed_warm_tokens", "Sum of their differences.", lambda tally: tally.missed_warm_tokens),
            ("hearth_predicted_ttft_seconds", "Engine TTFT predicted for them.", lambda tally: tally.predicted_ttft_s),
            ("hearth_real_ttft_seconds", "Engine TTFT they really had.", lambda tally: tally.real_ttft_s),
        )
        for name, words, value_of in shown:
            family = CounterMetricFamily(name, words, labels=("model_name",))
            for model, tally in self._tallies.models.items():
                family.add_metric((model,), value_of(tally))
            yield family

    def _tenants(self) -> Iterator[Family]:
        requests = CounterMetricFamily("hearth_tenant_requests", "Requests by tenant.", labels=("tenant",))
        tokens = CounterMetricFamily("hearth_tenant_tokens", "Tokens by tenant and kind.", labels=("tenant", "kind"))
        for name, tally in self._tallies.tenants.items():
            requests.add_metric((name,), tally.requests)
            tokens.add_metric((name, "prompt"), tally.prompt_tokens)
            tokens.add_metric((name, "cached"), tally.cached_tokens)
            tokens.add_metric((name, "generation"), tally.output_tokens)
        yield requests
        yield tokens

    def _gateway(self) -> Iterator[Family]:
        gauges = self._gauges
        yield GaugeMetricFamily("hearth_open_requests", "Requests in flight.", gauges.open_requests())
        yield GaugeMetricFamily("hearth_open_connections", "Client connections.", gauges.open_connections())
        yield GaugeMetricFamily(
            "hearth_tasks", "Tasks of the event loop: some for each request, and a few always.", gauges.tasks()
        )
        yield GaugeMetricFamily("hearth_index_blocks", "Blocks in the warm index.", len(gauges.router.index))
        dropped = CounterMetricFamily("hearth_dropped_lines", "Log lines that nobody took in time.", labels=("log",))
        for name, count in gauges.dropped_lines().items():
            dropped.add_metric((name,), count)
        yield dropped

    def _pods(self) -> Iterator[Family]:
        standings = dict.fromkeys(Standing, 0)
        opened = CounterMetricFamily("hearth_breaker_opens", "How often a pod's breaker opened.", labels=("pod",))
        age = GaugeMetricFamily("hearth_scrape_age_seconds", "Since a pod's metrics were read.", labels=("pod",))
        now_s = self._gauges.clock()
        for known in self._gauges.router.fleet.pods:
            standings[known.standing] += 1
        for pod in self._gauges.pods():
            opened.add_metric((pod.url,), pod.breaker.opened)
            if pod.page is not None and pod.scraped_s >= 0:
                age.add_metric((pod.url,), max(0.0, now_s - pod.scraped_s))
        by_standing = GaugeMetricFamily("hearth_pods", "Pods by standing.", labels=("standing",))
        for standing, count in standings.items():
            by_standing.add_metric((standing.value,), count)
        yield from (by_standing, opened, age)

    def _engines(self) -> Iterator[Family]:
        router, theirs = self._gauges.router, self._gauges.theirs()
        ledger, costs, index = router.ledger, router.costs, router.index
        engines = [engine for pod in router.fleet.pods for engine in pod.engines]
        own = {engine.slot: own_load(ledger, engine.slot, theirs) for engine in engines}
        shown: tuple[tuple[str, str, Callable[[Engine], float | None]], ...] = (
            ("hearth_engine_running", "Our sequences there.", lambda engine: own[engine.slot].running),
            (
                "hearth_engine_prefill_tokens",
                "Our prefill not yet done.",
                lambda engine: own[engine.slot].prefill_tokens,
            ),
            ("hearth_engine_kv_tokens", "KV tokens we count there.", lambda engine: own[engine.slot].kv_tokens),
            ("hearth_engine_kv_capacity_tokens", "KV tokens it holds.", lambda engine: engine.kv_tokens),
            (
                "hearth_engine_foreign_running",
                "Sequences of others.",
                lambda engine: ledger.foreign[engine.slot].running,
            ),
            ("hearth_engine_shadow_bytes", "Prompt believed warm.", lambda engine: index.size_of(engine.slot)),
            (
                "hearth_engine_prefill_seconds_per_token",
                "Learned prefill time per token.",
                lambda engine: costs.seconds_per_token[engine.slot],
            ),
            ("hearth_engine_step_seconds", "Learned time of a step.", lambda engine: costs.step_base_s[engine.slot]),
        )
        for name, words, value_of in shown:
            family = GaugeMetricFamily(name, words, labels=("engine",))
            for engine in engines:
                if (value := value_of(engine)) is not None:
                    family.add_metric((engine.name,), value)
            yield family


def cumulated(histogram: Histogram) -> list[tuple[str, float]]:
    """Buckets as Prometheus wants them: each counts all that is not above its bound."""
    seen = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    return buckets

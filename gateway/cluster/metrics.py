"""The metrics port of a supervisor: scrapes every child and merges their metrics into those of one gateway.

Families are merged as follows:

- metrics of a process itself (`process_*`, `python_*`) get a label `process`;
- counters, histograms and summaries are summed, including those of children that have ended: a total never falls. Of
  those in `LARGEST`, which all processes count alike, the largest value counts;
- gauges are summed (requests, connections, blocks: each process has its own);
- gauges about an upstream, an engine, a source or a node (a label in `FACT_LABELS`), and those in `FACTS`, are facts
  that all processes see alike: the first one counts. Only a process's own load on an engine is summed;
- of connections (`*_connected`) the smallest value counts, of those in `LARGEST` the largest: a sum of times, shares or
  flags means nothing;
- what each process judges by its own requests (`ONE_PER_UPSTREAM`) has one sample per upstream: the worst state, the
  latest error.

Parsing takes some ten microseconds per series and child; it happens here, in a process that serves no requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.cluster.child import ChildProcess
from gateway.cluster.worker_pool import WorkerPool
from gateway.observe.metrics.configuration import ReloadStatus
from gateway.observe.metrics.engines import COUNTERS, SUMMARIES
from gateway.observe.metrics_listener import encode_in_slices, encoder_for

OWN = ("process_", "python_")

FACT_LABELS = frozenset(("upstream", "state", "source", "node"))

SUMMED_FACTS = frozenset(
    ("hearth_engine_running_requests", "hearth_engine_pending_prefill_tokens", "hearth_engine_kv_tokens")
)

FACTS = frozenset(
    (
        *("hearth_build_info", "hearth_replica_sync_peers", "hearth_limit_replicas"),
        *("hearth_cascade_guarantee_max_loss_ratio", "hearth_cascade_guarantee_examples"),
        *("hearth_pool_engines", "hearth_pool_waiting_requests"),
        *("hearth_desired_engines", "hearth_needed_engines", "hearth_desired_tier_engines"),
        *("hearth_spill_share_ratio", "hearth_split_cost_per_hour", "hearth_split_advised"),
    )
)

LARGEST = frozenset(
    (
        *(
            "hearth_canary_verdict",
            "hearth_canary_interval",
            "hearth_canary_e_value",
            "hearth_queue_drain_seconds",
            "hearth_redis_staleness_seconds",
        ),
        *("hearth_cascade_drift_alarm", "hearth_cascade_model_frozen", "hearth_cascade_threshold_raised_steps"),
        "hearth_supply_missing_gateways",
        *("hearth_warnings", "hearth_pool_cost", "hearth_pool_engine_seconds", "hearth_engine_prompt_tokens"),
        *(name for name, _, _ in (*SUMMARIES, *COUNTERS)),
    )
)
"""Those of engines and pools grow alike in all processes; one that began later has counted less."""

STATE_RANK = {
    word: rank
    for words in (
        ("ready", "suspect", "draining", "warming", "starting", "unready", "open_circuit"),
        ("closed", "trial", "open"),
    )
    for rank, word in enumerate(words)
}
"""States of pods and breakers, the worst last."""

ONE_PER_UPSTREAM = frozenset(
    (
        *("hearth_upstream_state", "hearth_upstream_breaker_state"),
        "hearth_upstream_last_error_timestamp_seconds",
    )
)
"""Processes may differ in these: each has circuit breakers of its own."""

SMALLEST = frozenset(
    (
        *("hearth_cascade_guarantee_active", "hearth_cascade_shadow_agreement_ratio"),
        *("hearth_desired_engines_known", "hearth_provider_usable"),
    )
)

CONNECTED = "_connected"

CUMULATIVE = frozenset(("counter", "histogram", "summary"))

SampleKey = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a sample."""


class MergeRule(Enum):
    """How the samples of a family are merged."""

    OWN = "own"
    SUM = "sum"
    FACT = "fact"
    MAX = "max"
    MIN = "min"
    WORST = "worst"


@dataclass(slots=True)
class MetricFamily:
    """One metric family, with samples in order."""

    name: str
    documentation: str
    kind: str
    samples: dict[SampleKey, float] = field(default_factory=dict)

    def add(self, other: MetricFamily) -> None:
        """Add the samples of the other."""
        for key, value in other.samples.items():
            self.samples[key] = self.samples.get(key, 0.0) + value

    def select(self, other: MetricFamily, choose: Callable[[float, float], float]) -> None:
        """Take of each sample the value that `choose` returns."""
        for key, value in other.samples.items():
            self.samples[key] = choose(self.samples.get(key, value), value)

    def select_worst(self, other: MetricFamily) -> None:
        """Keep one sample per upstream: the one with the worst state, then the largest value."""
        worst: dict[str, tuple[SampleKey, float]] = {}
        for key, value in (*self.samples.items(), *other.samples.items()):
            labels = dict(key[1])
            known = worst.get(labels["upstream"])
            if known is None or _badness(labels, value) > _badness(dict(known[0][1]), known[1]):
                worst[labels["upstream"]] = (key, value)
        self.samples = dict(worst.values())

    def empty(self) -> MetricFamily:
        """The same family without a sample."""
        return MetricFamily(self.name, self.documentation, self.kind)

    def of(self, process: str) -> MetricFamily:
        """The same family with a label `process`."""
        label = ("process", process)
        samples = {(name, (*labels, label)): value for (name, labels), value in self.samples.items()}
        return MetricFamily(self.name, self.documentation, self.kind, samples)

    def metric(self) -> Metric:
        """The family as prometheus_client encodes it."""
        metric = Metric(self.name, self.documentation, self.kind)
        metric.samples = [Sample(name, dict(labels), value) for (name, labels), value in self.samples.items()]
        return metric


def _badness(labels: Mapping[str, str], value: float) -> tuple[int, float]:
    return STATE_RANK.get(labels.get("state", ""), 0), value


Scrape = Mapping[str, MetricFamily]
"""One scrape of a process, by family name."""


def parse_exposition(text: str) -> Scrape:
    """Parse the Prometheus text format."""
    return families_of(text_string_to_metric_families(text))


def families_of(metrics: Iterable[Metric]) -> Scrape:
    """Convert families of prometheus_client."""
    found: dict[str, MetricFamily] = {}
    for metric in metrics:
        samples = {(each.name, tuple(each.labels.items())): each.value for each in metric.samples}
        found[metric.name] = MetricFamily(metric.name, metric.documentation, metric.type, samples)
    return found


def rule_of(family: MetricFamily) -> MergeRule:
    """The rule by which a family is merged."""
    if family.name.startswith(OWN):
        return MergeRule.OWN
    if family.name in LARGEST:
        return MergeRule.MAX
    if family.kind in CUMULATIVE or family.name in SUMMED_FACTS:
        return MergeRule.SUM
    if family.name in ONE_PER_UPSTREAM:
        return MergeRule.WORST
    if family.name in FACTS:
        return MergeRule.FACT
    if family.name in SMALLEST or family.name.endswith(CONNECTED):
        return MergeRule.MIN
    labels = {label for _, held in family.samples for label, _ in held}
    return MergeRule.FACT if labels & FACT_LABELS else MergeRule.SUM


CHOICES: Mapping[MergeRule, Callable[[float, float], float]] = {MergeRule.MAX: max, MergeRule.MIN: min}


def merge_scrapes(readings: Mapping[str, Scrape], gone: Scrape) -> Iterator[Metric]:
    """Merge all families. `readings`: by process, the first counts for facts; `gone`: counts of ended children."""
    whole: dict[str, MetricFamily] = {}
    for process, reading in readings.items():
        for name, family in reading.items():
            rule = rule_of(family)
            if rule is MergeRule.FACT and name in whole:
                continue
            target = whole.setdefault(name, family.empty())
            if rule is MergeRule.WORST:
                target.select_worst(family)
            elif rule in CHOICES:
                target.select(family, CHOICES[rule])
            else:
                target.add(family.of(process) if rule is MergeRule.OWN else family)
    for name, family in gone.items():
        whole.setdefault(name, family.empty()).add(family)
    return (family.metric() for family in whole.values())


class RetiredCounters:
    """The counters of children that have ended, as of their last scrape."""

    def __init__(self) -> None:
        self.families: dict[str, MetricFamily] = {}

    def add(self, reading: Scrape) -> None:
        """Add the counters of a child that has ended."""
        for name, family in reading.items():
            if family.kind in CUMULATIVE and rule_of(family) is MergeRule.SUM:
                self.families.setdefault(name, family.empty()).add(family)


SUPERVISOR = "supervisor"


class ScrapedMetrics:
    """The last scrape of every child, and the counters of children that have ended."""

    def __init__(self) -> None:
        self._latest: dict[ChildProcess, Scrape] = {}
        self._legacy = RetiredCounters()

    def join(self, child: ChildProcess) -> None:
        """Add a child that has started."""
        self._latest[child] = {}

    def take(self, child: ChildProcess, reading: Scrape) -> None:
        """Take a scrape. A child that has ended meanwhile is counted already."""
        if child in self._latest:
            self._latest[child] = reading

    def leave(self, child: ChildProcess) -> None:
        """Keep the counters of a child that has ended."""
        self._legacy.add(self._latest.pop(child, {}))

    def merged(self, own: Scrape) -> Iterator[Metric]:
        """Merge everything. A child that did not answer in time counts with its last scrape."""
        by_name = sorted(self._latest.items(), key=lambda each: (len(each[0].name), each[0].name))
        return merge_scrapes(
            {child.name: reading for child, reading in by_name} | {SUPERVISOR: own}, self._legacy.families
        )


class SupervisorMetrics(Collector):
    """The metrics of the supervisor itself."""

    def __init__(self, team: WorkerPool) -> None:
        self._team = team

    def collect(self) -> Iterator[Metric]:
        """Running children, and restarts by process."""
        yield GaugeMetricFamily("hearth_worker_processes", "Running child processes.", len(self._team.children))
        restarts = CounterMetricFamily("hearth_worker_restarts", "Processes that were restarted.", labels=("process",))
        for slot in self._team.slots:
            restarts.add_metric((slot.name,), slot.restarts)
        yield restarts


def own_registry(team: WorkerPool, reloads: ReloadStatus) -> CollectorRegistry:
    """The registry of the supervisor's own metrics."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(SupervisorMetrics(team))
    registry.register(reloads)
    return registry


def supervisor_metrics_app(
    team: WorkerPool, counts: ScrapedMetrics, reloads: ReloadStatus, is_stopping: Callable[[], bool]
) -> web.Application:
    """The application of the metrics port. It is ready while any worker is."""
    own = own_registry(team, reloads)

    async def metrics(request: web.Request) -> web.Response:
        await _scrape(team, counts)
        encode, content_type = encoder_for(request.headers.get("accept", ""))
        body = await encode_in_slices(counts.merged(families_of(own.collect())), encode)
        return web.Response(body=body, headers={"content-type": content_type})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        answers = {} if is_stopping() else await team.request("/ready")
        if any(answer.status == 200 for answer in answers.values()):
            return web.Response(text="ready\n")
        return web.Response(text="not ready\n", status=503)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/health", health), web.get("/ready", ready)])
    return app


async def _scrape(team: WorkerPool, counts: ScrapedMetrics) -> None:
    """Scrape all children; other tasks run between the parsing of two."""
    children = team.children
    for child, answer in zip(
        children, await asyncio.gather(*(child.request("/metrics") for child in children)), strict=True
    ):
        if answer is not None and answer.status == 200:
            counts.take(child, parse_exposition(answer.body.decode()))
            await asyncio.sleep(0)

"""Many processes' metrics as those of one gateway. Works on parsed families; asks nobody.

The rule, family by family:

- what a process says of itself (`process_*`, `python_*`) stays its own, under a label `process`;
- counters and histograms are summed, those of processes that have gone included: a total never falls;
- gauges are summed (requests, connections, blocks: each process holds its own);
- but what is said of a pod, an engine or a source of pods (a label `pod`, `engine`, `standing` or `source`) is a fact
  that all see alike: the first process that tells it is believed. Only our own load on an engine is summed: each counts
  what it sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.cluster.child import Child
from gateway.cluster.worker_pool import Team

OWN = ("process_", "python_")

FACT_LABELS = frozenset(("pod", "engine", "standing", "source"))

SUMMED_FACTS = frozenset(("hearth_engine_running", "hearth_engine_prefill_tokens", "hearth_engine_kv_tokens"))

FACTS = frozenset(("hearth_build_info", "hearth_news_origins", "hearth_limit_replicas"))

CUMULATIVE = frozenset(("counter", "histogram"))

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and labels."""


class Rule(Enum):
    """How the samples of one family are put together."""

    OWN = "own"
    SUM = "sum"
    FACT = "fact"


@dataclass(slots=True)
class Family:
    """One family, its samples by key, in the order of their coming."""

    name: str
    words: str
    kind: str
    samples: dict[Key, float] = field(default_factory=dict)

    def add(self, other: Family) -> None:
        """Sum the samples."""
        for key, value in other.samples.items():
            self.samples[key] = self.samples.get(key, 0.0) + value

    def empty(self) -> Family:
        """The same family without a sample."""
        return Family(self.name, self.words, self.kind)

    def of(self, process: str) -> Family:
        """The same with a label that says whose it is."""
        label = ("process", process)
        samples = {(name, (*labels, label)): value for (name, labels), value in self.samples.items()}
        return Family(self.name, self.words, self.kind, samples)

    def metric(self) -> Metric:
        """As the client library encodes it."""
        metric = Metric(self.name, self.words, self.kind)
        metric.samples = [Sample(name, dict(labels), value) for (name, labels), value in self.samples.items()]
        return metric


Reading = Mapping[str, Family]
"""What one process told at one time, by family."""


def read_exposition(text: str) -> Reading:
    """An exposition in Prometheus' text format."""
    return families_of(text_string_to_metric_families(text))


def families_of(metrics: Iterable[Metric]) -> Reading:
    """Families as the client library has them."""
    found: dict[str, Family] = {}
    for metric in metrics:
        samples = {(each.name, tuple(each.labels.items())): each.value for each in metric.samples}
        found[metric.name] = Family(metric.name, metric.documentation, metric.type, samples)
    return found


def rule_of(family: Family) -> Rule:
    """How this family is put together."""
    if family.name.startswith(OWN):
        return Rule.OWN
    if family.kind in CUMULATIVE or family.name in SUMMED_FACTS:
        return Rule.SUM
    if family.name in FACTS:
        return Rule.FACT
    labels = {label for _, held in family.samples for label, _ in held}
    return Rule.FACT if labels & FACT_LABELS else Rule.SUM


def merged(readings: Mapping[str, Reading], gone: Reading) -> Iterator[Metric]:
    """All families. `readings`: by process, in the order in which they are believed; `gone`: what others left."""
    whole: dict[str, Family] = {}
    for process, reading in readings.items():
        for name, family in reading.items():
            rule = rule_of(family)
            if rule is Rule.FACT and name in whole:
                continue
            target = whole.setdefault(name, family.empty())
            target.add(family.of(process) if rule is Rule.OWN else family)
    for name, family in gone.items():
        whole.setdefault(name, family.empty()).add(family)
    return (family.metric() for family in whole.values())


class Legacy:
    """What processes that have gone had counted by the last time they were asked."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def add(self, reading: Reading) -> None:
        """Keep the counts of a process that has gone."""
        for name, family in reading.items():
            if family.kind in CUMULATIVE and rule_of(family) is Rule.SUM:
                self.families.setdefault(name, family.empty()).add(family)


HERE = "supervisor"


class Counts:
    """What every child last told, and what those left that have gone."""

    def __init__(self) -> None:
        self._latest: dict[Child, Reading] = {}
        self._legacy = Legacy()

    def join(self, child: Child) -> None:
        """A child is at work."""
        self._latest[child] = {}

    def take(self, child: Child, reading: Reading) -> None:
        """A child has told its metrics. One that has gone meanwhile is counted already."""
        if child in self._latest:
            self._latest[child] = reading

    def leave(self, child: Child) -> None:
        """A child has gone: its counts stay."""
        self._legacy.add(self._latest.pop(child, {}))

    def merged(self, own: Reading) -> Iterator[Metric]:
        """All of it. A child that did not answer in time stands with what it told last."""
        by_name = sorted(self._latest.items(), key=lambda each: (len(each[0].name), each[0].name))
        return merged({child.name: reading for child, reading in by_name} | {HERE: own}, self._legacy.families)


class Merged(Collector):
    """One scrape's families."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class OfTeam(Collector):
    """What only the supervisor knows."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def collect(self) -> Iterator[Metric]:
        """Who is at work, and who had to be replaced."""
        yield GaugeMetricFamily("hearth_children", "Processes at work.", len(self._team.children))
        restarts = CounterMetricFamily("hearth_restarts", "Processes that were replaced.", labels=("process",))
        for seat in self._team.seats:
            restarts.add_metric((seat.name,), seat.restarts)
        yield restarts


def own_registry(team: Team) -> CollectorRegistry:
    """The supervisor's own metrics."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(OfTeam(team))
    return registry


def team_metrics_app(team: Team, counts: Counts, is_stopping: Callable[[], bool]) -> web.Application:
    """The application of the metrics port. Ready means that any worker is."""
    own = own_registry(team)

    async def metrics(request: web.Request) -> web.Response:
        await _scrape(team, counts)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = encode(Merged(counts.merged(families_of(own.collect()))))
        return web.Response(body=body, headers={"content-type": content_type})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        answers = {} if is_stopping() else await team.ask("/ready")
        if any(answer.status == 200 for answer in answers.values()):
            return web.Response(text="ready\n")
        return web.Response(text="not ready\n", status=503)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/health", health), web.get("/ready", ready)])
    return app


async def _scrape(team: Team, counts: Counts) -> None:
    """Ask all children; the parsing lets others in between."""
    children = team.children
    for child, answer in zip(
        children, await asyncio.gather(*(child.ask("/metrics") for child in children)), strict=True
    ):
        if answer is not None and answer.status == 200:
            counts.take(child, read_exposition(answer.body.decode()))
            await asyncio.sleep(0)

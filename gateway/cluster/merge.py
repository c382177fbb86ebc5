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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

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

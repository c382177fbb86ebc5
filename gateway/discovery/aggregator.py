"""Merges the pods of all sources into one fleet, and notes which sources answer but find none.

A pod that several sources list is one pod, and stays while any of them lists it. Where they disagree about a fact, the
source that comes first wins; `sources.py` defines the order. Pure: does no I/O, and time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from gateway.config.discovery import DiscoveredPod
from gateway.discovery.source import NodeSource, PodSource, ServerReport, ServerSource
from routing.facts import NO_FACTS, PodFacts
from routing.pod_record import NodeReading
from routing.pods import PodState


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """The last list of a source, and when it came."""

    pods: tuple[DiscoveredPod, ...]
    at_s: float


class PodAggregator:
    """The pods of all sources. Written by the watcher only."""

    def __init__(self, sources: Sequence[PodSource]) -> None:
        self.sources = list(sources)
        self.wanted: Mapping[str, DiscoveredPod] = {}
        """All pods there should be, by URL."""
        self._snapshots: dict[PodSource, SourceSnapshot] = {}

    def is_complete(self) -> bool:
        """Return whether every source has reported its pods at least once."""
        return all(source in self._snapshots for source in self.sources)

    def last_snapshot(self, source: PodSource) -> SourceSnapshot | None:
        """Return the last list of a source, None if it has never reported."""
        return self._snapshots.get(source)

    def nodes(self) -> dict[str, NodeReading]:
        """Return the last reading of each node that a source reports, by name."""
        return {
            name: reading
            for source in reversed(self.sources)
            if isinstance(source, NodeSource)
            for name, reading in source.nodes().items()
        }

    def servers(self) -> dict[str, ServerReport]:
        """Return the last report of each server that a source reports, by the URL of its pod."""
        return {
            url: report
            for source in reversed(self.sources)
            if isinstance(source, ServerSource)
            for url, report in source.servers().items()
        }

    def sources_by_pod(self) -> dict[str, list[str]]:
        """Return the names of the sources that list each pod now, by URL, highest precedence first."""
        names: dict[str, list[str]] = {}
        for source in self.sources:
            for pod in self._pods_of(source):
                names.setdefault(pod.url, []).append(source.name)
        return names

    def update(self, source: PodSource, found: tuple[DiscoveredPod, ...], now_s: float) -> bool:
        """Replace the last list of a source. Returns whether it differs."""
        before, self._snapshots[source] = self._snapshots.get(source), SourceSnapshot(found, now_s)
        if before is not None and before.pods == found:
            return False
        self.wanted = merge_pods(self._pods_of(each) for each in self.sources)
        return True

    def replace(self, old: PodSource, new: PodSource) -> None:
        """Replace a source; the list of the old one is kept until the new one reports."""
        self.sources[self.sources.index(old)] = new
        if (snapshot := self._snapshots.pop(old, None)) is not None:
            self._snapshots[new] = snapshot

    def _pods_of(self, source: PodSource) -> tuple[DiscoveredPod, ...]:
        snapshot = self._snapshots.get(source)
        return snapshot.pods if snapshot else ()


def merge_pods(lists: Iterable[Iterable[DiscoveredPod]]) -> dict[str, DiscoveredPod]:
    """Merge lists of pods by URL; earlier lists take precedence."""
    pods: dict[str, DiscoveredPod] = {}
    for found in lists:
        for pod in found:
            known = pods.get(pod.url)
            pods[pod.url] = pod if known is None else _merge_pod(known, pod)
    return pods


def _merge_pod(believed: DiscoveredPod, other: DiscoveredPod) -> DiscoveredPod:
    if believed == other:
        return believed
    return DiscoveredPod(
        believed.url,
        pool=believed.pool or other.pool,
        facts=merge_facts(believed.facts, other.facts),
        takes_priority=believed.takes_priority or other.takes_priority,
        held=PodState.DRAINING if PodState.DRAINING in (believed.held, other.held) else believed.held or other.held,
    )


def merge_facts(believed: PodFacts, other: PodFacts) -> PodFacts:
    """Return each fact of `believed` that is set, and all others of `other`."""
    known_facts = {each.name: getattr(believed, each.name) for each in fields(PodFacts)}
    return replace(other, **{name: value for name, value in known_facts.items() if value != getattr(NO_FACTS, name)})


EMPTY_HINTS: Mapping[str, str] = {
    "dns": "the name has no records: check name, port (without one SRV records are asked for) and search domain; "
    "a headless Kubernetes service lists ready pods only",
    "kubernetes": "nothing matches: check namespace, selector, service or inference_pools",
    "redis": "no agent has registered a pod there: check that `hearth agent` runs beside the engines, and its Redis",
    "file": "the file lists no pods",
}
"""What to check when a source finds no pods, by its kind: its name up to the first colon."""


DEFAULT_EMPTY_HINT = "check what it is asked for"


class EmptySources:
    """The sources whose last answer was empty."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def hint_for(self, name: str, *, is_empty: bool) -> str:
        """Return what to check if a source has just become empty; otherwise an empty text."""
        if not is_empty:
            self._names.discard(name)
            return ""
        if name in self._names:
            return ""
        self._names.add(name)
        return EMPTY_HINTS.get(name.partition(":")[0], DEFAULT_EMPTY_HINT)

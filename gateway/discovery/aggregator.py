"""Merges the pods of all sources into one fleet, and notes which sources answer but find none.

A pod that several sources list is one pod, and stays while any of them lists it. Where they disagree about a fact, the
source that comes first wins; `sources.py` defines the order. Pure: does no I/O, and time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from gateway.config.discovery import Found
from gateway.discovery.source import Source
from routing.facts import NO_FACTS, PodFacts
from routing.pods import Standing


@dataclass(frozen=True, slots=True)
class Told:
    """The last list of a source, and when it came."""

    found: tuple[Found, ...]
    at_s: float


class Census:
    """The pods of all sources. Written by the watcher only."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        self.wanted: Mapping[str, Found] = {}
        """All pods there should be, by URL."""
        self._snapshots: dict[Source, Told] = {}

    def is_whole(self) -> bool:
        """Return whether every source has reported its pods at least once."""
        return all(source in self._snapshots for source in self.sources)

    def last_word(self, source: Source) -> Told | None:
        """Return the last list of a source, None if it has never reported."""
        return self._snapshots.get(source)

    def named_by(self) -> dict[str, list[str]]:
        """Return the names of the sources that list each pod now, by URL, highest precedence first."""
        names: dict[str, list[str]] = {}
        for source in self.sources:
            for pod in self._pods_of(source):
                names.setdefault(pod.url, []).append(source.name)
        return names

    def take(self, source: Source, found: tuple[Found, ...], now_s: float) -> bool:
        """Replace the last list of a source. Returns whether it differs."""
        before, self._snapshots[source] = self._snapshots.get(source), Told(found, now_s)
        if before is not None and before.found == found:
            return False
        self.wanted = merged(self._pods_of(each) for each in self.sources)
        return True

    def replace(self, old: Source, new: Source) -> None:
        """Replace a source; the list of the old one is kept until the new one reports."""
        self.sources[self.sources.index(old)] = new
        if (snapshot := self._snapshots.pop(old, None)) is not None:
            self._snapshots[new] = snapshot

    def _pods_of(self, source: Source) -> tuple[Found, ...]:
        snapshot = self._snapshots.get(source)
        return snapshot.found if snapshot else ()


def merged(lists: Iterable[Iterable[Found]]) -> dict[str, Found]:
    """Merge lists of pods by URL; earlier lists take precedence."""
    pods: dict[str, Found] = {}
    for found in lists:
        for pod in found:
            known = pods.get(pod.url)
            pods[pod.url] = pod if known is None else _merge_pod(known, pod)
    return pods


def _merge_pod(believed: Found, other: Found) -> Found:
    if believed == other:
        return believed
    return Found(
        believed.url,
        pool=believed.pool or other.pool,
        facts=facts_over(believed.facts, other.facts),
        takes_priority=believed.takes_priority or other.takes_priority,
        held=Standing.DRAINING if Standing.DRAINING in (believed.held, other.held) else believed.held or other.held,
    )


def facts_over(believed: PodFacts, other: PodFacts) -> PodFacts:
    """Return each fact of `believed` that is set, and all others of `other`."""
    known_facts = {each.name: getattr(believed, each.name) for each in fields(PodFacts)}
    return replace(other, **{name: value for name, value in known_facts.items() if value != getattr(NO_FACTS, name)})


FIXES: Mapping[str, str] = {
    "dns": "the name has no records: check name, port (without one SRV records are asked for) and search domain; "
    "a headless Kubernetes service lists ready pods only",
    "kubernetes": "nothing matches: check namespace, selector, service or inference_pools",
    "redis": "no agent has registered a pod there: check that `hearth agent` runs beside the engines, and its Redis",
    "file": "the file lists no pods",
}
"""What to check when a source finds no pods, by its kind: its name up to the first colon."""


USUAL_FIX = "check what it is asked for"


class EmptySources:
    """The sources whose last answer was empty."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def fix_for(self, name: str, *, is_empty: bool) -> str:
        """Return what to check if a source has just become empty; otherwise an empty text."""
        if not is_empty:
            self._names.discard(name)
            return ""
        if name in self._names:
            return ""
        self._names.add(name)
        return FIXES.get(name.partition(":")[0], USUAL_FIX)

"""The facts as recipes read them: stale groups removed, pods by pool, peers and normal levels. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from diagnosis.baseline import Baseline
from diagnosis.facts import MAX_WINDOW_AGE_S, EngineWindow, FleetFacts, PodObservation, is_recent
from diagnosis.levels import LEVELS, Figure, level_key, pod_figure
from routing.facts import Role

T = TypeVar("T")

MAX_HARDWARE_AGE_S = 900.0
"""Age at which facts of hardware count as missing; the next: of what a pod was started with."""
MAX_DECLARED_AGE_S = 3600.0

SETTLED_S = 60.0
"""A pod that became ready more recently is not compared with its peers: its caches are empty."""


PodFigure = Callable[[PodObservation], float | None]


@dataclass(frozen=True, slots=True)
class _Group:
    """A figure of several pods by address, and its values in order."""

    values: dict[str, float]
    ordered: list[float]

    def median_without(self, address: str) -> float | None:
        """Return the median of all values but that of one pod; None without others."""
        own = self.values.get(address)
        count = len(self.ordered) - (own is not None)
        if count <= 0:
            return None
        gap = len(self.ordered) if own is None else bisect_left(self.ordered, own)
        low, high = (count - 1) // 2, count // 2
        return (self.ordered[low + (low >= gap)] + self.ordered[high + (high >= gap)]) / 2


def _present(pod: PodObservation) -> float:
    return float(bool(pod.address))


class Scene:
    """One look at the fleet."""

    def __init__(self, facts: FleetFacts, baseline: Baseline | None, now_s: float) -> None:
        self.facts = fresh(facts, now_s)
        self.baseline = baseline
        self.now_s = now_s
        self.pools: dict[str, list[PodObservation]] = {}
        for pod in self.facts.pods:
            self.pools.setdefault(pod.pool, []).append(pod)
        self._groups: dict[tuple[str, Role, Figure | PodFigure], _Group] = {}

    def engines(self) -> Iterator[tuple[PodObservation, EngineWindow]]:
        """Yield each engine with its pod."""
        for pod in self.facts.pods:
            for engine in pod.engines:
                yield pod, engine

    def is_settled(self, pod: PodObservation, seconds: float = SETTLED_S) -> bool:
        """Return whether a pod has been ready for so long, and its engines were not restarted within the window."""
        since = pod.ready_since_s
        is_old = since is None or self.now_s - since >= seconds
        return is_old and not any(engine.is_restarted for engine in pod.engines)

    def has_peers(self, pod: PodObservation) -> bool:
        """Return whether there are other settled pods of the same pool and role."""
        return self.peer_median_of(pod, _present) is not None

    def peer_median(self, pod: PodObservation, figure: Figure) -> float | None:
        """Return the median of a figure over the peers of a pod; None where none has it."""
        return self._group(pod, figure, lambda peer: pod_figure(peer, figure)).median_without(pod.address)

    def peer_median_of(self, pod: PodObservation, read: PodFigure) -> float | None:
        """Return the same of a figure of pods."""
        return self._group(pod, read, read).median_without(pod.address)

    def _group(self, pod: PodObservation, figure: Figure | PodFigure, read: PodFigure) -> _Group:
        """Return a figure of all settled pods of a pool and role; computed once a look."""
        key = (pod.pool, pod.role, figure)
        group = self._groups.get(key)
        if group is None:
            alike = (each for each in self.pools[pod.pool] if each.role is pod.role and self.is_settled(each))
            values = {each.address: value for each in alike if (value := read(each)) is not None}
            group = self._groups[key] = _Group(values, sorted(values.values()))
        return group

    def normal(self, pod: PodObservation, name: str) -> float | None:
        """Return the baseline's value of one of `LEVELS` for the pod's pool and role."""
        return None if self.baseline is None else self.baseline.level(level_key(pod), name, self.now_s)

    def reference(self, pod: PodObservation, name: str) -> tuple[float, str] | None:
        """Return what a pod's figure is compared with, and its basis: the baseline, else the peers."""
        if (value := self.normal(pod, name)) is not None:
            return value, "baseline"
        if (value := self.peer_median(pod, LEVELS[name])) is not None:
            return value, "peers"
        return None


def fresh(facts: FleetFacts, now_s: float) -> FleetFacts:
    """Return the facts without the groups that are too old or too short to judge by."""

    def pod_of(pod: PodObservation) -> PodObservation:
        view = pod.requests
        return replace(
            pod,
            engines=tuple(each for each in pod.engines if is_recent(each.start_s, each.end_s, now_s)),
            requests=view if view is not None and is_recent(view.start_s, view.end_s, now_s) else None,
            flags=_if(pod.flags, lambda held: now_s - held.read_at_s <= MAX_DECLARED_AGE_S),
            build=_if(pod.build, lambda held: now_s - held.read_at_s <= MAX_DECLARED_AGE_S),
            environment=_if(pod.environment, lambda held: now_s - held.read_at_s <= MAX_DECLARED_AGE_S),
            hardware=_if(pod.hardware, lambda held: now_s - held.read_at_s <= MAX_HARDWARE_AGE_S),
        )

    clocks = facts.clocks_read_at_s
    has_clocks = clocks is not None and now_s - clocks <= MAX_HARDWARE_AGE_S
    return replace(
        facts,
        pods=tuple(pod_of(pod) for pod in facts.pods),
        gateways=tuple(each for each in facts.gateways if is_recent(each.start_s, each.end_s, now_s)),
        clock_offsets_s=facts.clock_offsets_s if has_clocks else {},
        times={key: each for key, each in facts.times.items() if now_s - each.end_s <= 2 * MAX_WINDOW_AGE_S},
    )


def _if(value: T | None, test: Callable[[T], bool]) -> T | None:
    return value if value is not None and test(value) else None

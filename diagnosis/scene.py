"""The facts as recipes read them: stale groups removed, pods by pool, peers and normal levels. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from diagnosis.baseline import Baseline
from diagnosis.facts import EngineWindow, FleetFacts, PodObservation
from diagnosis.levels import LEVELS, Figure, level_key, median_of, pod_figure

T = TypeVar("T")

MAX_WINDOW_AGE_S = 45.0
"""Age at which a window's figures count as missing; the next two: of hardware, and of what a pod was started with."""
MAX_HARDWARE_AGE_S = 900.0
MAX_DECLARED_AGE_S = 3600.0

MIN_WINDOW_S = 9.0
"""Length of a window below which it counts as missing."""

SETTLED_S = 60.0
"""A pod that became ready more recently is not compared with its peers: its caches are empty."""


class Scene:
    """One look at the fleet."""

    def __init__(self, facts: FleetFacts, baseline: Baseline | None, now_s: float) -> None:
        self.facts = fresh(facts, now_s)
        self.baseline = baseline
        self.now_s = now_s
        self.pools: dict[str, list[PodObservation]] = {}
        for pod in self.facts.pods:
            self.pools.setdefault(pod.pool, []).append(pod)

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

    def peers(self, pod: PodObservation) -> list[PodObservation]:
        """Return the other settled pods of the same pool and role."""
        return [
            other
            for other in self.pools[pod.pool]
            if other.role is pod.role and other.address != pod.address and self.is_settled(other)
        ]

    def peer_median(self, pod: PodObservation, figure: Figure) -> float | None:
        """Return the median of a figure over the peers of a pod; None where none has it."""
        return median_of(value for peer in self.peers(pod) if (value := pod_figure(peer, figure)) is not None)

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

    def is_recent(start_s: float, end_s: float) -> bool:
        return now_s - end_s <= MAX_WINDOW_AGE_S and end_s - start_s >= MIN_WINDOW_S

    def pod_of(pod: PodObservation) -> PodObservation:
        view = pod.requests
        return replace(
            pod,
            engines=tuple(each for each in pod.engines if is_recent(each.start_s, each.end_s)),
            requests=view if view is not None and is_recent(view.start_s, view.end_s) else None,
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
        gateways=tuple(each for each in facts.gateways if is_recent(each.start_s, each.end_s)),
        clock_offsets_s=facts.clock_offsets_s if has_clocks else {},
        times={key: each for key, each in facts.times.items() if now_s - each.end_s <= 2 * MAX_WINDOW_AGE_S},
    )


def _if(value: T | None, test: Callable[[T], bool]) -> T | None:
    return value if value is not None and test(value) else None

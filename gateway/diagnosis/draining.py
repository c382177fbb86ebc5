"""Drains pods for their findings, where the configuration allows it, and undoes it when the evidence is gone.

The rule is `diagnosis/draining.py`: one pod or a tenth of a pool, never below what its load needs, nothing for a fault
of the pool. A drain of this kind stands beside an operator's: undoing one leaves the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import ceil
from typing import Protocol

from diagnosis.draining import BoundPods, DrainPolicy, drainable
from diagnosis.facts import FleetFacts, PodObservation
from diagnosis.finding import Diagnosis
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import restarted
from routing.facts import Role

MAX_KV_SHARE = 0.7
"""Part of the remaining pods' KV caches that the pool's running requests may take after a drain."""

MAX_SEQUENCE_SHARE = 0.8
"""The same of the sequences that they run at a time."""


KEY = "hearth:finding_drains"
"""In Redis: findings by URL of the pods that are drained for them, with the lease of the gateway that decides."""

INTERVAL_S = 1.0
"""Between two renewals of the lease."""

MIN_LOOKS = 12
"""Looks of a gateway before it may decide for all: a new one has no evidence yet, and would end drains that last."""

LOOK_AGE_S = 30.0
"""Age of its last look at which a gateway decides no more, and leaves the lease to another."""

KEPT_S = 30.0
"""How long drains last that are not confirmed, because Redis or all deciding gateways are gone."""

QUIET_S = 40.0
"""After a drain was undone, or another gateway decides, before a pod is drained: more than `KEPT_S`, so that no gateway
still holds what was undone.
"""


class DrainLease(Protocol):
    """The right to decide for all gateways, and what is decided: findings by URL (`gateway/roles/redis_lease.py`)."""

    @property
    def is_held(self) -> bool:
        """Whether this gateway decides."""
        ...

    async def exchange(self, roles: Mapping[str, str], /) -> Mapping[str, str] | None:
        """Propose what is drained; return what is active then, None where that is not known."""
        ...

    async def read(self) -> Mapping[str, str] | None:
        """Return what is active; None where that is not known."""
        ...


class FindingDrains:
    """One per gateway with `doctor.mode: act`.

    With a lease one gateway decides for all that share a Redis, and each drains exactly what is stored there: the limit
    of a pool holds for all of them together. Without one each decides for itself.
    """

    def __init__(
        self,
        recipes: frozenset[str],
        log_event: LogFunction,
        *,
        clock: Callable[[], float],
        lease: DrainLease | None = None,
        residencies: Callable[[], Collection[frozenset[str]]] = tuple,
    ) -> None:
        """`clock` returns seconds of loop time, `residencies` the sets of regions that requests are bound to."""
        self.on_change: Callable[[], object] = lambda: None
        """Called when what is drained has changed outside of a look."""
        self._recipes = recipes
        self._log_event = log_event
        self._clock = clock
        self._lease = lease
        self._residencies = residencies
        self._drained: dict[str, str] = {}
        """Active: the finding by URL. The next: what this gateway proposes."""
        self._wanted: dict[str, str] = {}
        self._pools: dict[str, str] = {}
        """Pool of each pod at the last look."""
        self._looks = 0
        self._looked_s = self._confirmed_s = clock()
        self._quiet_until_s = 0.0
        self._was_held = False

    @property
    def held(self) -> frozenset[str]:
        """URLs of the pods that are drained for their findings."""
        return frozenset(self._drained)

    def drained(self) -> Iterator[tuple[str, str]]:
        """Yield pool and URL of each pod that is drained for its finding."""
        return ((self._pools.get(url, ""), url) for url in self._drained)

    def update(self, facts: FleetFacts, diagnosis: Diagnosis) -> frozenset[str]:
        """Take a look. Returns the pods that are drained now; those that no longer are, are undrained. Both are logged.

        With a lease the look is decided on here and stored by `exchange`.
        """
        self._pools = {pod.address: pod.pool for pod in facts.pods}
        self._looks += 1
        self._looked_s = self._clock()
        before = {url: self._pools[url] for url in self._drained if url in self._pools}
        if self._lease is not None and not self._lease.is_held:
            self._wanted = {url: self._drained[url] for url in before}
            return self.held
        bound = bound_pods(facts, before, self._residencies())
        policy = DrainPolicy(self._recipes, needed_pods(facts, before), bound)
        plan = drainable(diagnosis.findings, facts, policy, before)
        self._wanted = {url: self._drained.get(url) or self._cause(url, diagnosis) for url in plan.drained}
        if self._lease is None:
            self._set(self._wanted)
            return self.held
        if plan.restored:
            self._quiet_until_s = self._clock() + QUIET_S
        if self._clock() < self._quiet_until_s:
            self._wanted = {url: finding for url, finding in self._wanted.items() if url in before}
        return self.held

    @restarted("finding drains")
    async def run(self) -> None:
        """Renew the lease, or follow the gateway that has it, every second until cancelled."""
        while True:
            await self.exchange()
            await asyncio.sleep(INTERVAL_S)

    async def exchange(self) -> None:
        """Store or read once what is drained. What is not confirmed for `KEPT_S` ends."""
        if self._lease is None:
            return
        is_candidate = self._looks >= MIN_LOOKS and self._clock() - self._looked_s <= LOOK_AGE_S
        stored = await (self._lease.exchange(self._wanted) if is_candidate else self._lease.read())
        if is_candidate and self._lease.is_held and not self._was_held:
            self._quiet_until_s = self._clock() + QUIET_S
        self._was_held = is_candidate and self._lease.is_held
        if stored is not None:
            self._confirmed_s = self._clock()
        elif self._clock() - self._confirmed_s < KEPT_S:
            return
        if self._set(stored or {}):
            self.on_change()

    def _set(self, drained: Mapping[str, str]) -> bool:
        """Activate this, and log what has changed. Returns whether anything has."""
        before, self._drained = self._drained, dict(drained)
        for url in self._drained.keys() - before.keys():
            self._log_event("warning", "finding_pod_drained", upstream=url, finding=self._drained[url])
        for url in (before.keys() - self._drained.keys()) & self._pools.keys():  # Others were removed, not undrained.
            self._log_event("warning", "finding_pod_undrained", upstream=url)
        if not self._was_held:
            self._wanted = dict(drained)
        return before.keys() != self._drained.keys()

    def _cause(self, url: str, diagnosis: Diagnosis) -> str:
        """Return the recipe of the first finding for which the pod may be drained."""
        named = (each.recipe for each in diagnosis.findings if url in each.pods and each.recipe in self._recipes)
        return next(named, "")


def needed_pods(facts: FleetFacts, drained: Mapping[str, str]) -> dict[str, int]:
    """Return how many ready pods the load of each pool needs, at least 1: all of them while requests wait there."""
    pools: dict[str, list[PodObservation]] = {}
    for pod in _in_use(facts, drained):
        pools.setdefault(pod.pool, []).append(pod)
    return {pool: _needed(pods) for pool, pods in pools.items()}


def bound_pods(
    facts: FleetFacts, drained: Mapping[str, str], residencies: Collection[frozenset[str]]
) -> tuple[BoundPods, ...]:
    """Return the parts of pools that some requests cannot leave: a model and role there, all of it or by residency.

    All of a part's load counts as bound to it: what the other requests are of it is not known.
    """
    parts: dict[tuple[str, str, Role], list[PodObservation]] = {}
    for pod in _in_use(facts, drained):
        parts.setdefault((pod.pool, pod.model, pod.role), []).append(pod)
    found = {
        frozenset(pod.address for pod in part): _needed(part)
        for pods in parts.values()
        for part in (pods, *([pod for pod in pods if pod.region in regions] for regions in residencies))
        if part
    }
    return tuple(BoundPods(pods, needed) for pods, needed in found.items())


def _in_use(facts: FleetFacts, drained: Mapping[str, str]) -> Iterable[PodObservation]:
    return (pod for pod in facts.pods if pod.is_ready or pod.address in drained)


def _needed(pods: list[PodObservation]) -> int:
    engines = [engine for pod in pods for engine in pod.engines]
    if any(engine.waiting is not None and engine.waiting.mean >= 1.0 for engine in engines):
        return len(pods)
    kv_share = sum(
        engine.kv_usage.peak / max(1, len(pod.engines)) for pod in pods for engine in pod.engines if engine.kv_usage
    )
    places = [pod.flags.max_num_seqs for pod in pods if pod.flags is not None and pod.flags.max_num_seqs]
    running = sum(engine.running.peak for engine in engines if engine.running is not None)
    by_sequences = running / (MAX_SEQUENCE_SHARE * min(places)) if places else 0.0
    return max(1, ceil(kv_share / MAX_KV_SHARE), ceil(by_sequences))

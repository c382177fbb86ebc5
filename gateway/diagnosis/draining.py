"""Drains pods for their findings, where the configuration allows it, and undoes it when the evidence is gone.

The rule is `diagnosis/draining.py`: one pod or a tenth of a pool, never below what its load needs, nothing for a fault
of the pool. A drain of this kind stands beside an operator's: undoing one leaves the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from diagnosis.draining import DrainPlan, DrainPolicy, drainable
from diagnosis.facts import FleetFacts, PodObservation
from diagnosis.finding import Diagnosis
from gateway.runtime.event_log import LogFunction

MAX_KV_SHARE = 0.7
"""Part of the remaining pods' KV caches that the pool's running requests may take after a drain."""

MAX_SEQUENCE_SHARE = 0.8
"""The same of the sequences that they run at a time."""


class FindingDrains:
    """One per gateway with `doctor.mode: act`."""

    def __init__(self, recipes: frozenset[str], log_event: LogFunction) -> None:
        self._recipes = recipes
        self._log_event = log_event
        self._pools: dict[str, str] = {}
        """Pool of each drained pod, by URL."""

    def drained(self) -> Iterator[tuple[str, str]]:
        """Yield pool and URL of each pod that is drained for its finding."""
        return ((pool, url) for url, pool in self._pools.items())

    def update(self, facts: FleetFacts, diagnosis: Diagnosis) -> frozenset[str]:
        """Return the pods that are to be drained now; those that no longer are, are undrained. Both are logged."""
        present = {pod.address: pod for pod in facts.pods}
        before = {url: pool for url, pool in self._pools.items() if url in present}
        policy = DrainPolicy(self._recipes, needed_pods(facts, before))
        plan = drainable(diagnosis.findings, facts, policy, before)
        self._pools = {url: present[url].pool for url in plan.drained}
        self._log_changes(before, plan, diagnosis)
        return frozenset(self._pools)

    def _log_changes(self, before: Mapping[str, str], plan: DrainPlan, diagnosis: Diagnosis) -> None:
        for url in plan.drained:
            if url not in before:
                cause = next((finding.recipe for finding in diagnosis.findings if url in finding.pods), "")
                self._log_event("warning", "finding_pod_drained", upstream=url, finding=cause)
        for url in plan.restored:
            self._log_event("warning", "finding_pod_undrained", upstream=url)


def needed_pods(facts: FleetFacts, drained: Mapping[str, str]) -> dict[str, int]:
    """Return how many ready pods the load of each pool needs, at least 1: all of them while requests wait there."""
    pools: dict[str, list[PodObservation]] = {}
    for pod in facts.pods:
        if pod.is_ready or pod.address in drained:
            pools.setdefault(pod.pool, []).append(pod)
    return {pool: _needed(pods) for pool, pods in pools.items()}


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

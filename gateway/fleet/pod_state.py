"""One pod as the watcher sees it: what its probes and requests have shown, its standing, and what the router is given.

Decides and sends nothing. Time is an argument.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from gateway.config.discovery import DiscoveredPod
from gateway.config.models import ModelEntry
from gateway.fleet.breaker import CircuitBreaker
from gateway.fleet.probe import ModelListing, ProbeResult
from gateway.fleet.scrape import MetricsPage
from routing.facts import PodFacts
from routing.pods import EngineShape, ModelCard, Pod, PodState

MAX_SILENT_PROBES = 3
"""Probes in a row without a response after which a pod counts as dead: one may be lost to a long pause."""

MODELS_UNREADABLE = "models_unreadable"
"""Reason of the last error of a pod that is healthy but does not list its models."""


@dataclass(slots=True)
class WatchedPod:
    """State of one pod. Mutable; written by the watcher only."""

    discovered: DiscoveredPod
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    is_drained: bool = False
    is_held_for_finding: bool = False
    """Drained by the doctor, beside an operator's drain."""
    needs_warmup: bool = True
    """Whether its cache is empty since its start, so that it may be warmed before it takes load."""
    is_warming: bool = False
    """Whether it is kept from requests until its warm-up has ended."""
    is_hung: bool = False
    """Its engine hangs, whatever its server reports; until it generates a token."""
    health: ProbeResult | None = None
    """Result of the last probe, None before the first."""
    was_healthy: bool = False
    """Whether any probe has succeeded."""
    was_gone: bool = False
    """Whether nothing listened there since its last successful probe: it has then lost its cache."""
    was_probed: bool = False
    """Whether health, models and metrics were all requested once."""
    silent_probes: int = 0
    first_probe_s: float | None = None
    """Time of its first probe."""
    is_reported_dead: bool = False
    cards: tuple[ModelCard, ...] | None = None
    problem: str = ""
    """Why it is not used though its probes succeed."""
    last_error: str | None = None
    """How its last failed probe, or the last attempt that failed there, ended; None before any."""
    failed_s: float = -inf
    """Time of that error."""
    metrics: MetricsPage | None = None
    probed_s: float = -inf
    listed_s: float = -inf
    scraped_s: float = -inf
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self.discovered.url

    def standing(self) -> PodState:
        """Return its standing, from all that is known."""
        if self.is_drained or self.is_held_for_finding or self.discovered.held is PodState.DRAINING:
            return PodState.DRAINING
        if not self.was_healthy or self.cards is None:
            return PodState.STARTING
        # One probe without a response changes nothing: a busy pod may be late, and requests show more than probes.
        looks_well = self.health in (ProbeResult.HEALTHY, ProbeResult.NO_RESPONSE)
        if self.is_hung or (self.breaker.is_open and (self.breaker.is_unreachable or not looks_well)):
            return PodState.OPEN_CIRCUIT
        if self.health is ProbeResult.NOT_READY or self.discovered.held is PodState.UNREADY:
            return PodState.UNREADY
        if self.breaker.is_open:
            return PodState.SUSPECT
        return PodState.WARMING if self.is_warming else PodState.READY

    def apply_health(self, health: ProbeResult, now_s: float) -> None:
        """Apply the result of a probe."""
        self.health, self.probed_s = health, now_s
        self.first_probe_s = now_s if self.first_probe_s is None else self.first_probe_s
        match health:
            case ProbeResult.HEALTHY:
                self.was_healthy, self.silent_probes = True, 0
                self.breaker = self.breaker.on_healthy_probe(now_s)
            case ProbeResult.NOT_READY:
                self.silent_probes = 0
            case ProbeResult.UNREACHABLE:
                self.was_gone, self.is_hung = self.was_healthy, False
                self.breaker = self.breaker.on_unreachable(now_s) if self.was_healthy else self.breaker
            case ProbeResult.NO_RESPONSE:
                self.silent_probes += 1
                if self.silent_probes >= MAX_SILENT_PROBES and self.was_healthy:
                    self.breaker = self.breaker.on_unreachable(now_s)
        if health is not ProbeResult.HEALTHY:
            self.note_error(health.value, now_s)
            # Its models and metrics may be of a previous start: request them again before it is used.
            self.listed_s = self.scraped_s = -inf

    def note_error(self, reason: str, now_s: float) -> None:
        """Note how a probe or an attempt failed."""
        self.last_error, self.failed_s = reason, now_s

    def was_never_healthy(self, now_s: float, after_s: float) -> bool:
        """Return whether no probe succeeded for `after_s` seconds since the first one. Pods that their source reports
        as not ready are expected to fail.
        """
        if self.was_healthy or self.discovered.held is not None or self.first_probe_s is None:
            return False
        return now_s - self.first_probe_s >= after_s

    def should_report_dead(self, now_s: float, after_s: float) -> bool:
        """Return True once, when it was never healthy for `after_s` seconds."""
        if self.is_reported_dead:
            return False
        self.is_reported_dead = self.was_never_healthy(now_s, after_s)
        return self.is_reported_dead

    def mark_hung(self, now_s: float) -> None:
        """Note that its engine hangs."""
        self.is_hung = True
        self.breaker = self.breaker.on_unreachable(now_s)

    def apply_models(self, listing: ModelListing, now_s: float) -> None:
        """Apply its list of models; a response that is none keeps the last list."""
        self.problem = listing.problem
        if listing.problem:
            self.note_error(MODELS_UNREADABLE, now_s)
        if listing.cards is not None:
            self.cards, self.listed_s = listing.cards, now_s

    def apply_metrics(self, page: MetricsPage | None, now_s: float) -> bool:
        """Apply its metrics. Returns whether they, or its absence, show that it has lost its cache."""
        before, was_gone = self.metrics, self.was_gone
        self.scraped_s, self.was_gone = now_s, False
        if page is not None:
            self.metrics = page
        if page is None or page.started_s is None or before is None or before.started_s is None:
            return was_gone or _fell(before, page)
        return abs(page.started_s - before.started_s) > 0.5 or _fell(before, page)

    def shapes(self) -> tuple[EngineShape, ...]:
        """Return its engines as its metrics show them; empty if they show none."""
        readings = self.metrics.engines if self.metrics else {}
        is_single = len(readings) == 1
        return tuple(
            EngineShape(
                rank=None if is_single else rank,
                role=self.discovered.facts.effective_role,
                kv_tokens=reading.kv_capacity_tokens,
                block_tokens=reading.block_tokens,
            )
            for rank, reading in readings.items()
        )


def _fell(before: MetricsPage | None, page: MetricsPage | None) -> bool:
    """Return whether a counter is lower than before."""
    if before is None or page is None:
        return False
    return any(
        (reading.prompt_tokens or 0.0) > (page.engines[rank].prompt_tokens or 0.0)
        for rank, reading in before.engines.items()
        if rank in page.engines
    )


def updated_pod(known: Pod, pod: WatchedPod, models: Mapping[str, ModelEntry]) -> Pod:
    """Return the router's pod `known`, brought up to date with its state and `model_list`."""
    cards = tuple(card for card in pod.cards or () if _may_serve(pod.discovered, models.get(card.name)))
    entries = [models[card.name] for card in cards if card.name in models]
    return replace(
        known,
        state=pod.standing(),
        models=frozenset(card.name for card in cards),
        adapters=frozenset(card.name for card in cards if card.parent is not None),
        cards=cards,
        has_reported_models=pod.cards is not None,
        pool=pod.discovered.pool,
        region=pod.discovered.region,
        facts=_facts(pod.discovered.facts, entries),
        takes_priority=pod.discovered.takes_priority or any(entry.takes_priority for entry in entries),
    )


def _may_serve(found: DiscoveredPod, entry: ModelEntry | None) -> bool:
    if entry is None:
        return True
    is_named = entry.pods is None or found.url in entry.pods
    return is_named and entry.inference_pool in (None, found.pool)


def _facts(facts: PodFacts, entries: Sequence[ModelEntry]) -> PodFacts:
    """Return the facts of the pod, completed by those of the models that it serves."""
    if facts.kv_connector is not None:
        return facts
    connector = next((entry.kv_connector for entry in entries if entry.kv_connector), None)
    return facts if connector is None else replace(facts, kv_connector=connector)

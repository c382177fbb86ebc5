"""One pod as the watcher sees it: what its probes and requests have shown, its standing, and what the router is given.

Decides and sends nothing. Time is an argument.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from gateway.config.models import ModelEntry
from gateway.discovery.source import Found
from gateway.fleet.breaker import Breaker
from gateway.fleet.probe import Health, Listing
from gateway.fleet.scrape import Page
from routing.facts import PodFacts
from routing.pods import EngineShape, ModelCard, Pod, Standing

SILENCES = 3
"""Probes in a row without a response after which a pod counts as dead: one may be lost to a long pause."""


@dataclass(slots=True)
class WatchedPod:
    """State of one pod. Mutable; written by the watcher only."""

    found: Found
    breaker: Breaker = field(default_factory=Breaker)
    is_drained: bool = False
    is_hung: bool = False
    """Its engine hangs, whatever its server reports; until it generates a token."""
    health: Health | None = None
    """Result of the last probe, None before the first."""
    was_well: bool = False
    """Whether any probe has succeeded."""
    was_gone: bool = False
    """Whether nothing listened there since its last successful probe: it has then lost its cache."""
    was_looked_at: bool = False
    """Whether health, models and metrics were all requested once."""
    silences: int = 0
    since_s: float | None = None
    """Time of its first probe."""
    is_reported_dead: bool = False
    cards: tuple[ModelCard, ...] | None = None
    trouble: str = ""
    """Why it is not used though its probes succeed."""
    page: Page | None = None
    looked_s: float = -inf
    listed_s: float = -inf
    scraped_s: float = -inf
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self.found.url

    def standing(self) -> Standing:
        """Return its standing, from all that is known."""
        if self.is_drained or self.found.held is Standing.DRAINING:
            return Standing.DRAINING
        if not self.was_well or self.cards is None:
            return Standing.STARTING
        # One probe without a response changes nothing: a busy pod may be late, and requests show more than probes.
        looks_well = self.health in (Health.WELL, Health.SILENT)
        if self.is_hung or (self.breaker.is_open and (self.breaker.is_certain or not looks_well)):
            return Standing.BROKEN
        if self.health is Health.NOT_READY or self.found.held is Standing.UNREADY:
            return Standing.UNREADY
        return Standing.DOUBTED if self.breaker.is_open else Standing.READY

    def take_health(self, health: Health, now_s: float) -> None:
        """Apply the result of a probe."""
        self.health, self.looked_s = health, now_s
        self.since_s = now_s if self.since_s is None else self.since_s
        match health:
            case Health.WELL:
                self.was_well, self.silences = True, 0
                self.breaker = self.breaker.probed(now_s)
            case Health.NOT_READY:
                self.silences = 0
            case Health.GONE:
                self.was_gone, self.is_hung = self.was_well, False
                self.breaker = self.breaker.tripped(now_s) if self.was_well else self.breaker
            case Health.SILENT:
                self.silences += 1
                if self.silences >= SILENCES and self.was_well:
                    self.breaker = self.breaker.tripped(now_s)
        if health is not Health.WELL:
            # Its models and metrics may be of a previous start: request them again before it is used.
            self.listed_s = self.scraped_s = -inf

    def is_news_that_dead(self, now_s: float, after_s: float) -> bool:
        """Return True once, when no probe succeeded for `after_s` seconds since the first one. Pods that their source
        reports as not ready are expected to fail.
        """
        if self.was_well or self.is_reported_dead or self.found.held is not None or self.since_s is None:
            return False
        self.is_reported_dead = now_s - self.since_s >= after_s
        return self.is_reported_dead

    def take_silence(self, now_s: float) -> None:
        """Note that its engine hangs."""
        self.is_hung = True
        self.breaker = self.breaker.tripped(now_s)

    def take_listing(self, listing: Listing, now_s: float) -> None:
        """Apply its list of models; a response that is none keeps the last list."""
        self.trouble = listing.trouble
        if listing.cards is not None:
            self.cards, self.listed_s = listing.cards, now_s

    def take_page(self, page: Page | None, now_s: float) -> bool:
        """Apply its metrics. Returns whether they, or its absence, show that it has lost its cache."""
        before, was_gone = self.page, self.was_gone
        self.scraped_s, self.was_gone = now_s, False
        if page is not None:
            self.page = page
        if page is None or page.started_s is None or before is None or before.started_s is None:
            return was_gone or _fell(before, page)
        return abs(page.started_s - before.started_s) > 0.5 or _fell(before, page)

    def shapes(self) -> tuple[EngineShape, ...]:
        """Return its engines as its metrics show them; empty if they show none."""
        readings = self.page.engines if self.page else {}
        is_single = len(readings) == 1
        return tuple(
            EngineShape(
                rank=None if is_single else rank,
                role=self.found.facts.duty,
                kv_tokens=reading.kv_capacity_tokens,
                block_tokens=reading.block_tokens,
            )
            for rank, reading in readings.items()
        )


def _fell(before: Page | None, page: Page | None) -> bool:
    """Return whether a counter is lower than before."""
    if before is None or page is None:
        return False
    return any(
        (reading.prompt_tokens or 0.0) > (page.engines[rank].prompt_tokens or 0.0)
        for rank, reading in before.engines.items()
        if rank in page.engines
    )


def as_shown(known: Pod, pod: WatchedPod, models: Mapping[str, ModelEntry]) -> Pod:
    """Return the router's pod `known`, brought up to date with its state and `model_list`."""
    cards = tuple(card for card in pod.cards or () if _may_serve(pod.found, models.get(card.name)))
    entries = [models[card.name] for card in cards if card.name in models]
    return replace(
        known,
        standing=pod.standing(),
        models=frozenset(card.name for card in cards),
        adapters=frozenset(card.name for card in cards if card.parent is not None),
        cards=cards,
        has_told=pod.cards is not None,
        pool=pod.found.pool,
        region=pod.found.region,
        facts=_facts(pod.found.facts, entries),
        takes_priority=pod.found.takes_priority or any(entry.takes_priority for entry in entries),
    )


def _may_serve(found: Found, entry: ModelEntry | None) -> bool:
    if entry is None:
        return True
    is_named = entry.pods is None or found.url in entry.pods
    return is_named and entry.inference_pool in (None, found.pool)


def _facts(facts: PodFacts, entries: Sequence[ModelEntry]) -> PodFacts:
    """Return the facts of the pod, completed by those of the models that it serves."""
    if facts.kv_connector is not None:
        return facts
    told = next((entry.kv_connector for entry in entries if entry.kv_connector), None)
    return facts if told is None else replace(facts, kv_connector=told)

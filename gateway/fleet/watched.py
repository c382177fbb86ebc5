"""One pod as the watcher sees it: what its probes and requests have shown, and where it therefore stands.

Decides; asks nobody. Time is an argument.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from math import inf

from gateway.config.discovery import Found
from gateway.fleet.breaker import Breaker
from gateway.fleet.probe import Health, Listing
from gateway.fleet.scrape import Page
from routing.pods import EngineShape, ModelCard, Standing

SILENCES = 3
"""Probes in a row without an answer after which a pod is taken for dead: one may be lost to a long pause."""


@dataclass(slots=True)
class WatchedPod:
    """Mutable; written by the watcher only."""

    found: Found
    breaker: Breaker = field(default_factory=Breaker)
    is_drained: bool = False
    is_hung: bool = False
    """Its engine has fallen silent, whatever its server says; until it shows a token."""
    health: Health | None = None
    """What the last probe said, None before the first."""
    was_well: bool = False
    """Whether any probe ever found it well."""
    was_gone: bool = False
    """Whether it was gone since it was last seen well: it has then lost its cache."""
    was_looked_at: bool = False
    """Whether all was asked of it once: health, models, metrics."""
    silences: int = 0
    since_s: float | None = None
    """When it was first looked at."""
    is_reported_dead: bool = False
    cards: tuple[ModelCard, ...] | None = None
    trouble: str = ""
    """Why it is not used though it is well."""
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
        """Where it stands, from all that is known."""
        if self.is_drained or self.found.held is Standing.DRAINING:
            return Standing.DRAINING
        if not self.was_well or self.cards is None:
            return Standing.STARTING
        # One silent probe changes nothing: a busy pod may answer late, and requests tell more than probes.
        looks_well = self.health in (Health.WELL, Health.SILENT)
        if self.is_hung or (self.breaker.is_open and (self.breaker.is_certain or not looks_well)):
            return Standing.BROKEN
        if self.health is Health.NOT_READY or self.found.held is Standing.UNREADY:
            return Standing.UNREADY
        return Standing.DOUBTED if self.breaker.is_open else Standing.READY

    def take_health(self, health: Health, now_s: float) -> None:
        """Draw the conclusions of a probe."""
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
            # Whatever it said before may be of another life: ask again before it is used.
            self.listed_s = self.scraped_s = -inf

    def is_news_that_dead(self, now_s: float, after_s: float) -> bool:
        """Whether it has not been well once in so many seconds since it was first looked at. True once. A pod whose
        source says that it is not ready is expected to be so.
        """
        if self.was_well or self.is_reported_dead or self.found.held is not None or self.since_s is None:
            return False
        self.is_reported_dead = now_s - self.since_s >= after_s
        return self.is_reported_dead

    def take_silence(self, now_s: float) -> None:
        """Its engine has fallen silent with all that it has."""
        self.is_hung = True
        self.breaker = self.breaker.tripped(now_s)

    def take_listing(self, listing: Listing, now_s: float) -> None:
        """Take over its models; an answer that is no list keeps the last one."""
        self.trouble = listing.trouble
        if listing.cards is not None:
            self.cards, self.listed_s = listing.cards, now_s

    def take_page(self, page: Page | None, now_s: float) -> bool:
        """Take over its metrics. True where they, or its absence, show that it has lost its cache."""
        before, was_gone = self.page, self.was_gone
        self.scraped_s, self.was_gone = now_s, False
        if page is not None:
            self.page = page
        if page is None or page.started_s is None or before is None or before.started_s is None:
            return was_gone or _fell(before, page)
        return abs(page.started_s - before.started_s) > 0.5 or _fell(before, page)

    def shapes(self) -> tuple[EngineShape, ...]:
        """Its engines as its metrics show them; empty where they show none."""
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
    """Whether a counter is lower than it was."""
    if before is None or page is None:
        return False
    return any(
        (reading.prompt_tokens or 0.0) > (page.engines[rank].prompt_tokens or 0.0)
        for rank, reading in before.engines.items()
        if rank in page.engines
    )

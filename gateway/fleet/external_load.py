"""External load: what engines report by scrapes or agents, beyond what these gateways have placed there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.fleet.scrape import MetricsPage
from routing.decision.router import Router
from routing.ledger import ExternalLoad
from routing.pod_record import AgentRecord, EngineLoad
from routing.pods import Engine
from routing.stores import StoreCounters

OwnLoad = Mapping[int, tuple[int, float]]
"""Slot to our running sequences and KV tokens."""


def own_load_at(router: Router, url: str) -> OwnLoad:
    """Return what we have placed on the engines of a pod."""
    known, ledger = router.fleet.pod(url), router.ledger
    slots = [engine.slot for engine in known.engines] if known else []
    return {slot: (ledger.running[slot], ledger.kv_tokens[slot]) for slot in slots}


def apply_scrape(router: Router, url: str, page: MetricsPage, before: OwnLoad, now_s: float) -> None:
    """Report to the router what a metrics page shows beyond our load: the larger of `before` the scrape and now."""
    known, after = router.fleet.pod(url), own_load_at(router, url)
    for engine in known.engines if known else ():
        reading = page.reading_of(engine.rank)
        if reading is None:
            continue
        running, kv_tokens = map(max, before.get(engine.slot, (0, 0.0)), after[engine.slot])
        kv_there = (reading.kv_usage or 0.0) * (engine.kv_tokens or 0)
        external = _beyond(running, kv_tokens, reading.running or 0.0, reading.waiting or 0.0, kv_there, now_s)
        router.observe_load(engine.slot, external)
        router.stores.observe(engine.slot, StoreCounters(reading.store_asked, reading.store_found))


def _beyond(
    our_running: float, our_kv_tokens: float, running: float, waiting: float, kv_tokens: float, at_s: float
) -> ExternalLoad:
    """Return what an engine reports beyond what we have placed there; requests that wait are external first."""
    running_beyond = running + waiting - our_running
    return ExternalLoad(
        running=max(0.0, running_beyond),
        waiting=max(0.0, min(waiting, running_beyond)),
        kv_tokens=max(0.0, kv_tokens - our_kv_tokens),
        at_s=at_s,
    )


class PushedLoad:
    """Load that engines push by way of their agents, fresher than any scrape. One per gateway that has a registry."""

    def __init__(self, router: Router, clock: Callable[[], float]) -> None:
        self.taken = 0
        """Engine loads that were applied."""
        self._router = router
        self._clock = clock
        self._ours: dict[int, tuple[int, float]] = {}
        """By slot, our load at the last report: requests that ended since may still be in the next one."""

    def apply(self, record: AgentRecord) -> None:
        """Apply a pushed record. Engines that are unknown here, or not in it, keep their load."""
        for pod in record.pods:
            known = self._router.fleet.pod(pod.url)
            engines = known.engines if known and pod.loads else ()
            loads = {load.rank: load for load in pod.loads}
            for engine in engines:
                if (load := loads.get(engine.rank or 0)) is not None:
                    self._observe(engine, load)

    def _observe(self, engine: Engine, load: EngineLoad) -> None:
        ledger = self._router.ledger
        now = ledger.running[engine.slot], ledger.kv_tokens[engine.slot]
        running, kv_tokens = map(max, self._ours.get(engine.slot, now), now)
        self._ours[engine.slot] = now
        kv_there, at_s = load.kv_usage * (engine.kv_tokens or 0), self._clock() - load.age_s
        external = _beyond(running, kv_tokens, float(load.running), float(load.waiting), kv_there, at_s)
        self._router.observe_load(engine.slot, external)
        self.taken += 1

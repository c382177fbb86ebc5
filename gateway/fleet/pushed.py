"""Figures of load that engines push by way of their agents: fresher than any scrape, and of the same use.

As with a scrape, what counts is what an engine has beyond what we ourselves have put there.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.discovery.record import EngineLoad, Record
from routing.decision.router import Router
from routing.ledger import Foreign
from routing.pods import Engine


class Pushed:
    """One per gateway that has a registry."""

    def __init__(self, router: Router, clock: Callable[[], float]) -> None:
        self.taken = 0
        """Figures of engines that were taken over."""
        self._router = router
        self._clock = clock
        self._ours: dict[int, tuple[int, float]] = {}
        """By slot, what we had there when figures came last: what has ended since may still be in the next."""

    def take(self, record: Record) -> None:
        """A record that came by channel. Engines that we do not know, or that are not in it, stay as they were."""
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
        there, kv_there = load.running + load.waiting, load.kv_usage * (engine.kv_tokens or 0)
        foreign = Foreign(
            running=max(0.0, float(there - running)),
            waiting=max(0.0, float(min(load.waiting, there - running))),
            kv_tokens=max(0.0, kv_there - kv_tokens),
            at_s=self._clock() - load.age_s,
        )
        self._router.observe_load(engine.slot, foreign)
        self.taken += 1

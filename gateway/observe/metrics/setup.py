"""All that a gateway counts of its requests, and puts where it is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from gateway.cascades.metrics import CascadeExposition, CascadeTallies
from gateway.limits.metrics import LimitsExposition
from gateway.observe.metrics.calibration import Calibration
from gateway.observe.metrics.collector import Exposition, Gauges
from gateway.observe.metrics.counters import Tallies
from gateway.observe.metrics.discovery import SourcesExposition
from gateway.observe.metrics.retries import RetriesExposition
from gateway.observe.metrics.tiers import TierExposition, TierTallies, WaitingForPod, waiting_in
from gateway.pairs.metrics import PairTallies
from gateway.pipeline.outcome import Witness
from routing.decision.router import Router

if TYPE_CHECKING:  # It has these counts.
    from gateway.gateway import Gateway


class Counts:
    """One per gateway."""

    def __init__(self, router: Router, priced: Container[str], say: Callable[..., None]) -> None:
        """`priced`: models that may stand in a label though no pod serves them."""
        self._router = router
        self._calibration = Calibration(lambda: {pod.url for pod in router.fleet.pods}, say)
        self.tallies = Tallies(
            lambda model: router.fleet.knows(model) or model in priced, judge=self._calibration.judge
        )
        self._tiers = TierTallies(router.fleet)
        self._climbs = CascadeTallies()
        self._pairs = PairTallies()

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        """Who has to see every outcome."""
        return self.tallies.witness, self._tiers.witness, self._climbs.witness, self._pairs.witness

    def show(self, gateway: Gateway) -> None:
        """Put them, and what its parts hold at the moment of a look, into a gateway's registry."""
        clock, fleet = asyncio.get_running_loop().time, self._router.fleet
        for shown in (
            Exposition(self.tallies, _gauges(gateway)),
            self._calibration,
            SourcesExposition(gateway.watcher.census, clock),
            LimitsExposition(gateway.quotas),
            self._pairs,
            TierExposition(self._tiers, fleet, waiting_in(gateway.room)),
            WaitingForPod(gateway.room, fleet),
            CascadeExposition(self._climbs, gateway.ladders),
            RetriesExposition(gateway.passage.budget, gateway.front.pool.lateness.found),
        ):
            gateway.registry.register(shown)


def _gauges(gateway: Gateway) -> Gauges:
    front, logs = gateway.front, gateway.logs
    return Gauges(
        router=gateway.router,
        pods=lambda: gateway.watcher.pods,
        open_requests=lambda: front.open_requests,
        open_connections=lambda: front.open_connections,
        dropped_lines=lambda: {name: log.writer.dropped_lines for name, log in logs.items()},
        clock=asyncio.get_running_loop().time,
        theirs=gateway.others.load,
        tasks=lambda: len(asyncio.all_tasks()),
    )

"""The metrics of a gateway: what it counts of its requests, and the registration of all collectors."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from gateway.app.gateway import Gateway
from gateway.limits.monitoring import LimitsExposition
from gateway.observe.metrics.calibration import Calibration
from gateway.observe.metrics.cascades import CascadeExposition, CascadeTallies
from gateway.observe.metrics.fleet import FleetCollector, SourcesExposition
from gateway.observe.metrics.requests import RetriesExposition, Tallies
from gateway.observe.metrics.tiers import TierExposition, TierTallies, WaitingForPod, waiting_in
from gateway.pairs.monitoring import PairTallies
from gateway.runtime.event_log import LogFunction
from routing.decision.router import Router


class GatewayMetrics:
    """One per gateway: first counts requests, then is registered with what else is shown."""

    def __init__(self, router: Router, priced: Container[str], say: LogFunction) -> None:
        """`priced`: models that may be label values even if no pod serves them."""
        self._router = router
        self._calibration = Calibration(lambda: {pod.url for pod in router.fleet.pods}, say)
        self._tiers = TierTallies(router.fleet)
        self._climbs = CascadeTallies()
        self._pairs = PairTallies()
        self.tallies = Tallies(
            lambda model: router.fleet.knows(model) or model in priced,
            judge=self._calibration.judge,
            also=(self._tiers.witness, self._climbs.witness, self._pairs.witness),
        )

    def register(self, gateway: Gateway) -> None:
        """Register them, and the collectors of the gateway's components, with its registry."""
        clock, fleet = asyncio.get_running_loop().time, self._router.fleet
        for shown in (
            self.tallies,  # First: the others show what it has counted in their batches.
            _fleet_collector(gateway),
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


def _fleet_collector(gateway: Gateway) -> FleetCollector:
    front, logs = gateway.front, gateway.logs
    return FleetCollector(
        router=gateway.router,
        pods=lambda: gateway.watcher.pods,
        open_requests=lambda: front.open_requests,
        open_connections=lambda: front.open_connections,
        dropped_lines=lambda: {name: log.writer.dropped_lines for name, log in logs.items()},
        clock=asyncio.get_running_loop().time,
        theirs=gateway.others.load,
        tasks=lambda: len(asyncio.all_tasks()),
    )

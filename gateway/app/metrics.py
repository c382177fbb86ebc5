"""The metrics of a gateway: what it counts of its requests, and the registration of all collectors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.app.gateway import Gateway
from gateway.config.models import ModelEntry
from gateway.limits.monitoring import QuotaMetrics
from gateway.observe.metrics.calibration import CalibrationCollector
from gateway.observe.metrics.cascades import CascadeCollector, CascadeCounters
from gateway.observe.metrics.fleet import FleetCollector, SourceCollector
from gateway.observe.metrics.requests import RequestCounters, RetryCollector
from gateway.observe.metrics.tiers import TierCollector, TierCounters, WaitingForPodCollector, queued_requests_of
from gateway.observe.outcome_totals import OutcomeTotals
from gateway.pairs.monitoring import PairMetrics
from gateway.pipeline.record import Outcome
from gateway.runtime.event_log import LogFunction
from routing.decision.router import Router


class GatewayMetrics:
    """One per gateway: first counts requests, then is registered with what else is shown."""

    def __init__(self, router: Router, priced: Mapping[str, ModelEntry], log_event: LogFunction) -> None:
        """`priced`: models that may be label values even if no pod serves them, with their prices."""
        self._router = router
        self.totals = OutcomeTotals(lambda outcome: cost_of(outcome, priced))
        self._calibration = CalibrationCollector(lambda: {pod.url for pod in router.fleet.pods}, log_event)
        self._tiers = TierCounters(router.fleet)
        self.cascades = CascadeCounters()
        self._pairs = PairMetrics()
        self.tallies = RequestCounters(
            lambda model: router.fleet.knows(model) or model in priced,
            judge=self._calibration.add,
            also=(
                *(self._tiers.on_outcome, self.cascades.on_outcome, self._pairs.on_outcome),
                self.totals.on_outcome,
            ),
        )

    def register(self, gateway: Gateway) -> None:
        """Register them, and the collectors of the gateway's components, with its registry."""
        clock, fleet = asyncio.get_running_loop().time, self._router.fleet
        for shown in (
            self.tallies,  # First: the others show what it has counted in their batches.
            _fleet_collector(gateway),
            self._calibration,
            SourceCollector(gateway.watcher.census, clock),
            QuotaMetrics(gateway.quotas),
            self._pairs,
            TierCollector(self._tiers, fleet, queued_requests_of(gateway.admission_queue)),
            WaitingForPodCollector(gateway.admission_queue, fleet),
            CascadeCollector(self.cascades, gateway.cascades),
            RetryCollector(gateway.pipeline.budget, gateway.listener.pool.lateness.stalls),
        ):
            gateway.registry.register(shown)


def cost_of(outcome: Outcome, prices: Mapping[str, ModelEntry]) -> float:
    """Return what a request cost by the prices of its models; a shared response costs nothing."""
    if outcome.coalesced_with is not None:
        return 0.0
    if outcome.cascade is not None:
        return outcome.cascade.cost
    entry = prices.get(outcome.model)
    if entry is None:
        return 0.0
    input_cost = entry.input_cost(outcome.input_tokens, outcome.cached_input_tokens)
    return (input_cost or 0.0) + (entry.output_cost(outcome.output_tokens) or 0.0)


def _fleet_collector(gateway: Gateway) -> FleetCollector:
    front, logs = gateway.listener, gateway.logs
    return FleetCollector(
        router=gateway.router,
        pods=lambda: gateway.watcher.pods,
        open_requests=lambda: front.open_requests,
        open_connections=lambda: front.open_connections,
        dropped_lines=lambda: {name: log.writer.dropped_lines for name, log in logs.items()},
        clock=asyncio.get_running_loop().time,
        peer_load=gateway.peer_load.load,
        tasks=lambda: len(asyncio.all_tasks()),
    )

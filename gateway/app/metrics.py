"""The metrics of a gateway: what it counts of its requests, and the registration of all collectors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from math import inf

from gateway.app.gateway import Gateway
from gateway.config.models import ModelEntry
from gateway.limits.monitoring import QuotaMetrics
from gateway.observe.metrics.calibration import CalibrationCollector
from gateway.observe.metrics.cascades import CascadeCollector, CascadeCounters
from gateway.observe.metrics.configuration import WarningCollector
from gateway.observe.metrics.engines import EngineCollector
from gateway.observe.metrics.fleet import FleetCollector, SourceCollector
from gateway.observe.metrics.pools import PoolCollector, PoolMeter
from gateway.observe.metrics.request_groups import RequestGroup
from gateway.observe.metrics.requests import RequestCounters, RetryCollector
from gateway.observe.metrics.tiers import TierCollector, TierCounters, WaitingForPodCollector, queued_requests_of
from gateway.observe.metrics.upstreams import UpstreamCollector, waiting_by_engine
from gateway.observe.operators.outcome_totals import PERIOD_S, OutcomeTotals
from gateway.pairs.monitoring import PairMetrics, UnpairedPrefillMonitor
from gateway.runtime.event_log import LogFunction
from gateway.runtime.metric_families import TenantLabels
from routing.decision.router import Router


class GatewayMetrics:
    """One per gateway: first counts requests, then is registered with what else is shown."""

    def __init__(
        self, router: Router, prices: Mapping[str, ModelEntry], log_event: LogFunction, *, has_page: bool
    ) -> None:
        """`prices`: `model_list` by name; its models may be label values even if no pod serves them.

        `has_page`: whether totals are kept for the operators' page.
        """
        self._router = router

        def is_known(model: str) -> bool:
            return router.fleet.knows(model) or model in prices

        def cost_of(group: RequestGroup) -> float:
            return sum(sum(cost) for _, cost in group.costs(prices))

        self.totals = OutcomeTotals(cost_of, is_known)
        self._tenants = TenantLabels()
        self._calibration = CalibrationCollector(lambda: {pod.url for pod in router.fleet.pods}, log_event)
        self._tiers = TierCounters(router.fleet)
        self.cascades = CascadeCounters(self._tenants)
        self._pairs = PairMetrics()
        self.tallies = RequestCounters(
            is_known,
            router.fleet,
            tenants=self._tenants,
            prices=prices,
            judge=self._calibration.add,
            special=(self.cascades.on_outcome, self._pairs.on_outcome),
            groups=(self._tiers.add, *((self.totals.add,) if has_page else ())),
            attempts=(self.totals.add_attempts,) if has_page else (),
            period_s=PERIOD_S if has_page else inf,
        )

    def register(self, gateway: Gateway, unpaired: UnpairedPrefillMonitor | None) -> None:
        """Register them, and the collectors of the gateway's components, with its registry."""
        clock, fleet, watcher = asyncio.get_running_loop().time, self._router.fleet, gateway.watcher
        meter = PoolMeter(fleet, lambda: gateway.settings.engine_hour_prices, clock)
        gateway.background.append(meter.run)
        standing = [watcher.standing_warnings, gateway.cascades.standing_warnings]
        if unpaired is not None:
            standing.append(unpaired.standing_warnings)
        for shown in (
            self.tallies,  # First: the others show what it has counted in their batches.
            _fleet_collector(gateway),
            self._calibration,
            UpstreamCollector(fleet, lambda: watcher.pods, clock, time.time),
            # Of nodes one worker of a host is enough: they are many series, and the same for all.
            EngineCollector(watcher.engine_counters, dict if unpaired is None else watcher.census.nodes),
            PoolCollector(self._router, meter, gateway.peer_load.load, lambda: waiting_by_engine(watcher.pods)),
            WarningCollector(standing),
            SourceCollector(watcher.census, clock),
            QuotaMetrics(gateway.quotas, self._tenants),
            self._pairs,
            TierCollector(self._tiers, fleet, queued_requests_of(gateway.admission_queue)),
            WaitingForPodCollector(gateway.admission_queue, fleet),
            CascadeCollector(self.cascades, gateway.cascades),
            RetryCollector(gateway.pipeline.budget, gateway.listener.pool.lateness.stalls),
        ):
            gateway.registry.register(shown)


def _fleet_collector(gateway: Gateway) -> FleetCollector:
    front, logs = gateway.listener, gateway.logs
    return FleetCollector(
        router=gateway.router,
        open_requests=lambda: front.open_requests,
        open_connections=lambda: front.open_connections,
        dropped_lines=lambda: {name: log.writer.dropped_lines for name, log in logs.items()},
        peer_load=gateway.peer_load.load,
        tasks=lambda: len(asyncio.all_tasks()),
    )

"""Assigns roles in a gateway: every second it decides or follows the gateway that does. `balancer.py` decides what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.roles.balancer import INTERVAL_S, RoleAssigner
from gateway.roles.lease import RoleLease
from gateway.runtime.event_log import LogFunction, engine_fields
from gateway.runtime.guard import restarted
from gateway.runtime.metric_families import ENGINE_LABELS, engine_labels
from routing.decision.router import Router
from routing.facts import Role
from routing.pairing.roles import RoleChange


class RoleController(Collector):
    """One per gateway whose configuration has roles follow the traffic; shows the roles as metrics."""

    def __init__(
        self,
        router: Router,
        keeper: RoleAssigner,
        lease: RoleLease | None,
        log_event: LogFunction,
        clock: Callable[[], float],
    ) -> None:
        """`lease`: None where no other gateway assigns roles to these pods."""
        self._router = router
        self._keeper = keeper
        self._lease = lease
        self._log_event = log_event
        self._clock = clock

    @restarted("roles")
    async def run(self) -> None:
        """Look every second until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Decide or follow once. A decision counts only once it is stored under the lease: a gateway that was stopped
        meanwhile and has lost the lease follows the other, and logs no change.
        """
        changes = self._keeper.look(self._clock()) if self._lease is None or self._lease.is_held else []
        if self._lease is not None:
            self._follow(await self._lease.propose(self._roles()))
            changes = changes if self._lease.is_held else []
        for change in changes:
            self._announce(change)

    def _announce(self, change: RoleChange) -> None:
        pressures = {"prefill": change.prefill_pressure, "decode": change.decode_pressure}
        rounded = {f"{kind}_pressure": round(pressure, 2) for kind, pressure in pressures.items()}
        self._log_event("info", "role_changed", **engine_fields(change.engine), role=change.role.value, **rounded)

    def _roles(self) -> dict[str, str]:
        return {engine.name: engine.role.value for pod in self._router.fleet.pods for engine in pod.engines}

    def _follow(self, roles: Mapping[str, str]) -> None:
        for name, role in roles.items():
            if role in set(Role):
                self._router.fleet.override_role(name, Role(role))

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Return all metric families of this moment."""
        role = GaugeMetricFamily(
            "hearth_engine_role", "1 for the engine's current role.", labels=(*ENGINE_LABELS, "role")
        )
        for name, has in self._roles().items():
            for each in Role:
                role.add_metric((*engine_labels(name), each.value), float(has == each))
        changes = CounterMetricFamily("hearth_role_changes", "Roles changed by this gateway.")
        changes.add_metric((), self._keeper.changes)
        yield from (role, changes)

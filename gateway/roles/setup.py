"""Roles at work in a gateway: looks every second, decides or follows. What is decided is the keeper's matter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.roles.keeper import LOOK_S, RoleKeeper
from gateway.runtime.guard import restarted
from routing.decision.router import Router
from routing.facts import Role
from routing.pairing.roles import Change

LEASE_S = 5.0
"""For so long who decides roles goes on to, unheard."""

MOST_BYTES = 1 << 20
"""A longer word on roles is nobody's of ours."""

Say = Callable[..., None]


class Shared(Protocol):
    """How several gateways come to one word on roles (`shared.py`, `on_host.py`)."""

    @property
    def decides(self) -> bool:
        """Whether it is ours to decide now."""
        ...

    async def exchange(self, roles: Mapping[str, str]) -> Mapping[str, str]:
        """Say what we would have, and hear what is to be."""
        ...


class RolesAtWork(Collector):
    """One per gateway in whose configuration roles follow the traffic."""

    def __init__(
        self,
        router: Router,
        keeper: RoleKeeper,
        shared: Shared | None,
        say: Say,
        clock: Callable[[], float],
    ) -> None:
        self._router = router
        self._keeper = keeper
        self._shared = shared
        self._say = say
        self._clock = clock

    @restarted("roles")
    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once. What was decided counts when it has become everybody's word: a gateway that was stopped meanwhile
        and has lost the lease follows, and logs no change.
        """
        changes = self._keeper.look(self._clock()) if self._shared is None or self._shared.decides else []
        if self._shared is not None:
            self._follow(await self._shared.exchange(self._roles()))
            changes = changes if self._shared.decides else []
        for change in changes:
            self._announce(change)

    def _announce(self, change: Change) -> None:
        pressures = {"prefill": change.prefill_pressure, "decode": change.decode_pressure}
        rounded = {f"{kind}_pressure": round(pressure, 2) for kind, pressure in pressures.items()}
        self._say("info", "role changed", engine=change.engine, role=change.role.value, **rounded)

    def _roles(self) -> dict[str, str]:
        return {engine.name: engine.role.value for pod in self._router.fleet.pods for engine in pod.engines}

    def _follow(self, roles: Mapping[str, str]) -> None:
        for name, role in roles.items():
            if role in set(Role):
                self._router.fleet.assume(name, Role(role))

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """All families of this moment."""
        role = GaugeMetricFamily("hearth_engine_role", "1 for the role it has.", labels=("engine", "role"))
        for name, has in self._roles().items():
            for each in Role:
                role.add_metric((name, each.value), float(has == each))
        changes = CounterMetricFamily("hearth_role_changes", "Roles that this gateway has changed.")
        changes.add_metric((), self._keeper.changes)
        yield from (role, changes)

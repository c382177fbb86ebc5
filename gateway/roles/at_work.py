"""Roles at work in a gateway: looks every second, decides or follows, tells engines where they want to be told.

Knows the world (Redis, pods' HTTP); what is decided is the keeper's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import aiohttp
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.roles.keeper import LOOK_S, RoleKeeper
from routing.facts import Role
from routing.fleet import Engine
from routing.roles import Change
from routing.router import Router

if TYPE_CHECKING:
    from gateway.roles.shared import SharedRoles

SWITCH_PATH = "/pd_role_switch"
"""SGLang's: `{"role": "prefill" | "decode"}`."""

SWITCH_S = 30.0

Say = Callable[..., None]
KeyOf = Callable[[str], str | None]


class RoleSwitch:
    """Tells engines that have an API for it. Built to SGLang's documented call; no SGLang has run here."""

    def __init__(self, client: aiohttp.ClientSession, key_of: KeyOf, say: Say) -> None:
        self._client = client
        self._key_of = key_of
        self._say = say
        self._calls: set[asyncio.Task[None]] = set()

    def tell(self, engine: Engine, change: Change) -> None:
        """Begin to tell an engine; how it ends is logged."""
        call = asyncio.get_running_loop().create_task(self._tell(engine, change.role))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _tell(self, engine: Engine, role: Role) -> None:
        key = self._key_of(engine.pod)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with (
                asyncio.timeout(SWITCH_S),
                self._client.post(f"{engine.pod}{SWITCH_PATH}", json={"role": role.value}, headers=headers) as answer,
            ):
                if answer.status >= 400:
                    self._say("warning", "engine did not switch its role", engine=engine.name, status=answer.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            kind = type(error).__name__
            self._say("warning", "engine could not be told its role", engine=engine.name, error=kind)


class RolesAtWork(Collector):
    """One per gateway in whose configuration roles follow the traffic."""

    def __init__(
        self, router: Router, keeper: RoleKeeper, shared: SharedRoles | None, say: Say, clock: Callable[[], float]
    ) -> None:
        self._router = router
        self._keeper = keeper
        self._shared = shared
        self._say = say
        self._clock = clock
        router.keeps_roles = True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Once."""
        if self._shared is None or self._shared.decides:
            for change in self._keeper.look(self._clock()):
                self._say(
                    "info",
                    "role changed",
                    engine=change.engine,
                    role=change.role.value,
                    prefill_pressure=round(change.prefill_pressure, 2),
                    decode_pressure=round(change.decode_pressure, 2),
                )
        if self._shared is not None:
            self._follow(await self._shared.exchange(self._roles()))

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

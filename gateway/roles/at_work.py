"""Roles at work in a gateway: looks every second, decides or follows, tells engines where they want to be told.

Knows the world (Redis, pods' HTTP); what is decided is the keeper's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import aiohttp
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.guard import restarted
from gateway.roles.keeper import LOOK_S, RoleKeeper
from routing.facts import Role
from routing.pods import Engine
from routing.roles import Change
from routing.router import Router

SWITCH_PATH = "/pd_role_switch"
"""SGLang's: `{"role": "prefill" | "decode"}`."""

SWITCH_S = 30.0

LEASE_S = 5.0
"""For so long who decides roles goes on to, unheard."""

MOST_BYTES = 1 << 20
"""A longer word on roles is nobody's of ours."""

Say = Callable[..., None]
KeyOf = Callable[[str], str | None]


class Shared(Protocol):
    """How several gateways come to one word on roles (`shared.py`, `on_host.py`)."""

    @property
    def decides(self) -> bool:
        """Whether it is ours to decide now."""
        ...

    async def exchange(self, roles: Mapping[str, str]) -> Mapping[str, str]:
        """Say what we would have, and hear what is to be."""
        ...


Tell = Callable[[Engine, Change], None]


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
        self,
        router: Router,
        keeper: RoleKeeper,
        shared: Shared | None,
        say: Say,
        clock: Callable[[], float],
        tell: Tell | None = None,
    ) -> None:
        """`tell`: what tells an engine its new role, where it wants to be told."""
        self._router = router
        self._keeper = keeper
        self._shared = shared
        self._say = say
        self._clock = clock
        self._tell = tell
        router.keeps_roles = True

    @restarted("roles")
    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Once. What was decided counts when it has become everybody's word: who was stopped meanwhile, and has lost
        the lease without knowing, tells no engine anything and follows.
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
        engine = self._router.fleet.engine(change.engine)
        if engine is not None and self._tell is not None:
            self._tell(engine, change)

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

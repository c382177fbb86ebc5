"""The agent: finds vLLM servers, probes them periodically, and publishes their record when it changes.

Facts come from the server (`server.py`, `server_process.py`) and from the machine (`hardware.py`); facts that the
operator configured override both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from agent.heartbeat import Heart, Rhythm
from agent.loads import Loads
from agent.server import Asker, Server, Spot
from gateway.runtime.guard import restarted
from gateway.runtime.redis_location import RedisPlace
from routing.facts import BadFacts, PodFacts, read_facts
from routing.pod_record import MOST_PODS, EngineLoad, Record, Registered, State

Say = Callable[..., None]

MOST_FAULTS = 256
"""Invalid facts remembered as logged."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an agent probes and publishes."""

    name: str
    given: tuple[Spot, ...] = ()
    """Servers that the operator configured."""
    probed: tuple[Spot, ...] = ()
    """Local addresses that are probed for servers."""
    machine: Mapping[str, object] = field(default_factory=dict)
    """Flat facts of all servers on this machine: hardware and topology."""
    said: Mapping[str, object] = field(default_factory=dict)
    """Flat facts that the operator configured; they override all others."""
    rhythm: Rhythm = field(default_factory=Rhythm)
    look_s: float = 2.0


class Agent:
    """One per process. Its servers are those that answer now or missed only a few probes."""

    def __init__(
        self,
        plan: Plan,
        asker: Asker,
        redis: RedisPlace,
        *,
        say: Say,
        clock: Callable[[], float],
        draw: Callable[[], float],
        life: int,
    ) -> None:
        """`life` distinguishes this start of the agent from any other of the same name."""
        self.is_draining = False
        self.heart = Heart(redis, plan.name, self.record, plan.rhythm, say, draw)
        self.loads = Loads(clock, self.heart.tell_load)
        self._plan = plan
        self._asker = asker
        self._say = say
        self._life = life
        self._beat = 0
        self._servers = {spot.url: Server(spot) for spot in plan.given}
        self._shown: tuple[Registered, ...] = ()
        self._faulted: set[str] = set()
        """Invalid facts that were logged."""

    def __repr__(self) -> str:
        return f"<Agent {self._plan.name} {len(self._shown)} of {len(self._servers)} servers registered>"

    def record(self) -> Record:
        """Return the record to publish now; each call counts its beat up."""
        self._beat += 1
        state = State.DRAINING if self.is_draining else State.SERVING
        pods = tuple(replace(pod, state=state, loads=self._loads_of(pod)) for pod in self._shown)
        return Record(self._plan.name, self._beat, self._plan.rhythm.ttl_s, pods, self._life)

    def drain(self) -> None:
        """Publish all servers as draining: they finish their requests and take no new ones."""
        self.is_draining = True
        self.heart.beat_now()

    @restarted("agent")
    async def run(self) -> None:
        """Probe periodically until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._plan.look_s)

    async def look(self) -> None:
        """Probe for new servers and all known ones, once."""
        await self._look_for_new()
        async with asyncio.TaskGroup() as group:
            for server in self._servers.values():
                group.create_task(self._asker.look(server), name=f"look at {server.spot.url}")
        for url, server in list(self._servers.items()):
            if not server.is_well:
                self._let_go(url, server)
        self._show()

    async def _look_for_new(self) -> None:
        unknown = [spot for spot in self._plan.probed if spot.url not in self._servers]
        answers = await asyncio.gather(*(self._asker.is_vllm(spot) for spot in unknown))
        for spot, is_vllm in zip(unknown, answers, strict=True):
            if is_vllm:
                self._servers[spot.url] = Server(spot)

    def _let_go(self, url: str, server: Server) -> None:
        """Forget the loads of a server that is gone, and the server itself unless it was configured."""
        self.loads.forget(server.spot.port)
        if server.spot not in self._plan.given:
            del self._servers[url]

    def _loads_of(self, pod: Registered) -> tuple[EngineLoad, ...]:
        server = self._servers.get(pod.url)
        return self.loads.of(server.spot.port) if server else ()

    def _show(self) -> None:
        well = [server for server in self._servers.values() if server.is_well][:MOST_PODS]
        shown = tuple(self._registered(server) for server in well)
        if shown == self._shown:
            return
        before, now = {pod.url for pod in self._shown}, {pod.url for pod in shown}
        for pod in shown:
            if pod.url not in before:
                self._say("info", "server found", pod=pod.url, **pod.facts.told())
        for url in sorted(before - now):
            self._say("info", "server gone", pod=url)
        self._shown = shown
        self.heart.beat_now()

    def _registered(self, server: Server) -> Registered:
        return Registered(server.spot.url, self._facts(server), takes_priority=server.takes_priority)

    def _facts(self, server: Server) -> PodFacts:
        """Merge all facts of a server; one that is invalid is left out and logged once."""
        told = dict(self._plan.machine) | server.told | dict(self._plan.said)
        try:
            return read_facts(told)
        except BadFacts as bad:
            fresh = [fault for fault in bad.faults if fault not in self._faulted]
            if fresh and len(self._faulted) < MOST_FAULTS:
                self._faulted.update(fresh)
                self._say("warning", "facts left out", pod=server.spot.url, faults=fresh)
            wrong = {fault.partition(":")[0] for fault in bad.faults}
            return read_facts({word: value for word, value in told.items() if word not in wrong})

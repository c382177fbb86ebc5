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
        self._prober = asker
        self._say = say
        self._life = life
        self._beat = 0
        self._servers = {spot.url: Server(spot) for spot in plan.given}
        self._published: tuple[Registered, ...] = ()
        self._logged_faults: set[str] = set()
        """Invalid facts that were logged."""

    def __repr__(self) -> str:
        return f"<Agent {self._plan.name} {len(self._published)} of {len(self._servers)} servers registered>"

    def record(self) -> Record:
        """Return the record to publish now; each call counts its beat up."""
        self._beat += 1
        state = State.DRAINING if self.is_draining else State.SERVING
        pods = tuple(replace(pod, state=state, loads=self._loads_of(pod)) for pod in self._published)
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
        await self._probe_new()
        async with asyncio.TaskGroup() as group:
            for server in self._servers.values():
                group.create_task(self._prober.look(server), name=f"look at {server.spot.url}")
        for url, server in list(self._servers.items()):
            if not server.is_well:
                self._forget(url, server)
        self._publish()

    async def _probe_new(self) -> None:
        unknown = [spot for spot in self._plan.probed if spot.url not in self._servers]
        answers = await asyncio.gather(*(self._prober.is_vllm(spot) for spot in unknown))
        for spot, is_vllm in zip(unknown, answers, strict=True):
            if is_vllm:
                self._servers[spot.url] = Server(spot)

    def _forget(self, url: str, server: Server) -> None:
        """Forget the loads of a server that is gone, and the server itself unless it was configured."""
        self.loads.forget(server.spot.port)
        if server.spot not in self._plan.given:
            del self._servers[url]

    def _loads_of(self, pod: Registered) -> tuple[EngineLoad, ...]:
        server = self._servers.get(pod.url)
        return self.loads.of(server.spot.port) if server else ()

    def _publish(self) -> None:
        healthy = [server for server in self._servers.values() if server.is_well][:MOST_PODS]
        current = tuple(self._registered(server) for server in healthy)
        if current == self._published:
            return
        before, now = {pod.url for pod in self._published}, {pod.url for pod in current}
        for pod in current:
            if pod.url not in before:
                self._say("info", "server found", pod=pod.url, **pod.facts.told())
        for url in sorted(before - now):
            self._say("info", "server gone", pod=url)
        self._published = current
        self.heart.beat_now()

    def _registered(self, server: Server) -> Registered:
        return Registered(server.spot.url, self._facts(server), takes_priority=server.takes_priority)

    def _facts(self, server: Server) -> PodFacts:
        """Merge all facts of a server; one that is invalid is left out and logged once."""
        merged = dict(self._plan.machine) | server.told | dict(self._plan.said)
        try:
            return read_facts(merged)
        except BadFacts as bad:
            unlogged = [fault for fault in bad.faults if fault not in self._logged_faults]
            if unlogged and len(self._logged_faults) < MOST_FAULTS:
                self._logged_faults.update(unlogged)
                self._say("warning", "facts left out", pod=server.spot.url, faults=unlogged)
            wrong = {fault.partition(":")[0] for fault in bad.faults}
            return read_facts({word: value for word, value in merged.items() if word not in wrong})

"""The agent: finds vLLM servers, probes them periodically, and publishes their record when it changes.

Facts come from the server (`server.py`, `server_process.py`) and from the machine (`hardware.py`); facts that the
operator configured override both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from agent.heartbeat import HeartbeatIntervals, HeartbeatPublisher
from agent.loads import LoadListener
from agent.node_readings import NodeState
from agent.server import ProbedServer, ServerAddress, ServerProber
from gateway.runtime.guard import report_exception, restarted
from gateway.runtime.redis_location import RedisLocation
from routing.facts import InvalidFacts, PodFacts, read_facts
from routing.pod_record import MAX_PODS, NO_READING, AgentRecord, EngineLoad, RegisteredPod, RegistrationState
from routing.server_settings import ServerSettings

LogFunction = Callable[..., None]

NIC_FACTS = frozenset(("nics", "nic_gbit_s"))
"""Facts that change while a node runs: a port may go down."""

NODE_INTERVAL_S = 5.0
"""Between two readings of GPUs and RDMA ports: as often as a gateway scrapes."""

MAX_LOGGED_FAULTS = 256
"""Invalid facts remembered as logged."""


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What an agent probes and publishes."""

    name: str
    configured_servers: tuple[ServerAddress, ...] = ()
    """Servers that the operator configured."""
    probed_servers: tuple[ServerAddress, ...] = ()
    """Local addresses that are probed for servers."""
    machine_facts: Mapping[str, object] = field(default_factory=dict)
    """Flat facts of all servers on this machine: hardware and topology."""
    configured_facts: Mapping[str, object] = field(default_factory=dict)
    """Flat facts that the operator configured; they override all others."""
    intervals: HeartbeatIntervals = field(default_factory=HeartbeatIntervals)
    probe_interval_s: float = 2.0


class Agent:
    """One per process. Its servers are those that answer now or missed only a few probes."""

    def __init__(
        self,
        plan: AgentPlan,
        asker: ServerProber,
        redis: RedisLocation,
        *,
        log_event: LogFunction,
        clock: Callable[[], float],
        draw: Callable[[], float],
        life: int,
        read_node: Callable[[], NodeState] | None = None,
    ) -> None:
        """`life` distinguishes this start of the agent from any other of the same name. `read_node` reads GPUs and RDMA
        ports, in a thread; None: neither is published.
        """
        self.is_draining = False
        self.heart = HeartbeatPublisher(redis, plan.name, self.record, plan.intervals, log_event, draw)
        self.loads = LoadListener(clock, self.heart.publish_load_soon)
        self._plan = plan
        self._prober = asker
        self._log_event = log_event
        self._life = life
        self._beat = 0
        self._read_node = read_node
        self._node = NO_READING
        self._machine_facts = dict(plan.machine_facts)
        self._servers = {spot.url: ProbedServer(spot) for spot in plan.configured_servers}
        self._published: tuple[RegisteredPod, ...] = ()
        self._has_adopted = False
        self._logged_faults: set[str] = set()
        """Invalid facts that were logged."""

    def __repr__(self) -> str:
        return f"<Agent {self._plan.name} {len(self._published)} of {len(self._servers)} servers registered>"

    def record(self) -> AgentRecord:
        """Return the record to publish now; each call counts its beat up."""
        self._beat += 1
        state = RegistrationState.DRAINING if self.is_draining else RegistrationState.SERVING
        pods = tuple(replace(pod, state=state, loads=self._loads_of(pod)) for pod in self._published)
        return AgentRecord(self._plan.name, self._beat, self._plan.intervals.ttl_s, pods, self._life, self._node)

    def drain(self) -> None:
        """Publish all servers as draining: they finish their requests and take no new ones."""
        self.is_draining = True
        self.heart.publish_now()

    @restarted("agent")
    async def run(self) -> None:
        """Probe periodically until cancelled."""
        if not self._has_adopted:
            self._adopt(await self.heart.previous())
        while True:
            await self.probe_all()
            self.heart.begin()
            await asyncio.sleep(self._plan.probe_interval_s)

    def _adopt(self, previous: AgentRecord | None) -> None:
        """Take servers over from an earlier agent of this name: one that misses the first probe stays registered."""
        self._has_adopted = True
        spots = {spot.url: spot for spot in (*self._plan.configured_servers, *self._plan.probed_servers)}
        for pod in previous.pods if previous is not None else ():
            if pod.state is RegistrationState.SERVING and (spot := spots.get(pod.url)) is not None:
                self._servers[pod.url] = ProbedServer(
                    spot,
                    is_healthy=True,
                    facts=pod.facts.to_mapping(),
                    takes_priority=pod.takes_priority,
                    is_adopted=True,
                )

    @restarted("node readings")
    async def watch_node(self) -> None:
        """Read GPUs and RDMA ports periodically until cancelled."""
        while self._read_node is not None:
            self._take_node(await asyncio.to_thread(self._read_node))
            await asyncio.sleep(NODE_INTERVAL_S)

    def _take_node(self, state: NodeState) -> None:
        """Publish the reading with the next heartbeat, and changed facts of RDMA devices with the next probe."""
        self._node = state.reading
        kept = {name: fact for name, fact in self._machine_facts.items() if name not in NIC_FACTS}
        self._machine_facts = kept | state.nic_facts

    async def probe_all(self) -> None:
        """Probe for new servers and all known ones, once."""
        await self._probe_new()
        async with asyncio.TaskGroup() as group:
            for server in self._servers.values():
                group.create_task(self._probe(server), name=f"look at {server.address.url}")
        for url, server in list(self._servers.items()):
            if not server.is_healthy:
                self._forget(url, server)
        self._publish()

    async def _probe(self, server: ProbedServer) -> None:
        """Probe one server. What its answers or files raise is reported, and keeps no other server from its probe."""
        try:
            await self._prober.probe(server)
        except Exception as error:  # noqa: BLE001 - reported; it must not end the probes of other servers
            report_exception("probe", error)

    async def _probe_new(self) -> None:
        unknown = [spot for spot in self._plan.probed_servers if spot.url not in self._servers]
        answers = await asyncio.gather(*(self._prober.is_vllm(spot) for spot in unknown))
        for spot, is_vllm in zip(unknown, answers, strict=True):
            if is_vllm:
                self._servers[spot.url] = ProbedServer(spot)

    def _forget(self, url: str, server: ProbedServer) -> None:
        """Forget the loads of a server that is gone, and the server itself unless it was configured."""
        self.loads.forget(server.address.port)
        if server.address not in self._plan.configured_servers:
            del self._servers[url]

    def _loads_of(self, pod: RegisteredPod) -> tuple[EngineLoad, ...]:
        server = self._servers.get(pod.url)
        return self.loads.loads_of(server.address.port) if server else ()

    def _publish(self) -> None:
        healthy = [server for server in self._servers.values() if server.is_healthy][:MAX_PODS]
        current = tuple(self._registered(server) for server in healthy)
        if current == self._published:
            return
        before, now = {pod.url for pod in self._published}, {pod.url for pod in current}
        for pod in current:
            if pod.url not in before:
                self._log_event("info", "server_found", upstream=pod.url, **pod.facts.to_mapping())
        for url in sorted(before - now):
            self._log_event("info", "server_removed", upstream=url)
        self._published = current
        self.heart.publish_now()

    def _registered(self, server: ProbedServer) -> RegisteredPod:
        return RegisteredPod(
            server.address.url,
            self._facts(server),
            takes_priority=server.takes_priority,
            settings=self._settings(server),
        )

    def _settings(self, server: ProbedServer) -> ServerSettings:
        """Return how the server was started; what its engine reports overrides its command line."""
        effective = self.loads.settings_of(server.address.port)
        if not effective:
            return server.settings
        return msgspec.structs.replace(server.settings, options={**server.settings.options, **effective})

    def _facts(self, server: ProbedServer) -> PodFacts:
        """Merge all facts of a server; one that is invalid is left out and logged once."""
        merged = self._machine_facts | server.facts | dict(self._plan.configured_facts)
        try:
            return read_facts(merged)
        except InvalidFacts as bad:
            unlogged = [fault for fault in bad.errors if fault not in self._logged_faults]
            if unlogged and len(self._logged_faults) < MAX_LOGGED_FAULTS:
                self._logged_faults.update(unlogged)
                self._log_event("warning", "server_facts_dropped", upstream=server.address.url, errors=unlogged)
            wrong = {fault.partition(":")[0] for fault in bad.errors}
            return read_facts({word: value for word, value in merged.items() if word not in wrong})

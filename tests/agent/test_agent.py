"""An agent, servers that come and go beside it, and a real Redis that does too."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from agent.agent import Agent, AgentPlan
from agent.heartbeat import HeartbeatIntervals
from agent.server import ServerProber
from agent.server_process import ServerCommand
from gateway.runtime.redis_location import parse_redis_url
from routing.facts import PodFacts, PromptLengths, Role
from routing.pod_record import AgentRecord, RegistrationState, read_record, record_channel, record_key
from tests.agent.node import GUARD_S, Node, VllmLike, node
from tests.gateway.kv_index.redis_servers import Server, redis_server

NAME = "node-7"

GONE = -2
"""In place of the milliseconds that a key of Redis has left."""


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[Server]:
    async with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def scene(redis: Server, *, ttl_s: float = 60.0, given: bool = False) -> AsyncIterator[tuple[Node, VllmLike]]:
    """One server, which an agent finds or is given."""
    server = VllmLike()
    await server.start()
    try:
        where = {"configured_servers" if given else "probed_servers": (server.spot,)}
        stated = {"zone": "a", "prompts": "long"}
        plan = AgentPlan(
            NAME,
            **where,
            machine_facts={"gpu": "none", "gpus": 0},
            configured_facts=stated,
            intervals=HeartbeatIntervals(ttl_s, 0.01),
            probe_interval_s=0.02,
        )
        async with node(redis, plan) as started:
            yield started, server
    finally:
        await server.stop()


def serves(record: AgentRecord | None) -> bool:
    return record is not None and len(record.pods) == 1


def is_empty(record: AgentRecord | None) -> bool:
    return record is not None and not record.pods


async def test_a_server_is_registered_as_it_is(redis: Server) -> None:
    """Facts of machine, server, command and operator in one."""
    async with scene(redis) as (started, server):
        record = await started.until(serves)
        assert record is not None
        (pod,) = record.pods
        assert pod.url == server.spot.url
        assert pod.state is RegistrationState.SERVING
        assert pod.facts == PodFacts(
            models=("m",),
            version="0.32.0",
            kv_connector="NixlConnector",
            kv_role="kv_producer",
            side_channel="10.0.0.7:5601",
            gpu="none",
            gpus=0,
            zone="a",
            prompts=PromptLengths.LONG,
        )
        assert pod.facts.effective_role is Role.PREFILL


async def test_a_server_that_dies_is_taken_out_and_found_again(redis: Server) -> None:
    """At the next look; with what it is then."""
    async with scene(redis) as (started, server):
        await started.until(serves)
        await server.stop()
        await started.until(is_empty)
        server.models = ["n"]
        await server.start()
        record = await started.until(serves)
        assert record is not None
        assert record.pods[0].facts.models == ("n",)


async def test_a_server_that_is_not_ready_is_not_registered(redis: Server) -> None:
    """One that was given is waited for."""
    async with scene(redis, given=True) as (started, server):
        await started.until(serves)
        server.health = 503
        await started.until(is_empty)
        server.health = 200
        await started.until(serves)


async def test_an_emptied_redis_is_filled_by_the_next_beat(redis: Server) -> None:
    """Nobody tells the agent; each beat writes all of it."""
    async with scene(redis, ttl_s=3.0) as (started, _):
        await started.until(serves)
        await redis.log_event("FLUSHALL")
        await started.until(serves)


async def test_a_redis_that_was_gone_is_filled_when_it_is_back(redis: Server) -> None:
    """Said once as it goes, once as it comes; the agent goes on meanwhile."""
    async with scene(redis, ttl_s=3.0) as (started, _):
        await started.until(serves)
        await redis.kill()
        await started.until(lambda _: any(line.startswith("heartbeat_failed") for line in started.log))
        await redis.start()
        await started.until(serves)
        await started.until(lambda _: any(line.startswith("heartbeat_recovered") for line in started.log))
        assert sum(line.startswith("heartbeat_failed") for line in started.log) == 1
        assert sum(line.startswith("heartbeat_recovered") for line in started.log) == 1


async def test_an_agent_that_is_killed_is_forgotten_after_its_ttl(redis: Server) -> None:
    """Its key expires by Redis' own clock."""
    async with scene(redis, ttl_s=3.0) as (started, _):
        await started.until(serves)
        left_ms: object = GONE
        # Between two beats the key may have run out, where the machine stands still for so long.
        while left_ms in (GONE, 0):
            left_ms = await redis.log_event("PTTL", record_key("", NAME))
        assert isinstance(left_ms, int)
        assert 0 < left_ms <= 3000
    await started.until(lambda record: record is None)


async def test_draining_is_reported_and_leaving_takes_all_out(redis: Server) -> None:
    """First nothing new, then no key."""
    async with scene(redis) as (started, _):
        await started.until(serves)
        started.agent.drain()
        await started.until(
            lambda record: serves(record) and record is not None and record.pods[0].state is RegistrationState.DRAINING
        )
        await started.heart.deregister()
    assert await started.registered() is None


async def test_a_new_agent_takes_over_without_a_gap(redis: Server) -> None:
    """What the last agent has registered stays until the new one has probed, and while a server is slow to answer."""
    async with scene(redis) as (started, server):
        await started.until(serves)
        plan = AgentPlan(NAME, probed_servers=(server.spot,), intervals=HeartbeatIntervals(60.0, 0.01))
    released = asyncio.Event()
    async with silent(server.port, released), node(redis, plan) as second:
        assert not second.heart.beats
        await second.until(lambda _: second.heart.beats > 0)
        record = await second.registered()
        assert serves(record), "the first beat has removed the pod"
        assert record is not None
        assert record.pods[0].facts.kv_connector == "NixlConnector"
        released.set()


async def test_a_server_that_has_gone_meanwhile_is_not_taken_over(redis: Server) -> None:
    """Its port is closed, so the first probe removes it."""
    async with scene(redis) as (started, server):
        await started.until(serves)
        plan = AgentPlan(NAME, probed_servers=(server.spot,), intervals=HeartbeatIntervals(60.0, 0.01))
    async with node(redis, plan) as second:
        await second.until(is_empty)


async def test_facts_of_a_server_that_was_taken_over_are_read_again(redis: Server) -> None:
    """It may have been restarted with other flags while no agent was there."""
    async with scene(redis) as (started, server):
        await started.until(serves)
        plan = AgentPlan(NAME, probed_servers=(server.spot,), intervals=HeartbeatIntervals(60.0, 0.01))
    await server.start()
    try:
        async with node(redis, plan, behind=lambda _: ServerCommand(("vllm", "serve", "m"), {})) as second:
            record = await second.until(lambda found: serves(found) and second.heart.beats > 0)
        assert record is not None
        assert record.pods[0].facts.kv_connector is None
    finally:
        await server.stop()


@asynccontextmanager
async def silent(port: int, released: asyncio.Event) -> AsyncIterator[None]:
    """A server on this port that accepts and answers nothing."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()

    held = await asyncio.start_server(hold, "127.0.0.1", port)
    try:
        yield
    finally:
        released.set()
        held.close()


async def test_figures_of_load_go_out_by_channel(redis: Server) -> None:
    """Together with the record, without waiting for a beat."""
    client = redis.client()
    async with scene(redis) as (started, server), client, client.pubsub(ignore_subscribe_messages=True) as received:
        await started.until(serves)
        await received.subscribe(record_channel(""))
        word = {"port": server.port, "running": 2, "waiting": 1, "kv_usage": 0.5}
        async with asyncio.timeout(GUARD_S):
            while True:
                # Said again until it is heard: the subscription may have come after the first. Each is news.
                word["running"] += 1
                started.agent.loads.datagram_received(json.dumps(word).encode(), ("127.0.0.1", 1))
                message = await received.get_message(timeout=1)
                loads = read_record(message["data"]).pods[0].loads if message else ()
                if loads:
                    break
    (load,) = loads
    assert load.running > 2
    assert (load.rank, load.waiting, load.kv_usage) == (0, 1, 0.5)


async def test_beats_go_on_under_a_flood_of_load(redis: Server) -> None:
    """Figures are published, but the key is written at its time all the same."""
    async with scene(redis, ttl_s=0.3) as (started, server):
        await started.until(serves)
        beats, running = started.heart.beats, 0
        async with asyncio.timeout(GUARD_S):
            while started.heart.beats < beats + 5:
                running += 1
                word = {"port": server.port, "running": running, "waiting": 0, "kv_usage": 0.0}
                started.agent.loads.datagram_received(json.dumps(word).encode(), ("127.0.0.1", 1))
                turn = asyncio.Event()
                asyncio.get_running_loop().call_later(0.002, turn.set)
                await turn.wait()


async def test_a_server_that_cannot_be_read_hides_no_other() -> None:
    """Whatever its command line or its files raise is reported; what answers is registered, this one without facts."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: reported.append(fault["message"]))
    servers = VllmLike(), VllmLike()
    for server in servers:
        await server.start()

    def behind(port: int) -> ServerCommand:
        if port == servers[0].port:
            raise RuntimeError("cannot be read")
        return ServerCommand()

    plan = AgentPlan(NAME, configured_servers=tuple(server.spot for server in servers))
    try:
        async with aiohttp.ClientSession() as session:
            agent = Agent(
                plan,
                ServerProber(session, behind),
                parse_redis_url("redis://127.0.0.1:1"),
                log_event=lambda *_, **__: None,
                clock=lambda: 0.0,
                draw=lambda: 0.0,
                life=1,
            )
            await agent.probe_all()
    finally:
        for server in servers:
            await server.stop()
    assert reported == ["exception in probe"]
    assert {pod.url: pod.facts.version for pod in agent.record().pods} == {
        servers[0].spot.url: None,
        servers[1].spot.url: "0.32.0",
    }

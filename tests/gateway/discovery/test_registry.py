"""Pods registered in a real Redis are found, whatever becomes of that Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from gateway.discovery.registry import AgentRegistry, PollIntervals, RegistrySource
from gateway.runtime.redis_location import parse_redis_url
from routing.pod_record import (
    AgentRecord,
    EngineLoad,
    GpuReading,
    NodeReading,
    RegisteredPod,
    record_channel,
    record_key,
    write_record,
)
from tests.gateway.discovery.following import Heard, following
from tests.gateway.kv_index.redis_servers import Server, redis_server

A, B, C = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))

QUICK = PollIntervals(
    poll_interval_s=0.05, expiry_interval_s=0.02, response_timeout_s=30, min_backoff_s=0.02, max_backoff_s=0.1
)
"""But patient with a Redis that is alive: the machine may be busy."""

AWAY, BACK = "agent_registry_unavailable", "agent_registry_recovered"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with redis_server(tmp_path) as running:
        yield running


class Agent:
    """Writes what an agent writes."""

    def __init__(self, server: Server, name: str, *urls: str, ttl_s: float = 60.0) -> None:
        self.server, self.name, self.ttl_s = server, name, ttl_s
        self.pods: tuple[RegisteredPod, ...] = tuple(map(RegisteredPod, urls))
        self._beats: Iterator[int] = count(1)

    async def beat(self, *, aloud: bool = False) -> None:
        written = write_record(AgentRecord(self.name, next(self._beats), self.ttl_s, self.pods, life=1))
        await self.server.log_event("SET", record_key("", self.name), written, "PX", int(self.ttl_s * 1000))
        if aloud:
            await self._publish(written)

    async def leave(self) -> None:
        await self.server.log_event("DEL", record_key("", self.name))
        await self._publish(write_record(AgentRecord(self.name, next(self._beats), self.ttl_s, (), life=1)))

    async def _publish(self, written: bytes) -> None:
        await self.server.log_event("PUBLISH", record_channel(""), written)


@asynccontextmanager
async def registered(
    server: Server, *, stale_ttl_s: float = 60.0, pace: PollIntervals = QUICK, prefix: str = ""
) -> AsyncIterator[tuple[Heard, list[AgentRecord]]]:
    received, records = Heard(), list[AgentRecord]()
    source = RegistrySource(
        parse_redis_url(f"{server.url}?prefix={prefix}"),
        stale_ttl_s=stale_ttl_s,
        log_event=received.log_event,
        clock=asyncio.get_running_loop().time,
        draw=lambda: 0.5,
        on_record=records.append,
        pace=pace,
    )
    async with following(source, received):
        yield received, records


async def somebody_listens(server: Server) -> None:
    """Until the subscription stands nobody hears what is published."""
    async with asyncio.timeout(60):
        while not await server.log_event("PUBLISH", record_channel(""), "anybody?"):
            retry = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, retry.set)
            await retry.wait()


async def test_registered_pods_are_found(server: Server) -> None:
    """Of all agents; other keys and other fleets on the same Redis do not matter."""
    await server.log_event("SET", "hearth:other", "x")
    await server.log_event("SET", record_key("east:", "n9"), "x")
    await Agent(server, "n1", A, B).beat()
    async with registered(server) as (received, _):
        await received.hears(A, B)
        await Agent(server, "n2", C).beat()
        await received.hears(A, B, C)
    assert received.stated == []


async def test_an_agent_that_speaks_or_leaves_is_received_at_once(server: Server) -> None:
    """Without waiting for the next look at the keys; figures of load come the same way."""
    agent, other = Agent(server, "n1", A), Agent(server, "n2", B)
    await agent.beat()
    async with registered(server, pace=replace(QUICK, poll_interval_s=3600)) as (received, records):
        await received.hears(A)
        other.pods = (RegisteredPod(B, loads=(EngineLoad(running=3),)),)
        await somebody_listens(server)
        await other.beat(aloud=True)
        await received.hears(A, B)
        assert records[-1].pods[0].loads == (EngineLoad(running=3),)
        await agent.leave()
        await received.hears(B)


def test_readings_of_nodes_are_kept_as_long_as_their_agents() -> None:
    """The last of each; an agent without GPUs and RDMA ports has none."""
    agents, reading = AgentRegistry(), NodeReading((GpuReading(0.5),))
    agents.update(AgentRecord("n1", 1, 15.0, node=NodeReading((GpuReading(0.1),))), 0.0)
    agents.update(AgentRecord("n1", 2, 15.0, node=reading), 1.0)
    agents.update(AgentRecord("n2", 1, 15.0), 1.0)
    assert agents.nodes() == {"n1": reading}
    agents.expire(16.5)
    assert agents.nodes() == {}


async def test_an_agent_that_falls_silent_is_forgotten(server: Server) -> None:
    """After the time that it gave itself."""
    agent, other = Agent(server, "n1", A), Agent(server, "n2", B)
    await agent.beat()
    await other.beat()
    async with registered(server, pace=replace(QUICK, poll_interval_s=3600)) as (received, _):
        await received.hears(A, B)
        await somebody_listens(server)
        other.ttl_s = 0.2
        await other.beat(aloud=True)
        await received.hears(A)


async def test_an_emptied_redis_costs_nothing(server: Server) -> None:
    """Nobody has said that these pods are gone; who speaks again is known again."""
    agent = Agent(server, "n1", A)
    await agent.beat()
    async with registered(server) as (received, _):
        await received.hears(A)
        await server.log_event("FLUSHALL")
        seen = len(received.reported)
        await received.until(lambda: len(received.reported) > seen + 3)
        assert received.urls == [A]
        agent.pods = (RegisteredPod(B),)
        await agent.beat()
        await received.hears(B)


async def test_the_last_list_stands_while_redis_is_dead(server: Server) -> None:
    """And for as long afterwards as agents need to speak again, though it comes back empty."""
    agent = Agent(server, "n1", A)
    await agent.beat()
    async with registered(server) as (received, _):
        await received.hears(A)
        await server.kill()
        await received.until(lambda: AWAY in received.stated)
        await server.start()
        await received.until(lambda: BACK in received.stated)
        assert received.urls == [A]
        agent.pods = (RegisteredPod(A), RegisteredPod(B))
        await agent.beat()
        await received.hears(A, B)
    assert all(reported for reported in received.reported)


async def test_the_last_list_stands_while_redis_hangs(server: Server) -> None:
    """Connections stand and nothing is answered; that is noticed, and so is its end."""
    await Agent(server, "n1", A).beat()
    async with registered(server, pace=replace(QUICK, response_timeout_s=0.5)) as (received, _):
        await received.hears(A)
        await server.hang()
        try:
            await received.until(lambda: AWAY in received.stated)
            assert received.urls == [A]
        finally:
            await server.wake()
        await received.until(lambda: BACK in received.stated)
        assert received.urls == [A]


async def test_the_last_list_does_not_stand_for_ever(server: Server) -> None:
    """Only for the time that the configuration states."""
    await Agent(server, "n1", A).beat()
    async with registered(server, stale_ttl_s=0.2) as (received, _):
        await received.hears(A)
        await server.kill()
        await received.hears()


@pytest.mark.parametrize("written", ["{", '{"v":2}', "x" * 70_000, '{"v":1,"agent":"n9","beat":1,"ttl_s":0,"pods":[]}'])
async def test_a_record_that_cannot_be_read_is_passed_over(server: Server, written: str) -> None:
    """It is said once; the others count."""
    await Agent(server, "n1", A).beat()
    await server.log_event("SET", record_key("", "n9"), written)
    async with registered(server) as (received, _):
        await received.hears(A)
        await received.until(lambda: len(received.reported) > 3)
    assert received.stated == ["agent_record_invalid"]

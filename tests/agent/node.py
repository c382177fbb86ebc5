"""A node for tests: servers that answer as vLLM does, on loopback, and an agent in this process beside them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
from aiohttp import web

from agent.agent import Agent, AgentPlan
from agent.server import ServerAddress, ServerProber
from agent.server_process import ServerCommand
from gateway.runtime.redis_location import parse_redis_url
from routing.pod_record import AgentRecord, read_record, record_key
from tests.gateway.kv_index.redis_servers import Server, free_port

GUARD_S = 120.0

COMMAND = ServerCommand(
    ("vllm", "serve", "m", "--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'),
    {"VLLM_NIXL_SIDE_CHANNEL_PORT": "5601"},
)


class VllmLike:
    """As much of a vLLM server as an agent asks."""

    def __init__(self) -> None:
        self.health = 200
        self.models = ["m"]
        self.port = free_port()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen, on the port it had before where it begins anew."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", answers({"version": "0.32.0"}))
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def spot(self) -> ServerAddress:
        return ServerAddress(f"http://127.0.0.1:{self.port}", f"http://10.0.0.7:{self.port}")

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})


def answers(stated: dict[str, Any]) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(stated)

    return answer


class Node:
    """An agent at work, and what it has said in its log."""

    def __init__(self, agent: Agent, redis: Server, name: str, log: list[str]) -> None:
        self.agent = agent
        self.heart = agent.heart
        self.log = log
        self._redis = redis
        self._name = name

    async def registered(self) -> AgentRecord | None:
        """What stands in Redis; None where there is nothing, or no Redis."""
        with suppress(Exception):
            written = await self._redis.log_event("GET", record_key("", self._name))
            return read_record(written) if isinstance(written, bytes) else None
        return None

    async def until(self, is_so: Callable[[AgentRecord | None], bool]) -> AgentRecord | None:
        """Wait until what stands in Redis is so."""
        async with asyncio.timeout(GUARD_S):
            while not is_so(found := await self.registered()):
                turn = asyncio.Event()
                asyncio.get_running_loop().call_later(0.02, turn.set)
                await turn.wait()
        return found


@asynccontextmanager
async def node(
    redis: Server, plan: AgentPlan, behind: Callable[[int], ServerCommand] = lambda _: COMMAND
) -> AsyncIterator[Node]:
    """An agent that looks and beats; stopped without leaving, as one that is killed."""
    log: list[str] = []

    def log_event(level: str, message: str, **fields: object) -> None:
        log.append(f"{message} {json.dumps(fields, default=str)}")

    async with aiohttp.ClientSession() as session:
        asker, clock = ServerProber(session, behind), asyncio.get_running_loop().time
        agent = Agent(
            plan, asker, parse_redis_url(redis.url), log_event=log_event, clock=clock, draw=lambda: 0.5, life=1
        )
        tasks = [asyncio.create_task(agent.run(), name="look"), asyncio.create_task(agent.heart.run(), name="beat")]
        try:
            yield Node(agent, redis, plan.name, log)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

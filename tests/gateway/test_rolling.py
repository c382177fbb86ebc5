"""All pods and all gateways are restarted one by one under load, and no request fails.

OpenAI's client asks without a pause through a plain balancer; what it raises is a failure, whatever it has tried again
by itself. One gateway is one process, the other one is several.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from simulator.children import running
from tests.chaos.wire import wired
from tests.gateway.running import Running, serving
from tests.gateway.warmth.redis_servers import free_ports

MODEL = "tiny"
CLIENTS = 6
TOKENS = 20
PATIENCE_S = 120.0


@dataclass
class Load:
    """Clients that ask one after the other until they are told to stop."""

    url: str
    over: asyncio.Event = field(default_factory=asyncio.Event)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    served: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self, client: AsyncOpenAI, number: int) -> None:
        turn = 0
        while not self.over.is_set():
            turn += 1
            try:
                words = await self.ask(client, f"client {number}, turn {turn}", is_streamed=bool(turn % 3))
            except Exception as error:  # noqa: BLE001 - whatever a client sees is what is looked for
                self.failures.append(repr(error))
                return
            else:
                if words != TOKENS:
                    self.failures.append(f"{words} tokens")
                self.served += 1
            finally:
                self.stirred.set()

    async def ask(self, client: AsyncOpenAI, text: str, *, is_streamed: bool) -> int:
        """How many tokens are said to have come."""
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": TOKENS,
        }
        if not is_streamed:
            whole = await client.chat.completions.create(**body)
            return int(whole.usage.completion_tokens)
        told = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        counts = [chunk.usage.completion_tokens async for chunk in told if chunk.usage is not None]
        return int(counts[-1]) if counts else 0

    async def goes_on(self) -> None:
        """Wait until some more have been served."""
        wanted = self.served + CLIENTS
        async with asyncio.timeout(PATIENCE_S):
            while self.served < wanted and not self.failures:
                self.stirred.clear()
                await self.stirred.wait()


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():
            pass


@asynccontextmanager
async def loaded(url: str) -> AsyncIterator[Load]:
    """Clients at work. What they made of it is told at the end."""
    load = Load(url)
    async with AsyncExitStack() as stack:
        clients = [AsyncOpenAI(base_url=f"{url}/v1", api_key="k", timeout=PATIENCE_S) for _ in range(CLIENTS)]
        for client in clients:
            stack.push_async_callback(client.close)
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(load.run(client, number))
            try:
                await load.goes_on()
                yield load
                await load.goes_on()
            finally:
                load.over.set()


@dataclass
class Seat:
    """A place that a program after the other takes."""

    start: Callable[[], AbstractAsyncContextManager[Any]]
    stack: AsyncExitStack
    now: Any = None
    _life: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def fill(self) -> None:
        self._life = await self.stack.enter_async_context(AsyncExitStack())
        self.now = await self._life.enter_async_context(self.start())

    async def empty(self) -> None:
        await self._life.aclose()


def a_pod(port: int, folder: Path) -> AbstractAsyncContextManager[Any]:
    where, length = ("--listen", f"127.0.0.1:{port}"), ("--shortest-answer", str(TOKENS))
    words = (*where, *length, "--model", MODEL, "--step-base-s", "0.01")
    log = folder / f"pod-{port}.log"
    return running("simulator.pod", words, name=f"pod {port}", log=log, greeting=lambda line: line or None)


def a_gateway(ports: Sequence[int], pods: Sequence[str], flags: Sequence[str]) -> AbstractAsyncContextManager[Running]:
    names = ("--listen", "--metrics", "--admin")
    where = tuple(word for name, port in zip(names, ports, strict=True) for word in (name, f"127.0.0.1:{port}"))
    return serving(*(word for pod in pods for word in ("--pod", pod)), *flags, where=where)


async def roll_pod(seat: Seat, url: str, gateways: Sequence[Seat], session: aiohttp.ClientSession) -> None:
    """As an operator does: nothing new for it, wait, restart it, take it back."""

    async def order(what: str) -> None:
        for gateway in gateways:
            async with session.post(gateway.now.at("admin", f"/pods/{what}"), json={"pod": url}) as answer:
                assert answer.status == 200, await answer.text()

    async def shows(gateway: Seat, is_so: Callable[[dict[str, Any]], bool]) -> bool:
        async with session.get(gateway.now.at("admin", "/fleet")) as answer:
            fleet = await answer.json()
        return is_so(next(pod for pod in fleet["pods"] if pod["url"] == url))

    await order("drain")
    for gateway in gateways:
        await until(partial(shows, gateway, lambda pod: not any(one["ledger"]["running"] for one in pod["engines"])))
    await seat.empty()
    await seat.fill()
    await order("undrain")
    for gateway in gateways:
        await until(partial(shows, gateway, lambda pod: pod["standing"] == "ready"))


async def roll_gateway(seat: Seat) -> None:
    gateway: Running = seat.now
    gateway.running.send_signal(signal.SIGTERM)
    assert await gateway.end() == 0
    await seat.empty()
    await seat.fill()


@pytest.mark.timeout(600)
async def test_pods_and_gateways_are_rolled_and_no_request_fails(tmp_path: Path) -> None:
    """Two pods and two gateways, each restarted where it was, while six clients ask without a pause."""
    ports = iter(free_ports(8))
    pod_ports = [next(ports), next(ports)]
    urls = [f"http://127.0.0.1:{port}" for port in pod_ports]
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        pods = [Seat(partial(a_pod, port, tmp_path), stack) for port in pod_ports]
        gateways = [
            Seat(partial(a_gateway, [next(ports) for _ in range(3)], urls, flags), stack)
            for flags in ((), ("--processes", "2"))
        ]
        for seat in (*pods, *gateways):
            await seat.fill()
        front = await stack.enter_async_context(wired(*(seat.now.at("traffic") for seat in gateways)))
        async with loaded(front.url) as load:
            for seat, url in zip(pods, urls, strict=True):
                await roll_pod(seat, url, gateways, session)
                await load.goes_on()
            for seat in gateways:
                await roll_gateway(seat)
                await load.goes_on()
        assert not load.failures, load.failures
        assert load.served > 5 * CLIENTS

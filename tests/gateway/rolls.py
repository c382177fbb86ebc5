"""Load without a pause, and the ways in which operators replace what serves it: pods and gateways, one by one.

OpenAI's client asks; what it raises is a failure, whatever it has tried again by itself.
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
from openai import AsyncOpenAI

from simulator.children import running
from tests.gateway.running import Running, serving

MODEL = "tiny"
CLIENTS = 6
TOKENS = 20
PATIENCE_S = 120.0
AT_WORK = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass
class Load:
    """Clients that ask one after the other until they are told to stop."""

    url: str
    more: str = ""
    """What each of them adds to its question."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    served: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self, client: AsyncOpenAI, number: int) -> None:
        turn = 0
        while not self.over.is_set():
            turn += 1
            try:
                words = await self.ask(client, f"client {number}, turn {turn}{self.more}", is_streamed=bool(turn % 3))
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
            complete = await client.chat.completions.create(**body)
            return int(complete.usage.completion_tokens)
        reported = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        counts = [chunk.usage.completion_tokens async for chunk in reported if chunk.usage is not None]
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
async def loaded(url: str, *, retries: int, more: str = "") -> AsyncIterator[Load]:
    """Clients at work, that try again so often by themselves. What they made of it is told at the end."""
    load = Load(url, more)
    async with AsyncExitStack() as stack:
        common: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "k", "timeout": PATIENCE_S}
        clients = [AsyncOpenAI(**common, max_retries=retries) for _ in range(CLIENTS)]
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
    where, length = ("--listen", f"127.0.0.1:{port}"), ("--min-answer-tokens", str(TOKENS))
    words = (*where, *length, "--model", MODEL, "--step-base-s", "0.01")
    log = folder / f"pod-{port}.log"
    return running("simulator.pod", words, name=f"pod {port}", log=log, greeting=lambda line: line or None)


def a_gateway(ports: Sequence[int], pods: Sequence[str], flags: Sequence[str]) -> AbstractAsyncContextManager[Running]:
    names = ("--listen", "--metrics-listen", "--admin-listen")
    where = tuple(word for name, port in zip(names, ports, strict=True) for word in (name, f"127.0.0.1:{port}"))
    return serving(*(word for pod in pods for word in ("--pod", pod)), *flags, where=where)


@dataclass(frozen=True)
class Operator:
    """Who tells all gateways the same, and looks at what they make of it."""

    gateways: Sequence[Seat]
    session: aiohttp.ClientSession

    async def rolls(self, pod: Seat, url: str) -> None:
        """Restart a pod where it is."""
        await self.drains(url)
        await pod.empty()
        await pod.fill()
        await self.order("undrain", url)
        await self.sees_ready(url)

    async def drains(self, url: str) -> None:
        """Nothing new for a pod, and what it has is finished."""
        await self.order("drain", url)
        await self._sees(url, lambda pod: not any(one["own_load"]["running"] for one in pod["engines"]))

    async def sees_ready(self, url: str) -> None:
        await self._sees(url, lambda pod: pod["state"] == "ready")

    async def order(self, what: str, url: str) -> None:
        for gateway in self.gateways:
            async with self.session.post(gateway.now.at("admin", f"/pods/{what}"), json={"pod": url}) as answer:
                assert answer.status == 200, await answer.text()

    async def sees_gone(self, url: str) -> None:
        """No gateway knows the pod any more; what it had there is finished."""
        for gateway in self.gateways:
            await until(partial(self._knows_not, gateway, url))
        await until(partial(self._is_empty, url))

    async def _is_empty(self, url: str) -> bool:
        async with self.session.get(f"{url}/metrics") as answer:
            page = await answer.text()
        return not any(float(stated.rsplit(" ", 1)[1]) for stated in page.splitlines() if stated.startswith(AT_WORK))

    async def _knows_not(self, gateway: Seat, url: str) -> bool:
        return not await self._shows(gateway, url, lambda _: True)

    async def _sees(self, url: str, is_so: Callable[[dict[str, Any]], bool]) -> None:
        for gateway in self.gateways:
            await until(partial(self._shows, gateway, url, is_so))

    async def _shows(self, gateway: Seat, url: str, is_so: Callable[[dict[str, Any]], bool]) -> bool:
        async with self.session.get(gateway.now.at("admin", "/fleet")) as answer:
            fleet = await answer.json()
        return any(is_so(pod) for pod in fleet["pods"] if pod["url"] == url)


async def roll_gateway(seat: Seat) -> None:
    gateway: Running = seat.now
    gateway.running.send_signal(signal.SIGTERM)
    assert await gateway.end() == 0
    await seat.empty()
    await seat.fill()

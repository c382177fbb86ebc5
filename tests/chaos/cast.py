"""Who takes part in a run: simulated pods, gateways, Redis and a plain balancer, each a program of its own.

Knows how each is started, ended and made to misbehave; not when, nor what clients see of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from simulator.children import end
from tests.chaos.balancer import balancing
from tests.gateway.warmth.redis_servers import Server, free_port
from tests.sources import ROOT

LIFE_S = 3 * 3600
"""Whatever becomes of a run, what it started has ended by then."""

READY_S = 120.0

MODEL = "tiny"


@dataclass(slots=True)
class Program:
    """One of ours on a port that stays its own, so that it comes back where it was."""

    name: str
    words: tuple[str, ...]
    url: str
    probe: str
    log: Path
    running: asyncio.subprocess.Process | None = None
    starts: int = 0

    async def start(self) -> None:
        """Start it; it is not ready yet."""
        self.starts += 1
        with self.log.open("ab") as log:
            self.running = await asyncio.create_subprocess_exec(
                *("timeout", "--signal=KILL", str(LIFE_S), sys.executable, "-m", *self.words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )

    async def ready(self, session: aiohttp.ClientSession) -> None:
        """Wait until its probe says 200."""
        async with asyncio.timeout(READY_S):
            while not await _says_yes(session, self.probe):
                await pause(0.1)

    def signal(self, number: signal.Signals) -> None:
        """To it and all that it started."""
        if self.running is not None and self.running.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.running.pid, number)

    async def kill(self) -> None:
        """At once, whatever it is at."""
        self.signal(signal.SIGKILL)
        if self.running is not None:
            await self.running.wait()

    async def stop(self) -> None:
        """As an operator would."""
        if self.running is not None:
            self.signal(signal.SIGCONT)
            await end(self.running)


@dataclass(slots=True)
class Cast:
    """All who take part."""

    pods: list[Program]
    gateways: list[Program]
    redis: Server
    undisturbed: Program
    """A pod like the others that no gateway knows: what it says is what should have been said."""
    front: str
    """The balancer's URL."""
    admins: list[str] = field(default_factory=list)


async def pause(seconds: float) -> None:
    """A moment of real time: programs elsewhere cannot tell us when."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, passed.set)
    await passed.wait()


async def read_json(session: aiohttp.ClientSession, url: str) -> Any:
    """What a GET gives, None where nobody answers."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=20)) as answer:
            return json.loads(await answer.read())
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


async def _says_yes(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def a_pod(name: str, folder: Path) -> Program:
    port = free_port()
    words = ("simulator.pod", "--listen", f"127.0.0.1:{port}", "--model", MODEL, "--step-base-s", "0.02")
    url = f"http://127.0.0.1:{port}"
    return Program(name, words, url, f"{url}/health", folder / f"{name}.log")


def a_gateway(name: str, folder: Path, pods: Sequence[Program], redis: str) -> tuple[Program, str]:
    traffic, admin, metrics = free_port(), free_port(), free_port()
    named = tuple(word for pod in pods for word in ("--pod", pod.url))
    where = tuple(f"127.0.0.1:{port}" for port in (traffic, admin, metrics))
    words = ("gateway", "serve", "--listen", where[0], "--admin", where[1], "--metrics", where[2], "--redis", redis)
    url = f"http://{where[0]}"
    return Program(name, (*words, *named), url, f"{url}/ready", folder / f"{name}.log"), f"http://{where[1]}"


@asynccontextmanager
async def on_stage(folder: Path, *, pods: int = 3, gateways: int = 3) -> AsyncIterator[Cast]:
    """Everybody started and ready; ended when the block ends."""
    redis = Server(folder / "redis", free_port())
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        fleet = [a_pod(f"pod{number}", folder) for number in range(pods)]
        undisturbed = a_pod("undisturbed", folder)
        made = [a_gateway(f"gateway{number}", folder, fleet, redis.url) for number in range(gateways)]
        await redis.start()
        stack.push_async_callback(_end_redis, redis)
        programs = [undisturbed, *fleet, *(gateway for gateway, _ in made)]
        for program in programs:
            stack.push_async_callback(program.stop)
            await program.start()
        for program in programs:
            await program.ready(session)
        front = await stack.enter_async_context(balancing([gateway.url for gateway, _ in made]))
        yield Cast(fleet, [gateway for gateway, _ in made], redis, undisturbed, front, [admin for _, admin in made])


async def _end_redis(redis: Server) -> None:
    if redis.running is not None:
        await end(redis.running)

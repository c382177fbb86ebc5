"""A stretch of network between programs: passes bytes on, and can be made to lag, fall silent, reset and damage them.

Several of them make a plain balancer: connections in turn to whoever takes one. Reads nothing of what passes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar
from urllib.parse import urlsplit

CONNECT_S = 1.0
"""Who does not take a connection for so long is passed over."""

PIECE = 1 << 16

DAMAGE = b"\xff\xfe"
"""Written over the beginning of a piece of an answer, where HTTP says how much comes: nobody can take it for text."""

AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER that makes of a close a reset."""

IDLE_S = 1.0
"""A connection on which nothing has passed for so long is taken to be between two requests."""

Taker = TypeVar("Taker", "Wire", "Balancer")

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Open:
    """A connection that stands: its near and its far side, and when something has passed last, by the loop's clock."""

    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    passed_s: float = 0.0


class Wire:
    """Connections to one end."""

    def __init__(self, url: str) -> None:
        self.lead_to(url)
        self._open: dict[asyncio.Task[None], Open] = {}
        self._is_passing = asyncio.Event()
        self._is_passing.set()
        self.lag_s = 0.0
        self.damages = False
        self.url = ""

    def lead_to(self, url: str) -> None:
        """New connections go there from now on; those that stand go on as they are."""
        parts = urlsplit(url)
        self._end = parts.hostname, parts.port

    def fall_silent(self) -> None:
        """Half open: connections stand, nothing comes through, and nobody learns that the other side has gone."""
        self._is_passing.clear()

    def speak(self) -> None:
        """What was held back comes through."""
        self._is_passing.set()

    def reset(self) -> None:
        """Every connection at once, both ways."""
        for task, one in self._open.items():
            for writer in one.writers:
                _reset(writer)
            task.cancel()

    def close_idle(self) -> None:
        """In order, those on which nothing passes: as balancers do, and nobody is told before his next request."""
        now_s = asyncio.get_running_loop().time()
        for task, one in self._open.items():
            if now_s - one.passed_s > IDLE_S:
                task.cancel()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection has come."""
        self._keep(self._lead(reader, writer), writer)

    def join(self, near: Ends, far: Ends) -> None:
        """A connection has come and been led to the end already."""
        self._keep(self._carry(near, far), near[1], far[1])

    async def connect(self) -> Ends | None:
        """A connection to the end; None where it takes none."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.open_connection(*self._end)
        return None

    def _keep(self, carrying: Coroutine[object, object, None], *writers: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(carrying)
        self._open[task] = Open([*writers], loop.time())
        task.add_done_callback(lambda done: self._open.pop(done, None))

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far = await self.connect()
        except BaseException:
            writer.transport.abort()
            raise
        if far is None:
            writer.transport.abort()
        else:
            self._open[_this_task()].writers.append(far[1])
            await self._carry((reader, writer), far)

    async def _carry(self, near: Ends, far: Ends) -> None:
        one = self._open[_this_task()]
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(one, near[0], far[1], answers=False))
                both.create_task(self._pump(one, far[0], near[1], answers=True))
        finally:
            far[1].transport.abort()
            near[1].transport.abort()

    async def _pump(
        self, one: Open, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        clock = asyncio.get_running_loop().time
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                await self._delayed()
                one.passed_s = clock()
                writer.write(_damaged(piece) if answers and self.damages else piece)
                await writer.drain()
        await self._delayed()
        with suppress(OSError, RuntimeError):
            writer.write_eof()

    async def _delayed(self) -> None:
        await self._is_passing.wait()
        if self.lag_s:
            late = asyncio.Event()
            asyncio.get_running_loop().call_later(self.lag_s, late.set)
            await late.wait()

    def close(self) -> None:
        for task in tuple(self._open):
            task.cancel()


class Balancer:
    """Each connection in turn to whoever takes one, over the wire that leads there."""

    def __init__(self, wires: Sequence[Wire]) -> None:
        self.wires = wires
        self.url = ""
        self._turn = count()
        self._led: set[asyncio.Task[None]] = set()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection has come."""
        task = asyncio.get_running_loop().create_task(self._lead(reader, writer))
        self._led.add(task)
        task.add_done_callback(self._led.discard)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wires, first = self.wires, next(self._turn)
        for wire in (wires[(first + further) % len(wires)] for further in range(len(wires))):
            if (far := await wire.connect()) is not None:
                wire.join((reader, writer), far)
                return
        writer.transport.abort()

    def close(self) -> None:
        for task in tuple(self._led):
            task.cancel()
        for wire in self.wires:
            wire.close()


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _damaged(piece: bytes) -> bytes:
    return DAMAGE + piece[len(DAMAGE) :]


def _reset(writer: asyncio.StreamWriter) -> None:
    if (held := writer.get_extra_info("socket")) is not None:
        with suppress(OSError):
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    writer.transport.abort()


@asynccontextmanager
async def wired(url: str) -> AsyncIterator[Wire]:
    """A wire to it, on a port of its own."""
    async with _listening(Wire(url)) as wire:
        yield wire


@asynccontextmanager
async def balanced(*urls: str) -> AsyncIterator[Balancer]:
    """A balancer before them, on a port of its own, with a wire to each in their order."""
    async with _listening(Balancer([Wire(url) for url in urls])) as balancer:
        yield balancer


@asynccontextmanager
async def _listening(taker: Taker) -> AsyncIterator[Taker]:
    server = await asyncio.start_server(taker.take, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    taker.url = f"http://{host}:{port}"
    try:
        yield taker
    finally:
        server.close()
        taker.close()

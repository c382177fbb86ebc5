"""A stretch of network between programs: passes bytes on, and can be made to lag, fall silent, reset and damage them.

With several ends it is a plain balancer: connections in turn to whoever takes one. Reads nothing of what passes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from urllib.parse import urlsplit

CONNECT_S = 1.0
"""Who does not take a connection for so long is passed over."""

PIECE = 1 << 16

DAMAGE = b"\xff\xfe"
"""Written over the beginning of a piece of an answer, where HTTP says how much comes: nobody can take it for text."""

AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER that makes of a close a reset."""

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire:
    """Connections to one end, or in turn to several."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.lead_to(urls)
        self._turn = count()
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._is_passing = asyncio.Event()
        self._is_passing.set()
        self.lag_s = 0.0
        self.damages = False
        self.url = ""

    def lead_to(self, urls: Sequence[str]) -> None:
        """New connections go there from now on; those that stand go on as they are."""
        self._ends = [(parts.hostname, parts.port) for parts in map(urlsplit, urls)]

    def fall_silent(self) -> None:
        """Half open: connections stand, nothing comes through, and nobody learns that the other side has gone."""
        self._is_passing.clear()

    def speak(self) -> None:
        """What was held back comes through."""
        self._is_passing.set()

    def reset(self) -> None:
        """Every connection at once, both ways."""
        for task, writers in self._open.items():
            for writer in writers:
                _reset(writer)
            task.cancel()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection has come."""
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._open[task] = [writer]
        task.add_done_callback(lambda done: self._open.pop(done, None))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (found := await self._connect()) is None:
                return
            up, down = found
            self._open[_this_task()].append(down)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(reader, down, answers=False))
                    both.create_task(self._pump(up, writer, answers=True))
            finally:
                down.transport.abort()
        finally:
            writer.transport.abort()

    async def _connect(self) -> Ends | None:
        ends, first = self._ends, next(self._turn)
        for host, port in (ends[(first + further) % len(ends)] for further in range(len(ends))):
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(host, port)
        return None

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                await self._delayed()
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
async def wired(*urls: str) -> AsyncIterator[Wire]:
    """A wire to these, on a port of its own."""
    wire = Wire(urls)
    server = await asyncio.start_server(wire.take, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    wire.url = f"http://{host}:{port}"
    try:
        yield wire
    finally:
        server.close()
        wire.close()

"""Links and servers that neither answer nor close: a proxy that stops forwarding, and answers that never end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

from tests.gateway.fake_pod import Pulse

DRIP_S = 0.02
"""Between two pieces of an answer that never ends."""


@dataclass
class FreezingLink:
    """Forwards bytes both ways until it is frozen. Then it accepts and reads on, and nothing arrives anywhere."""

    target: int
    port: int = 0
    is_frozen: bool = False
    swallowed: int = 0
    """POST requests that were sent into the frozen link."""
    _ends: set[asyncio.StreamWriter] = field(default_factory=set)
    _pulse: Pulse = field(default_factory=Pulse)

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", self.target)
        ends = (writer, back)
        self._ends.update(ends)
        await asyncio.gather(self._carry(reader, back), self._carry(onward, writer), return_exceptions=True)
        for end in ends:
            end.transport.abort()
            self._ends.discard(end)
        self._pulse.beat()

    async def stop(self) -> None:
        """Close what is open, and wait until it is."""
        for end in tuple(self._ends):
            end.transport.abort()
        await self._pulse.until(lambda: not self._ends)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await source.read(1 << 16):
                if self.is_frozen:
                    self.swallowed += piece.startswith(b"POST ")
                    continue
                sink.write(piece)
                await sink.drain()
            if not self.is_frozen and sink.can_write_eof():
                sink.write_eof()


@asynccontextmanager
async def a_link(target: int) -> AsyncIterator[FreezingLink]:
    """A link to a port of this machine."""
    link = FreezingLink(target)
    server = await asyncio.start_server(link.meet, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        await link.stop()


OPENS_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
OPENS_BODY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"

ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x-%d: y\r\n"),
    "header bytes": (b"HTTP/1.1 200 OK\r\nx: ", b"y"),
    "interim responses": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "body": (OPENS_BODY, b" "),
    "error body": (b"HTTP/1.1 500 Oh\r\ncontent-type: application/json\r\n\r\n{", b" "),
    "comments": (OPENS_STREAM, b": %d\n\n"),
    "one event": (OPENS_STREAM + b"data: ", b"x"),
    "empty events": (OPENS_STREAM, b"data: {}\n\n"),
    "tokens": (OPENS_STREAM, b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'),
}
"""Answers that never end: how each begins, and what follows again and again (`%d`: a number)."""


@dataclass
class EndlessServer:
    """Answers every request in one of the ways of `ENDLESS`."""

    way: str = "nothing"
    port: int = 0
    closed: int = 0
    """Connections that the other side has given up."""
    pulse: Pulse = field(default_factory=Pulse)
    """Beats with each of them."""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def has_closed(self, count: int) -> bool:
        """Whether so many connections were given up."""
        return self.closed >= count

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
            await reader.readexactly(length)
            first, piece = ENDLESS[self.way]
            writer.write(first)
            gone = asyncio.create_task(reader.read())
            for number in count():
                done, _ = await asyncio.wait([gone], timeout=DRIP_S)
                if done:
                    break
                writer.write(piece % number if b"%d" in piece else piece)
            await gone
        self.closed += 1
        writer.transport.abort()
        self._writers.discard(writer)
        self.pulse.beat()

    async def stop(self) -> None:
        """Close what is open, and wait until it is."""
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self.pulse.until(lambda: not self._writers)


@asynccontextmanager
async def an_endless_server() -> AsyncIterator[EndlessServer]:
    """A server that listens."""
    endless = EndlessServer()
    server = await asyncio.start_server(endless.meet, "127.0.0.1", 0)
    endless.port = server.sockets[0].getsockname()[1]
    try:
        yield endless
    finally:
        server.close()
        await endless.stop()

"""A TCP proxy before a pod that forwards a bounded number of bytes of each event stream, until all connections are cut.

An engine and its client share two cores in these tests: an engine that spins may finish a stream before the client has
read its beginning. Behind this proxy a stream is cut at a known byte, however fast the engine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

PIECE = 1 << 16

EVENT_STREAM = b"text/event-stream"


class Meter:
    """Forwards at most `max_bytes` of each event stream; `all_held` is set when `streams` streams have reached them."""

    def __init__(self, pod_url: str, max_bytes: int, streams: int) -> None:
        parts = urlsplit(pod_url)
        self._pod = parts.hostname, parts.port
        self.max_bytes = max_bytes
        self._waiting = streams
        self._connections: set[asyncio.Task[None]] = set()
        self.all_held = asyncio.Event()
        self.url = ""

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._forward(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    def cut(self) -> None:
        """Abort all connections."""
        for task in tuple(self._connections):
            task.cancel()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pod_writer: asyncio.StreamWriter | None = None
        try:
            with suppress(OSError):
                pod_reader, pod_writer = await asyncio.open_connection(*self._pod)
                await _Connection(self, reader, writer, pod_reader, pod_writer).run()
        finally:
            for each in (writer, pod_writer):
                if each is not None:
                    each.transport.abort()

    async def hold(self) -> None:
        """Count a stream that has reached its bytes, and wait for the cut."""
        self._waiting -= 1
        if self._waiting == 0:
            self.all_held.set()
        await asyncio.Event().wait()


class _Connection:
    """One connection with what has been forwarded of the response under way."""

    def __init__(
        self,
        meter: Meter,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pod_reader: asyncio.StreamReader,
        pod_writer: asyncio.StreamWriter,
    ) -> None:
        self._meter = meter
        self._client = reader, writer
        self._pod = pod_reader, pod_writer
        self._forwarded = 0
        self._streams = False

    async def run(self) -> None:
        requests = asyncio.get_running_loop().create_task(self._requests())
        try:
            await self._responses()
        finally:
            requests.cancel()
            await asyncio.gather(requests, return_exceptions=True)

    async def _requests(self) -> None:
        while piece := await self._client[0].read(PIECE):
            self._forwarded, self._streams = 0, False
            self._pod[1].write(piece)
            await self._pod[1].drain()
        self._pod[1].write_eof()

    async def _responses(self) -> None:
        while piece := await self._pod[0].read(PIECE):
            self._streams = self._streams or (self._forwarded == 0 and EVENT_STREAM in piece)
            left = self._meter.max_bytes - self._forwarded if self._streams else len(piece) + 1
            self._forwarded += len(piece)
            self._client[1].write(piece[:left])
            await self._client[1].drain()
            if len(piece) >= left:
                await self._meter.hold()


@asynccontextmanager
async def metered(pod_url: str, max_bytes: int, streams: int) -> AsyncIterator[Meter]:
    """A proxy before this pod, on a port of its own."""
    meter = Meter(pod_url, max_bytes, streams)
    server = await asyncio.start_server(meter.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    meter.url = f"http://{host}:{port}"
    try:
        yield meter
    finally:
        server.close()
        meter.cut()

"""A plain balancer: connections in turn to whoever takes one. Reads nothing of what passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from urllib.parse import urlsplit

CONNECT_S = 1.0
"""Who does not take a connection for so long is passed over."""

PIECE = 1 << 16


class Balancer:
    """Round robin over addresses."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._places = [(parts.hostname, parts.port) for parts in map(urlsplit, urls)]
        self._turn = count()
        self.open: set[asyncio.Task[None]] = set()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection has come."""
        task = asyncio.get_running_loop().create_task(self.carry(reader, writer))
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        try:
            found = await self._connect()
            if found is None:
                return
            up, down = found
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, down))
                    both.create_task(_pump(up, writer))
            finally:
                down.transport.abort()
        finally:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in self._places:
            host, port = self._places[next(self._turn) % len(self._places)]
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(host, port)
        return None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.write_eof()


@asynccontextmanager
async def balancing(urls: Sequence[str]) -> AsyncIterator[str]:
    """A balancer on a port of its own, by URL."""
    balancer = Balancer(urls)
    server = await asyncio.start_server(balancer.take, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for open_one in tuple(balancer.open):
            open_one.cancel()

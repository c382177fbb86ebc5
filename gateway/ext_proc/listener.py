"""A gRPC listener for Envoy: its connections, its services by path, and how it drains."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.ext_proc.http2.connection import Authorize, HandlerFactory, Http2Connection
from gateway.ext_proc.http2.frames import Http2Limits
from gateway.http.client_request import BodyBudget
from gateway.http.timeout_sweeper import TimeoutSweeper
from gateway.runtime.closing import close_listeners

MAX_CONNECTIONS = 1024
"""Envoys open one for each of their worker threads."""

CLOSE_TIMEOUT_S = 2.0


@dataclass(slots=True)
class StreamCounter:
    """Number of open streams over all connections, and its maximum."""

    limit: int
    count: int = 0


class GrpcListener:
    """One per listener."""

    def __init__(
        self,
        services: Mapping[bytes, HandlerFactory],
        budget: BodyBudget,
        stream_counter: StreamCounter,
        bounds: Http2Limits,
        *,
        guard: Authorize | None = None,
        on_parted: Callable[[Http2Connection], object] = lambda _: None,
    ) -> None:
        """`budget` bounds the bytes of incomplete messages; `stream_counter` open streams; `guard` authorizes requests;
        `on_parted` is called with each connection that has ended.
        """
        self.bounds = bounds
        self.guard = guard
        self._services = services
        self._budget = budget
        self._stream_counter = stream_counter
        self._on_parted = on_parted
        self._sweeper = TimeoutSweeper[Http2Connection](bounds.preface_s, bounds.silence_s)
        self._left = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._tls: ssl.SSLContext | None = None
        self._is_closed = False
        self.connections: set[Http2Connection] = set()
        self.is_leaving = False
        """Draining: a connection that was under way gets GOAWAY as soon as it is accepted."""

    def __repr__(self) -> str:
        return f"<GrpcListener with {len(self.connections)} connections, {self.open_streams} streams>"

    @property
    def open_streams(self) -> int:
        return sum(len(connection.streams) for connection in self.connections)

    async def listen(self, *, tls: ssl.SSLContext | None = None, **where: Any) -> asyncio.Server:
        """Listen. `where`: arguments of `loop.create_server`. Raises `OSError`."""
        self._tls = tls
        server = await asyncio.get_running_loop().create_server(
            self.protocol, **where, ssl=tls, ssl_handshake_timeout=self.bounds.preface_s if tls else None
        )
        self._servers.append(server)
        return server

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one connection."""
        return Http2Connection(self)

    async def begin_drain(self) -> None:
        """Close the listener, then send GOAWAY on all connections.

        In this order: a peer that receives GOAWAY reconnects at once, and must not reach this gateway again.
        """
        await close_listeners(self._servers, self.protocol, self._tls)
        self.is_leaving = True
        for connection in tuple(self.connections):
            connection.send_goaway()

    async def drain(self, grace_s: float) -> None:
        """Wait for open streams to end, then close what is left."""
        await self.wait_until_empty(grace_s)
        for connection in tuple(self.connections):
            connection.close()
        await self.wait_until_empty(CLOSE_TIMEOUT_S)
        self.close()

    def close(self) -> None:
        """Close everything at once."""
        self.is_leaving = self._is_closed = True
        for server in self._servers:
            server.close()
        for connection in tuple(self.connections):
            connection.transport.abort()
        self._sweeper.stop()

    async def wait_until_empty(self, limit_s: float) -> None:
        """Wait until no connection is open, at most `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                while self.connections:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            pass

    # -- for connections --------------------------------------------------------------------------------

    def admit(self, connection: Http2Connection) -> bool:
        if len(self.connections) >= MAX_CONNECTIONS or self._is_closed:
            return False
        self.connections.add(connection)
        self._sweeper.add(connection)
        return True

    def forget(self, connection: Http2Connection) -> None:
        self.connections.discard(connection)
        self._sweeper.remove(connection)
        self._on_parted(connection)
        self._left.set()

    def service(self, path: bytes) -> HandlerFactory | None:
        return self._services.get(path)

    def has_room(self) -> bool:
        return self._stream_counter.count < self._stream_counter.limit

    def take_room(self, count: int) -> bool:
        return self._budget.reserve(count)

    def give_room(self, count: int) -> None:
        self._budget.release(count)

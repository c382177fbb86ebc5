"""Accepts the client connections of a listener, with or without TLS, and drains them.

A server that is given the TLS context itself reports a connection only after its handshake, so handshakes that never
finish would have no bound. Here a connection is accepted without TLS and counted, and its socket then given to a
transport that speaks TLS. (`loop.start_tls` on the accepted transport could lose what the client sends at once.)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sized
from functools import partial
from typing import cast

from gateway.http.client_connection import ClientConnection, ClientConnections
from gateway.runtime.closing import TLS_HANDSHAKE_TIMEOUT_S
from routing.rejection import Reason, RequestRejected

FLUSH_TIMEOUT_S = 1.0
"""How long the last bytes of connections that a drain has cut may take to reach their clients."""


class DownstreamListener:
    """Makes a protocol for each accepted connection, as `loop.create_server` wants it."""

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections
        self._handshakes: set[TlsHandshake] = set()
        self.make_protocol: Callable[[], asyncio.Protocol] = partial(ClientConnection, connections)
        """Makes the protocol of a new client connection."""

    def protocol_factory(self, tls: ssl.SSLContext | None) -> Callable[[], asyncio.Protocol]:
        """Return the protocol factory for accepted connections; with TLS they count from before the handshake."""
        return (
            self.make_protocol
            if tls is None
            else lambda: TlsHandshake(self, tls, self._connections.timeouts.request_header_s)
        )

    async def drain(self, grace_s: float) -> None:
        """Wait until the open requests have ended, at most `grace_s` seconds, then cut the rest.

        A request on a connection that was open before is still served, and its connection closed: so idle connections
        get a last call.
        """
        await self._wait_until_empty(self._handshakes, min(grace_s, TLS_HANDSHAKE_TIMEOUT_S))
        for handshake in tuple(self._handshakes):
            handshake.abort()
        shared = self._connections
        for connection in tuple(shared.open):
            connection.schedule_idle_close()
        await self._wait_until_empty(shared.open, grace_s)
        for connection in tuple(shared.open):
            connection.terminate(
                RequestRejected(Reason.GATEWAY_DRAINING, "The gateway is shutting down.", retry_after_s=1.0)
            )
        await self.wait_until_closed()

    async def wait_until_closed(self) -> None:
        """Wait until all connections have ended, at most `FLUSH_TIMEOUT_S` seconds."""
        await self._wait_until_empty(self._connections.open, FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Abort all connections."""
        for connection in tuple(self._connections.open):
            connection.transport.abort()
        for handshake in tuple(self._handshakes):
            handshake.abort()
        self._connections.sweeper.stop()

    def admit(self, handshake: TlsHandshake) -> bool:
        """Register a connection that begins its TLS handshake. Returns False if it has to be closed at once."""
        shared = self._connections
        if len(shared.open) + len(self._handshakes) >= shared.shares.clients + shared.shares.overflow:
            return False
        self._handshakes.add(handshake)
        return True

    def remove(self, handshake: TlsHandshake) -> None:
        """Remove a handshake that has ended, in a connection or without one."""
        self._handshakes.discard(handshake)
        self._connections.connection_ended.set()

    async def _wait_until_empty(self, open_ones: Sized, limit_s: float) -> None:
        left = self._connections.connection_ended
        try:
            async with asyncio.timeout(limit_s):
                while open_ones:
                    left.clear()
                    await left.wait()
        except TimeoutError:
            pass


class TlsHandshake(asyncio.Protocol):
    """One connection during its TLS handshake."""

    def __init__(self, listener: DownstreamListener, tls: ssl.SSLContext, limit_s: float) -> None:
        self._listener = listener
        self._tls = tls
        self._limit_s = limit_s
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._listener.admit(self):
            try:
                connection = transport.get_extra_info("socket").dup()
            except OSError:  # No descriptor is left.
                self._listener.remove(self)
            else:
                self._task = asyncio.get_running_loop().create_task(self._shake(connection), name="TLS handshake")
        cast("asyncio.Transport", transport).abort()  # It has read nothing, and the duplicated socket stays open.

    def abort(self) -> None:
        """Close at once."""
        if self._task is not None:
            self._task.cancel()

    async def _shake(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._listener.make_protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._limit_s
            )
        except OSError:  # Timeouts included, and input that is not TLS: no request was made.
            connection.close()
        finally:
            self._listener.remove(self)

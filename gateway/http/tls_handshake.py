"""A client's connection before its TLS handshake is done: counted like any other, and closed where there is no room.

A server that is given the TLS context itself reports a connection only after its handshake, so those that never finish
one would have no bound. Here a connection is accepted without TLS and counted, and its socket then given to a transport
that speaks TLS. (`loop.start_tls` on the accepted transport could lose what the client sends at once.)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast


class Doorkeeper(Protocol):
    """What counts connections."""

    def may_shake(self, handshake: Handshake) -> bool: ...
    def has_shaken(self, handshake: Handshake) -> None: ...


class Handshake(asyncio.Protocol):
    """One connection, until its protocol takes it over or it ends."""

    def __init__(
        self, tls: ssl.SSLContext, keeper: Doorkeeper, protocol: Callable[[], asyncio.Protocol], limit_s: float
    ) -> None:
        self._tls = tls
        self._keeper = keeper
        self._make_protocol = protocol
        self._limit_s = limit_s
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._keeper.may_shake(self):
            self._task = asyncio.get_running_loop().create_task(
                self._shake(transport.get_extra_info("socket").dup()), name="TLS handshake"
            )
        cast("asyncio.Transport", transport).abort()  # Nothing was read by it, and the socket lives on.

    def abort(self) -> None:
        """Close at once."""
        if self._task is not None:
            self._task.cancel()

    async def _shake(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._limit_s
            )
        except OSError:  # A time-out is one, too. Also what is no TLS ends here: nothing was asked.
            connection.close()
        finally:
            self._keeper.has_shaken(self)

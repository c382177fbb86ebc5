"""Closes listeners without resetting connections that are being established.

When a listener closes, the kernel resets the connections in its backlog, although their clients see them as
established. So new connections are blocked first, handshakes in flight get a moment to finish, and the backlog is
accepted in the same step in which the listener closes. Independent of the protocol on the port.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import socket
import ssl
import struct
import sys
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress

HANDSHAKE_GRACE_S = 0.1
"""Time for a TCP handshake in flight to finish: about a round trip."""

TLS_HANDSHAKE_TIMEOUT_S = 2.0
"""Timeout of the TLS handshake of connections accepted in the last step."""

SO_ATTACH_FILTER = 26
"""Linux only; Python has no name for it."""

LOAD_BYTE, JUMP_IF_SET, RETURN = 0x30, 0x45, 0x06
FLAGS_AT, SYN = 13, 0x02
DROP_SYN_FILTER = (
    (LOAD_BYTE, 0, 0, FLAGS_AT),
    (JUMP_IF_SET, 0, 1, SYN),
    (RETURN, 0, 0, 0),
    (RETURN, 0, 0, 0xFFFFFFFF),
)
"""A packet filter that drops SYN packets and passes all others. The client repeats its SYN after a second, and reaches
another process on the port, if there is one."""


async def close_listeners(
    servers: Sequence[asyncio.Server], protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None
) -> None:
    """Close the listeners, and serve the connections that were waiting in their backlogs."""
    loop, limit_s = asyncio.get_running_loop(), TLS_HANDSHAKE_TIMEOUT_S if tls is not None else None
    taken = [
        loop.connect_accepted_socket(protocol, one, ssl=tls, ssl_handshake_timeout=limit_s)
        for one in await drain_backlog(servers)
    ]
    await asyncio.gather(*taken, return_exceptions=True)


async def drain_backlog(servers: Sequence[asyncio.Server]) -> list[socket.socket]:
    """Close the listeners. Returns the connections of their backlogs, which the caller must serve and close."""
    listening = [_another_of(held.fileno()) for server in servers for held in server.sockets]
    try:
        are_shut = [_is_shut_to_comers(one) for one in listening]
        if any(are_shut):
            await asyncio.sleep(HANDSHAKE_GRACE_S)
        for server in servers:
            server.close()
        return [taken for one in listening for taken in _backlog_of(one)]
    finally:
        for one in listening:
            one.close()


def _another_of(descriptor: int) -> socket.socket:
    """Return a duplicate of a listener, which stays open when its server closes it."""
    held = socket.socket(fileno=os.dup(descriptor))
    held.setblocking(False)
    return held


def _is_shut_to_comers(listener: socket.socket) -> bool:
    """Block new connections in the kernel. Returns whether it could; otherwise the latest ones may be reset."""
    if sys.platform != "linux":
        return False
    written = b"".join(struct.pack("HBBI", *instruction) for instruction in DROP_SYN_FILTER)
    program = ctypes.create_string_buffer(written)
    words = struct.pack("HL", len(DROP_SYN_FILTER), ctypes.addressof(program))
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, words)
        return True
    return False


def _backlog_of(listener: socket.socket) -> list[socket.socket]:
    taken: list[socket.socket] = []
    while True:
        try:
            connection, _ = listener.accept()
        except ConnectionAbortedError:
            continue
        except OSError:  # The backlog is empty, or no descriptor is left.
            return taken
        connection.setblocking(False)
        taken.append(connection)


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Return whether the socket holds unread bytes, which closing it now would discard."""
    held = transport.get_extra_info("socket")
    if held is None or held.fileno() < 0:
        return False
    count = bytearray(4)
    with suppress(OSError):
        fcntl.ioctl(held.fileno(), termios.FIONREAD, count)
    return any(count)

"""Closes a port and loses nobody who was on the way in.

A connection that the kernel has taken for us and that we have not taken yet is reset when its listener closes, though
its client had every reason to think that it was connected. So first nobody new is let in, then those who are half-way
are waited for, and what stands in the backlog is taken in the same moment in which the listener closes. Knows nothing
of what is spoken on the port.
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

ARRIVING_S = 0.1
"""From a client's first packet to the third of its handshake: a round trip, of any but the farthest."""

KNOCKING_S = 2.0
"""How long who came in the last moment may take for a TLS handshake."""

SO_ATTACH_FILTER = 26
"""Linux; Python has no name for it."""

LOAD_BYTE, JUMP_IF_SET, RETURN = 0x30, 0x45, 0x06
FLAGS_AT, SYN = 13, 0x02
NO_FIRST_PACKETS = (
    (LOAD_BYTE, 0, 0, FLAGS_AT),
    (JUMP_IF_SET, 0, 1, SYN),
    (RETURN, 0, 0, 0),
    (RETURN, 0, 0, 0xFFFFFFFF),
)
"""Instructions of a packet filter: what begins a connection is dropped, all else passes. Its sender tries again after a
second, and finds another process on the port, or nobody."""


async def close_door(
    servers: Sequence[asyncio.Server], protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None
) -> None:
    """Let nobody in any more but those who have knocked: they are served as all others are."""
    loop, limit_s = asyncio.get_running_loop(), KNOCKING_S if tls is not None else None
    taken = [
        loop.connect_accepted_socket(protocol, one, ssl=tls, ssl_handshake_timeout=limit_s)
        for one in await close_kindly(servers)
    ]
    await asyncio.gather(*taken, return_exceptions=True)


async def close_kindly(servers: Sequence[asyncio.Server]) -> list[socket.socket]:
    """Close them. Returns the connections that were still to be taken; they are the caller's to serve and to close."""
    listening = [_another_of(held.fileno()) for server in servers for held in server.sockets]
    try:
        are_shut = [_is_shut_to_comers(one) for one in listening]
        if any(are_shut):
            await asyncio.sleep(ARRIVING_S)
        for server in servers:
            server.close()
        return [taken for one in listening for taken in _backlog_of(one)]
    finally:
        for one in listening:
            one.close()


def _another_of(descriptor: int) -> socket.socket:
    """The same listener, which stays open with us when its server lets go of it."""
    held = socket.socket(fileno=os.dup(descriptor))
    held.setblocking(False)
    return held


def _is_shut_to_comers(listener: socket.socket) -> bool:
    """Whether the kernel turns away who comes now. Where it cannot, who comes in the last instant is reset."""
    if sys.platform != "linux":
        return False
    written = b"".join(struct.pack("HBBI", *instruction) for instruction in NO_FIRST_PACKETS)
    program = ctypes.create_string_buffer(written)
    words = struct.pack("HL", len(NO_FIRST_PACKETS), ctypes.addressof(program))
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
        except OSError:  # Nobody is left, or no descriptor is.
            return taken
        connection.setblocking(False)
        taken.append(connection)


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether bytes have come that our loop has not read yet: to close now would throw them away."""
    held = transport.get_extra_info("socket")
    if held is None or held.fileno() < 0:
        return False
    count = bytearray(4)
    with suppress(OSError):
        fcntl.ioctl(held.fileno(), termios.FIONREAD, count)
    return any(count)

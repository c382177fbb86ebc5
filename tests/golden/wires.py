"""A virtual loop with a network in memory: servers, connections and their delays, all in virtual time and the same each
time. What is written within one instant arrives as one piece, so that how a program divides its writes does not count.

Everything that asks asyncio or aiohttp for sockets runs in it unchanged; threads are run at once, in the loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiohappyeyeballs

from simulator.clock import VirtualLoop

DELAY_S = 0.0002
"""Of everything on a wire, one way."""

TICK_S = 1e-9

HIGH_WATER_BYTES = 1 << 16

HOST = "127.0.0.1"

Tap = Callable[[int, int, bool, bytes], None]
"""Hears what is written: number of the connection, port of its server, whether the client wrote it, the bytes."""


async def pass_time(seconds: float) -> None:
    """Let virtual time go by."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    timer = loop.call_later(max(0.0, seconds), passed.set_result, None)
    try:
        await passed
    finally:
        timer.cancel()


@dataclass(frozen=True)
class Place:
    """Where a client wants to connect to, or a server listens: as much of a socket as is looked at."""

    host: str
    port: int
    family: int = socket.AF_INET
    type: int = socket.SOCK_STREAM
    proto: int = socket.IPPROTO_TCP

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None:
        """There is nothing to close."""


class Wire(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, loop: Wires, number: int, port: int, protocol: Any, *, is_client: bool) -> None:
        ends = ((HOST, 50_000 + number % 10_000), (HOST, port))
        peer, own = (ends[1], ends[0]) if is_client else ends
        super().__init__({"peername": peer, "sockname": own})
        self._loop = loop
        self._key = (number, port, is_client)
        self._protocol = protocol
        self._out = bytearray()
        self._high = HIGH_WATER_BYTES
        self._is_due = self._is_closing = self._is_lost = self._says_eof = False
        self._is_paused = self._is_writing_paused = False
        self.peer: Wire

    # -- what its owner asks for ---------------------------------------------------------------------------------------

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        if self._is_closing or self._says_eof or not data:
            return
        self._out += data
        if self._loop.tap is not None:
            self._loop.tap(*self._key, bytes(data))
        self._deliver_soon()
        if len(self._out) > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._says_eof = True
        self._deliver_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._high // 4, self._high

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self.peer._deliver_soon()

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._deliver_soon()

    def abort(self) -> None:
        if self._is_lost:
            return
        self._out.clear()
        self._lose(None)
        self._loop.call_later(DELAY_S, self.peer._lose, ConnectionResetError(errno.ECONNRESET, "reset by its peer"))

    # -- what happens --------------------------------------------------------------------------------------------------

    def _deliver_soon(self) -> None:
        if not self._is_due and not self._is_lost:
            self._is_due = True
            self._loop.call_later(DELAY_S, self._deliver)

    def _deliver(self) -> None:
        self._is_due = False
        peer = self.peer
        if self._is_lost:
            return
        if peer._is_lost:
            self._lose(ConnectionResetError(errno.ECONNRESET, "its peer is gone") if self._out else None)
            return
        if peer._is_paused and not peer._is_closing:
            return
        data = bytes(self._out)
        self._out.clear()
        if data and not peer._is_closing:
            peer._take(data)
        if self._is_writing_paused:
            self._is_writing_paused = False
            self._protocol.resume_writing()
        if self._out:
            self._deliver_soon()
        elif self._is_closing or self._says_eof:
            self._end()

    def _end(self) -> None:
        """All has been said."""
        if not self.peer._is_closing:
            self.peer._take_eof()
        if self._is_closing:
            self._lose(None)

    def _take(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        while data:
            room = memoryview(protocol.get_buffer(len(data)))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]

    def _take_eof(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._loop.call_soon(self._protocol.connection_lost, error)


class Listener:
    """A server that listens, as much of one as is looked at."""

    def __init__(self, loop: Wires, place: Place, factory: Callable[[], Any]) -> None:
        self._loop = loop
        self.place = place
        self.factory = factory
        self.sockets: tuple[Place, ...] = (place,)

    def close(self) -> None:
        self._loop.listeners.pop(self.place.port, None)
        self.sockets = ()

    async def wait_closed(self) -> None:
        """It is closed at once."""

    async def start_serving(self) -> None:
        self._loop.listeners[self.place.port] = self

    def is_serving(self) -> bool:
        return self._loop.listeners.get(self.place.port) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Wires(VirtualLoop):
    """The loop. `tap` hears every byte."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: dict[int, Listener] = {}
        self.tap: Tap | None = None
        self.signals: dict[int, Callable[[], None]] = {}
        self._ports = iter(range(30_000, 40_000))
        self._connections = 0

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: int | None = None, *, start_serving: bool = True, **_: Any
    ) -> Any:
        listener = Listener(self, Place(HOST, port or next(self._ports)), protocol_factory)
        if listener.place.port in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        if start_serving:
            await listener.start_serving()
        return listener

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: int | None = None, *, sock: Any = None, **_: Any
    ) -> Any:
        await pass_time(DELAY_S)
        listener = self.reached(sock.port if sock is not None else port)
        self._connections += 1
        key = (self._connections, listener.place.port)
        client = Wire(self, *key, protocol_factory(), is_client=True)
        client.peer = server = Wire(self, *key, listener.factory(), is_client=False)
        server.peer = client
        server.get_protocol().connection_made(server)
        client.get_protocol().connection_made(client)
        return client, client.get_protocol()

    def reached(self, port: int | None) -> Listener:
        """The server on a port. Raises `ConnectionRefusedError`."""
        listener = self.listeners.get(port or 0)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return listener

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """A timer that is due is due a tick later: one that is set again for a moment just past must not stop time."""
        return super().call_at(max(when, self.time() + TICK_S), callback, *args, context=context)

    def run_in_executor(self, executor: object, func: Any, *args: object) -> Any:
        """Run it now: threads have no place in virtual time."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            done.set_exception(error)
        return done

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        self.signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.signals.pop(sig, None) is not None


@contextmanager
def wired_aiohttp(loop: Wires) -> Iterator[None]:
    """Have aiohttp's clients connect by these wires: they make their sockets themselves."""
    before = aiohappyeyeballs.start_connection

    async def start(addr_infos: Any, **_: Any) -> Place:
        host, port = addr_infos[0][4][:2]
        await pass_time(DELAY_S)
        loop.reached(port)
        return Place(host, port)

    aiohappyeyeballs.start_connection = start  # type: ignore[assignment]
    try:
        yield
    finally:
        aiohappyeyeballs.start_connection = before

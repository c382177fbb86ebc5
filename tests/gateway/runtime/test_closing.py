"""A port is closed while clients come in: whoever was let in by the kernel is served, and nobody is reset."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import cast

import pytest
import uvloop

from gateway.runtime.closing import drain_backlog, has_unread
from tests.gateway.http.scripted import until

KNOCKING = 40

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Echo(asyncio.Protocol):
    """Says what it is told."""

    def __init__(self, lost: list[Echo]) -> None:
        self.lost = lost
        """Those whose connections have ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(self)


def knock(where: tuple[str, int]) -> socket.socket:
    """A client that the kernel has let in while our loop was busy: with us."""
    client = socket.create_connection(where, timeout=60)
    client.sendall(b"ping")
    return client


async def all_are_served() -> None:
    loop, lost = asyncio.get_running_loop(), list[Echo]()
    server = await loop.create_server(lambda: Echo(lost), "127.0.0.1", 0, backlog=KNOCKING)
    where = server.sockets[0].getsockname()[:2]
    async with AsyncExitStack() as stack:
        closing = loop.create_task(drain_backlog([server]))
        clients = [stack.enter_context(knock(where)) for _ in range(KNOCKING)]
        for taken in await closing:
            await loop.connect_accepted_socket(lambda: Echo(lost), taken)
        for client in clients:
            assert await loop.run_in_executor(None, client.recv, 4) == b"ping"
    with pytest.raises(OSError, match="refused"):
        await loop.run_in_executor(None, knock, where)
    await until(lambda: len(lost) == KNOCKING)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_no_one_who_was_let_in_is_lost(loop_factory: type) -> None:
    """Forty have connected before the loop could take one; all get their answer, and who comes later is refused."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(all_are_served())


async def the_backlog_is_taken() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, backlog=KNOCKING, start_serving=False)
    listener = server.sockets[0]
    where = listener.getsockname()[:2]
    with socket.socket(fileno=socket.dup(listener.fileno())) as held:
        held.listen(KNOCKING)
    clients = [knock(where) for _ in range(KNOCKING)]
    taken = await drain_backlog([server])
    try:
        assert len(taken) == KNOCKING
    finally:
        for one in (*clients, *taken):
            one.close()


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_what_no_loop_has_taken_is_handed_over(loop_factory: type) -> None:
    """A server that takes nobody: all that stand in the backlog are the caller's."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(the_backlog_is_taken())


async def unread_is_seen() -> None:
    loop, lost = asyncio.get_running_loop(), list[Echo]()
    ours, theirs = socket.socketpair()
    transport, _ = await loop.connect_accepted_socket(lambda: Echo(lost), ours)
    transport.pause_reading()
    assert not has_unread(transport)
    theirs.sendall(b"x")
    assert has_unread(transport)
    transport.abort()
    theirs.close()
    await until(lambda: lost)
    assert not has_unread(transport)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_what_the_loop_has_not_read_is_detected(loop_factory: type) -> None:
    """A request on its way shows before it is read; a transport that has ended has nothing."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(unread_is_seen())

"""TLS handshakes count as connections from their first moment, and end in time."""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import uvloop

from gateway.config.limits import Limits, Timeouts
from gateway.runtime.tls import server_context
from tests.gateway.http.rig import CHAT_PATH, RawClient, Rig, a_chat, a_rig
from tests.gateway.http.scripted import PATIENCE_S, until
from tests.gateway.http.wire import answer_bytes, chat_answer
from tests.gateway.runtime.test_tls import make_certificate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")

MOST = 4
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@asynccontextmanager
async def a_tls_port(folder: Path, header_s: float = PATIENCE_S) -> AsyncIterator[tuple[Rig, int, ssl.SSLContext]]:
    """A rig, a port of its front that wants TLS, and a client's context for it."""
    files = make_certificate(folder, "localhost")
    limits, timeouts = Limits(max_connections=MOST), Timeouts(request_header_s=header_s, upstream_connect_s=PATIENCE_S)
    async with a_rig(limits=limits, timeouts=timeouts) as rig:
        rig.pod.plays([answer_bytes(chat_answer())])
        door = rig.front.protocol_factory(server_context(files))
        server = await asyncio.get_running_loop().create_server(door, "127.0.0.1", 0, backlog=512)
        try:
            yield rig, server.sockets[0].getsockname()[1], ssl.create_default_context(cafile=str(files.cert))
        finally:
            server.close()


async def status_of(port: int, context: ssl.SSLContext) -> int:
    """Of a decent request over TLS."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        return (await RawClient(reader, writer).ask(CHAT_PATH, a_chat())).status
    finally:
        writer.transport.abort()


def is_closed(one: socket.socket) -> bool:
    """Whether the other side has closed it."""
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def silent(port: int, count: int) -> list[socket.socket]:
    """Connections that begin no handshake."""
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for one in opened:
        one.setblocking(False)
    return opened


async def are_bounded(folder: Path) -> None:
    async with a_tls_port(folder) as (rig, port, context):
        assert await status_of(port, context) == 200
        await until(lambda: not rig.front.open_connections)
        opened = silent(port, 200)
        try:
            await until(lambda: sum(map(is_closed, opened)) >= 100)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await status_of(port, context)
        finally:
            for one in opened:
                one.close()
        status = 0
        while status != 200:  # As soon as the gateway has seen that they have gone.
            try:
                status = await status_of(port, context)
            except (ConnectionError, ssl.SSLError):
                continue


async def end_in_time(folder: Path) -> None:
    async with a_tls_port(folder, header_s=0.3) as (_, port, context):
        opened = silent(port, MOST)
        opened[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: all(map(is_closed, opened[1:])))
        for one in opened:
            one.close()
        assert await status_of(port, context) == 200


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_that_begin_no_handshake_are_bounded(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Of two hundred most are closed at once; when they have gone, decent clients are served again."""
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(are_bounded(tmp_path))


@pytest.mark.parametrize("loop", LOOPS)
def test_handshakes_that_do_not_end_are_ended(tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """After the time of a head; also what is no TLS at all, which is closed at once."""
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(end_in_time(tmp_path))


class WithoutDescriptor:
    """A transport whose socket cannot be duplicated: the process has no descriptor left."""

    is_aborted = False

    def get_extra_info(self, _: str) -> WithoutDescriptor:
        return self

    def dup(self) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_handshake_without_a_descriptor_holds_no_place(tmp_path: Path) -> None:
    """Else a burst of them would keep every later client out, for as long as the process lives."""
    async with a_tls_port(tmp_path) as (rig, port, context):
        door = rig.front.protocol_factory(context)
        for _ in range(500):
            transport = WithoutDescriptor()
            door().connection_made(cast("asyncio.Transport", transport))
            assert transport.is_aborted
        assert await status_of(port, context) == 200

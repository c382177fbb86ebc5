"""A port may be shared by the workers of one gateway, and by nobody else. Small ports bound what a connection costs."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gateway.runtime.addresses import Address
from gateway.runtime.ports import (
    MAX_CONNECTIONS,
    CannotListen,
    addresses_of,
    bindings_of,
    body_timeout_middleware,
    reserve_port,
    serve_app,
    share_port,
)


async def test_a_reserved_port_is_shared_by_its_own_only() -> None:
    """Workers listen on it; a second gateway cannot reserve it, and one process alone cannot listen there."""
    (reserved,) = await reserve_port("listen", Address("127.0.0.1", 0))
    where = Address(*reserved.getsockname())
    assert where.port != 0
    with pytest.raises(CannotListen, match=f"listen: cannot listen on {where}: .*address already in use"):
        await reserve_port("listen", where)
    with pytest.raises(OSError, match="address already in use"):
        await asyncio.get_running_loop().create_server(asyncio.Protocol, where.host, where.port)
    shared = [share_port("listen", bindings_of([reserved]))[0] for _ in range(2)]
    for held in shared:
        held.listen()
    with pytest.raises(CannotListen, match="already in use"):
        await reserve_port("listen", where)
    assert addresses_of(shared) == [str(where)] * 2
    for held in (reserved, *shared):
        held.close()
    for held in await reserve_port("listen", where):
        held.close()


async def test_a_port_that_others_listen_on_is_not_reserved() -> None:
    """Also where they would share it with anybody."""
    for option in (None, socket.SO_REUSEPORT):
        with socket.socket() as taken:
            if option is not None:
                taken.setsockopt(socket.SOL_SOCKET, option, 1)
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(CannotListen, match="already in use"):
                await reserve_port("listen", Address(*taken.getsockname()))


async def test_what_cannot_be_bound_is_reported() -> None:
    """An address of nobody, a name of nobody, and a share of what is not shared."""
    with pytest.raises(CannotListen, match="cannot assign requested address"):
        await reserve_port("listen", Address("192.0.2.1", 0))
    with pytest.raises(CannotListen, match=r"listen: cannot listen on nowhere\.invalid:80: "):
        await reserve_port("listen", Address("nowhere.invalid", 80))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CannotListen, match="already in use"):
            share_port("listen", bindings_of([taken]))


@asynccontextmanager
async def a_small_port() -> AsyncIterator[int]:
    """A port that answers GET with `ok` and POST with the length of the body."""

    async def get(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def post(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    app = web.Application(middlewares=[body_timeout_middleware])
    app.add_routes([web.get("/", get), web.post("/", post)])
    runner, (address,) = await serve_app("small", app, Address("127.0.0.1", 0))
    try:
        yield int(address.rpartition(":")[2])
    finally:
        await runner.cleanup()


async def stated(port: int, *pieces: bytes) -> bytes:
    """All that comes until the other side closes."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
        try:
            return await reader.read()
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("begun", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nhost: a\r\nx-slow: "])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_head_that_does_not_end_is_no_reason_to_stay(
    monkeypatch: pytest.MonkeyPatch, begun: bytes, *, is_first: bool
) -> None:
    """The first and any later one of a connection: it is closed after the time that an idle one has."""
    monkeypatch.setattr("gateway.runtime.ports.IDLE_TIMEOUT_S", 0.3)
    async with a_small_port() as port:
        before = b"" if is_first else b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
        assert (await stated(port, before, begun)).startswith(b"" if is_first else b"HTTP/1.1 200")


async def test_a_body_that_does_not_end_is_answered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 408, and a whole one as ever."""
    monkeypatch.setattr("gateway.runtime.ports.BODY_TIMEOUT_S", 0.3)
    head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 4\r\n\r\n"
    async with a_small_port() as port:
        assert (await stated(port, head, b"12")).startswith(b"HTTP/1.1 408")
        assert (await stated(port, head, b"1234")).endswith(b"\r\n\r\n4")


async def test_connections_of_a_small_port_are_bounded_and_the_newest_is_served() -> None:
    """However many are held, one more is answered; the oldest are closed for it."""
    async with a_small_port() as port, asyncio.timeout(60):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4 * MAX_CONNECTIONS)]
        answer = await stated(port, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        for reader, _ in held[: 2 * MAX_CONNECTIONS]:
            try:
                assert await reader.read() == b""
            except ConnectionError:
                continue
        for _, writer in held:
            writer.transport.abort()

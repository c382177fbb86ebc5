"""Opens the ports beside the traffic listener: small HTTP applications, and a port that processes share."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.runtime.addresses import Address

BACKLOG = 128

Binding = tuple[int, tuple[Any, ...]]
"""Address family and socket address."""


class CannotListen(Exception):  # noqa: N818 - a message for the operator
    """An address is in use, or not one of this host."""


def listen_error(name: str, where: Address, error: OSError) -> CannotListen:
    """Return the error for an address that could not be opened."""
    return CannotListen(f"{name}: cannot listen on {where}: {error.strerror or error}")


MAX_CONNECTIONS = 32
"""Per port. Beyond it the oldest connection is closed, so that idle ones cannot block health checks and operators."""

IDLE_TIMEOUT_S = 30.0
"""From a connection's start, or its last response, to the end of the next request head."""

BODY_TIMEOUT_S = 10.0
"""From the end of a request head to the end of its body."""


SLICE_BYTES = 4 << 10
"""Maximum bytes passed to the HTTP parser at a time."""


class _Slices(asyncio.Protocol):
    """Passes received bytes to the protocol in small pieces.

    Once a message is bad, each further piece is an error that quotes it, and these wait in a queue and then for the
    garbage collector. The handler stops reading at a number of them, so their size is what bounds the memory.
    """

    def __init__(self, handler: asyncio.Protocol) -> None:
        self._handler = handler
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE_BYTES):
            if self._transport.is_closing():
                return
            self._handler.data_received(data[start : start + SLICE_BYTES])

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)


class _Site(web.TCPSite):
    """A listener with a bounded number of connections."""

    async def start(self) -> None:
        await web.BaseSite.start(self)
        server = self._runner.server
        if server is None:
            raise RuntimeError("the runner was not set up")

        def take() -> asyncio.Protocol:
            held = [one for one in server.connections if one.transport is not None]
            for oldest in held[: len(held) - MAX_CONNECTIONS + 1]:
                if isinstance(oldest.transport, asyncio.Transport):
                    oldest.transport.abort()
                oldest.force_close()
            return _Slices(server())

        self._server = await asyncio.get_running_loop().create_server(
            take, self._host, self._port, backlog=BACKLOG, ssl=self._ssl_context
        )


@web.middleware
async def body_timeout_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read the body of a request, within a timeout, before it is handled."""
    if request.body_exists:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body took too long") from None
    return await handler(request)


async def serve_app(
    name: str, app: web.Application, where: Address, tls: ssl.SSLContext | None = None
) -> tuple[web.AppRunner, list[str]]:
    """Serve `app` on an address, with TLS if given. Returns the runner to clean up, and the bound addresses.

    Raises `CannotListen`.
    """
    runner = await _running(app)
    try:
        await _Site(runner, where.host, where.port, ssl_context=tls).start()
    except OSError as error:
        await runner.cleanup()
        raise listen_error(name, where, error) from None
    return runner, [str(_address(name)) for name in runner.addresses]


async def serve_app_on_socket(app: web.Application, path: Path) -> web.AppRunner:
    """Serve `app` on a unix socket; a stale one is replaced."""
    runner = await _running(app)
    await web.UnixSite(runner, path).start()
    return runner


async def _running(app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=1.0,
        keepalive_timeout=IDLE_TIMEOUT_S,
        lingering_time=1.0,
    )
    await runner.setup()
    return runner


# --- A port that several processes listen on --------------------------------------------------------------------------


async def reserve_port(name: str, where: Address) -> list[socket.socket]:
    """Keep an address for processes that will `share_port` it: one socket for each of its names, bound, not listening.

    SO_REUSEPORT would let two gateways share a port, and neither would notice. So the address is bound without it,
    which fails where anybody listens; only then is it opened to sharers, and closed to whoever binds as we did.
    """
    loop, reserved = asyncio.get_running_loop(), list[socket.socket]()
    try:
        found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, at in dict.fromkeys((family, at) for family, _, _, _, at in found):
            reserved.append(_bound(family, at))
    except OSError as error:
        for held in reserved:
            held.close()
        raise listen_error(name, where, error) from None
    for held in reserved:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return reserved


def bindings_of(reserved: Iterable[socket.socket]) -> tuple[Binding, ...]:
    """Return what another process needs to share the sockets."""
    return tuple((held.family, held.getsockname()) for held in reserved)


def share_port(name: str, bindings: Iterable[Binding]) -> list[socket.socket]:
    """Open own sockets on a reserved address, to listen on. Raises `CannotListen`."""
    shared: list[socket.socket] = []
    for family, at in bindings:
        try:
            shared.append(_bound(family, at, shares=True))
        except OSError as error:
            for held in shared:
                held.close()
            raise listen_error(name, _address(at), error) from None
    return shared


def _bound(family: int, at: tuple[Any, ...], *, shares: bool = False) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # despite connections in TIME_WAIT
        if shares:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        held.setblocking(False)
        held.bind(at)
    except OSError as error:
        held.close()
        words = f"error while attempting to bind on address {at}: {str(error.strerror).lower()}"
        raise OSError(error.errno, words) from None
    return held


# --- What they say ----------------------------------------------------------------------------------------------------


def addresses_of(sockets: Iterable[socket.socket]) -> list[str]:
    """Return the addresses that sockets are bound to."""
    return [str(_address(held.getsockname())) for held in sockets]


def _address(name: tuple[Any, ...]) -> Address:
    return Address(name[0], name[1])


def json_response(value: object, status: int = 200) -> web.Response:
    """Return an indented JSON response: these ports are used with curl."""
    body = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")


def compact_json(value: object) -> web.Response:
    """Return a JSON response without indentation, of which a page reads many."""
    return web.Response(body=msgspec.json.encode(value, enc_hook=str), content_type="application/json")

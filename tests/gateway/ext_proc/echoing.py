"""A port whose only service says back what it is told, to try HTTP/2 with; bounds as a test wants them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.ext_proc.http2.connection import Authorize, HandlerFactory, Http2Connection
from gateway.ext_proc.http2.frames import Http2Limits
from gateway.ext_proc.http2.stream import GrpcStream, GrpcStreamHandler
from gateway.ext_proc.listener import GrpcListener, StreamCounter
from gateway.http.client_request import BodyBudget

ECHO = "/test.Echo/Echo"


@dataclass
class Echo(GrpcStreamHandler):
    """One stream: every message comes back twice where it is told to."""

    stream: GrpcStream
    fates: list[str]

    def on_message(self, message: bytes) -> None:
        self.stream.send(message)

    def on_end(self) -> None:
        self.fates.append("ended")
        self.stream.finish()

    def on_lost(self) -> None:
        self.fates.append("lost")

    def on_too_large(self) -> None:
        self.fates.append("overfull")
        self.stream.finish(8, "too much")


@dataclass
class Echoing:
    port: GrpcListener
    where: str
    budget: BodyBudget
    fates: list[str] = field(default_factory=list)


@asynccontextmanager
async def echoing(
    bounds: Http2Limits | None = None,
    *,
    most_bytes: int = 1 << 24,
    most: int = 10_000,
    more: Mapping[bytes, HandlerFactory] | None = None,
    on_parted: Callable[[Http2Connection], object] = lambda _: None,
    guard: Authorize | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Echoing]:
    """`more`: what else is served there; `on_parted`: who is told of connections that are over."""
    fates: list[str] = []
    budget = BodyBudget(most_bytes)
    services: dict[bytes, HandlerFactory] = {ECHO.encode(): lambda stream: Echo(stream, fates), **(more or {})}
    port = GrpcListener(
        services, budget, StreamCounter(most), bounds or Http2Limits(), on_parted=on_parted, guard=guard
    )
    server = await port.listen(tls=tls, host="127.0.0.1", port=0)
    name = server.sockets[0].getsockname()
    try:
        yield Echoing(port, f"{name[0]}:{name[1]}", budget, fates)
    finally:
        port.close()
        await port.wait_until_empty(60)

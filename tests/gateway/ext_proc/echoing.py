"""A port whose only service says back what it is told, to try HTTP/2 with; bounds as a test wants them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.ext_proc.http2.connection import Connection, Guard, Serve
from gateway.ext_proc.http2.frames import Bounds
from gateway.ext_proc.http2.stream import Stream, Taker
from gateway.ext_proc.listener import Crowd, Port
from gateway.http.client_request import Budget

ECHO = "/test.Echo/Echo"


@dataclass
class Echo(Taker):
    """One stream: every message comes back twice where it is told to."""

    stream: Stream
    fates: list[str]

    def take(self, message: bytes) -> None:
        self.stream.send(message)

    def ended(self) -> None:
        self.fates.append("ended")
        self.stream.finish()

    def lost(self) -> None:
        self.fates.append("lost")

    def overfull(self) -> None:
        self.fates.append("overfull")
        self.stream.finish(8, "too much")


@dataclass
class Echoing:
    port: Port
    where: str
    budget: Budget
    fates: list[str] = field(default_factory=list)


@asynccontextmanager
async def echoing(
    bounds: Bounds | None = None,
    *,
    most_bytes: int = 1 << 24,
    most: int = 10_000,
    more: Mapping[bytes, Serve] | None = None,
    on_parted: Callable[[Connection], object] = lambda _: None,
    guard: Guard | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Echoing]:
    """`more`: what else is served there; `on_parted`: who is told of connections that are over."""
    fates: list[str] = []
    budget = Budget(most_bytes)
    services: dict[bytes, Serve] = {ECHO.encode(): lambda stream: Echo(stream, fates), **(more or {})}
    port = Port(services, budget, Crowd(most), bounds or Bounds(), on_parted=on_parted, guard=guard)
    server = await port.listen(tls=tls, host="127.0.0.1", port=0)
    name = server.sockets[0].getsockname()
    try:
        yield Echoing(port, f"{name[0]}:{name[1]}", budget, fates)
    finally:
        port.close()
        await port.wait_until_empty(60)

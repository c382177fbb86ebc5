"""What a connection and the port it belongs to need of each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.ext_proc.http2.bounds import Bounds
from gateway.ext_proc.http2.receiver import Fields
from gateway.ext_proc.http2.stream import Stream, Taker

Guard = Callable[[Fields], bool]
"""Whether the caller of a request, as its fields show it, may make it."""

Serve = Callable[[Stream], Taker]
"""Serves the streams of one path."""


class Guest(Protocol):
    """One connection, as its port sees it."""

    transport: asyncio.Transport
    streams: dict[int, Stream]

    def check(self, now_s: float) -> None:
        """End what has waited too long. Told every second or so."""
        ...

    def say_goodbye(self) -> None:
        """Ask for no more streams."""
        ...

    def close(self) -> None:
        """End at once."""
        ...


class Host(Protocol):
    """One port, as its connections see it."""

    bounds: Bounds

    @property
    def is_leaving(self) -> bool:
        """Whether no more streams are wanted."""
        ...

    def admit(self, guest: Guest) -> bool: ...
    def forget(self, guest: Guest) -> None: ...
    @property
    def guard(self) -> Guard | None:
        """Decides which requests are served; None: all."""
        ...

    def service(self, path: bytes) -> Serve | None: ...
    def has_room(self) -> bool:
        """Whether one more stream may be begun."""
        ...

    def take_room(self, count: int) -> bool: ...
    def give_room(self, count: int) -> None: ...

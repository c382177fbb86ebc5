"""What a connection needs of the port it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gateway.extproc.http2.bounds import Bounds
from gateway.extproc.http2.stream import Stream, Taker

if TYPE_CHECKING:  # It knows its host.
    from gateway.extproc.http2.connection import Connection

Serve = Callable[[Stream], Taker]
"""Serves the streams of one path."""


class Host(Protocol):
    """One port, as its connections see it."""

    bounds: Bounds

    @property
    def is_leaving(self) -> bool:
        """Whether no more streams are wanted."""
        ...

    def admit(self, connection: Connection) -> bool: ...
    def forget(self, connection: Connection) -> None: ...
    def service(self, path: bytes) -> Serve | None: ...
    def has_room(self) -> bool:
        """Whether one more stream may be begun."""
        ...

    def take_room(self, count: int) -> bool: ...
    def give_room(self, count: int) -> None: ...

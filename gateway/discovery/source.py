"""The interface of discovery: an object that knows which pods there should be, and reports when that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.config.discovery import Found

Tell = Callable[[tuple[Found, ...]], None]
"""Takes all pods that a source knows now; each call replaces the last. Telling the same again says "still so"."""


class Source(Protocol):
    """One way to find pods. While it is in trouble it tells nothing, so that its last good list stands."""

    @property
    def name(self) -> str:
        """As people read it in metrics and in the view of the fleet: `static`, `dns:NAME:PORT`."""
        ...

    @property
    def trouble(self) -> str:
        """Why it cannot tell now, empty where it can. Holds no secret."""
        ...

    async def follow(self, tell: Tell) -> None:
        """Tell the pods known now, and again whenever that changes, until cancelled."""
        ...


class Static:
    """A list that changes only when the configuration is read again."""

    name = "static"
    trouble = ""

    def __init__(self, found: Iterable[Found]) -> None:
        self._found = tuple(found)

    async def follow(self, tell: Tell) -> None:
        """Tell it once."""
        tell(self._found)

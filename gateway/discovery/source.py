"""The interface of discovery: an object that knows which pods there should be, and reports when that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.config.discovery import DiscoveredPod

PodsCallback = Callable[[tuple[DiscoveredPod, ...]], None]
"""Receives all pods that a source knows now; each call replaces the last list, and may repeat it."""


class PodSource(Protocol):
    """One way to find pods. While it fails it reports nothing, so that its last valid list stays in force."""

    @property
    def name(self) -> str:
        """Name in metrics and in `/fleet`: `static`, `dns:NAME:PORT`."""
        ...

    @property
    def trouble(self) -> str:
        """Why the source fails now; empty while it works. Holds no secret."""
        ...

    async def follow(self, notify: PodsCallback) -> None:
        """Report the pods known now, and again whenever they change, until cancelled."""
        ...


class StaticSource:
    """Pods named by flags or configuration; the list changes only by a reload."""

    name = "static"
    trouble = ""

    def __init__(self, found: Iterable[DiscoveredPod]) -> None:
        self._found = tuple(found)

    async def follow(self, notify: PodsCallback) -> None:
        """Report the list once."""
        notify(self._found)

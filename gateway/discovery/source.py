"""The interface of discovery: an object that knows which pods there should be, and reports when that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gateway.config.discovery import DiscoveredPod
from routing.pod_record import NO_READING, EngineLoad, NodeReading
from routing.server_settings import NO_SETTINGS, ServerSettings

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


@runtime_checkable
class NodeSource(Protocol):
    """A source that also reports readings of the nodes on which its pods run."""

    def nodes(self) -> Mapping[str, NodeReading]:
        """Return the last reading of each node, by name."""
        ...


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What an agent last reported of one server and of its node."""

    agent: str
    read_at_s: float
    """Loop time at which the record came."""
    settings: ServerSettings = NO_SETTINGS
    loads: tuple[EngineLoad, ...] = ()
    node: NodeReading = NO_READING


@runtime_checkable
class ServerSource(Protocol):
    """A source that also reports how the servers of its pods were started."""

    def servers(self) -> Mapping[str, ServerReport]:
        """Return the last report of each server, by the URL of its pod."""
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

"""What a supervisor and its children say to each other: whole values, so that all children go by the very same."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.app.reload import Fresh
from gateway.runtime.host import Host
from gateway.runtime.ports import Binding


@dataclass(frozen=True, slots=True)
class Orders:
    """The first word to a child: what it is and goes by."""

    name: str
    host: Host
    fresh: Fresh
    traffic: tuple[Binding, ...] = ()
    """The reserved addresses of the traffic port; none for the warmth process."""
    drained: frozenset[str] = frozenset()
    """Pods that get no requests, as the siblings know it."""


@dataclass(frozen=True, slots=True)
class Renew:
    """To a child: put this in force."""

    fresh: Fresh


@dataclass(frozen=True, slots=True)
class Drained:
    """To a worker: this pod gets no requests, or again."""

    pod: str
    is_drained: bool


@dataclass(frozen=True, slots=True)
class Reopen:
    """To a child: log files were moved away, go on in new ones."""


@dataclass(frozen=True, slots=True)
class Ping:
    """To a child, now and then: are you there? Answered by the same."""


@dataclass(frozen=True, slots=True)
class Started:
    """From a child: it is at work."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From a child: it cannot begin, and why."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Renewed:
    """From a child: what was wrong with what it should put in force; nothing where it did."""

    faults: tuple[str, ...] = ()


Word = Orders | Renew | Drained | Reopen | Ping | Started | Failed | Renewed

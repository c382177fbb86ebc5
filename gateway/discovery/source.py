"""The seam of discovery: something that knows which pods there should be, and tells when that changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from routing.facts import NO_FACTS, PodFacts
from routing.pods import Standing


@dataclass(frozen=True, slots=True)
class Found:
    """A pod that ought to exist, as one source knows it."""

    url: str
    pool: str | None = None
    """The configured pool it was discovered for, where there is one."""
    facts: PodFacts = NO_FACTS
    takes_priority: bool = False
    """Its engine was started with `--scheduling-policy priority`, which no engine tells."""
    held: Standing | None = None
    """`UNREADY` or `DRAINING` where its source says that it must get no new request, whatever its own /health says."""

    @property
    def region(self) -> str | None:
        return self.facts.region


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

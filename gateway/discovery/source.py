"""The seam of discovery: something that knows which pods there should be, and tells when that changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Found:
    """A pod that ought to exist."""

    url: str
    pool: str | None = None
    """The configured pool it was discovered for, where there is one."""
    region: str | None = None
    takes_priority: bool = False
    """Its engine was started with `--scheduling-policy priority`, which no engine tells."""


Tell = Callable[[tuple[Found, ...]], None]
"""Takes all pods that a source knows now; each call replaces the last."""


class Source(Protocol):
    """One way to find pods."""

    async def follow(self, tell: Tell) -> None:
        """Tell the pods known now, and again whenever that changes, until cancelled."""
        ...

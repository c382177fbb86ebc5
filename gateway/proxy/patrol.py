"""One timer for all waiting: now and then it asks every connection whether it has waited too long.

Clients have a patrol and lines to pods have one: a line is idle for seconds only, and thousands of clients need not be
asked as often as that takes. A timer of its own for every request would cost more than the rest of the request. The
price: what is late is noticed up to one period late; two, where the wait itself begins with the first look at it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

FORBEARANCE = 8
"""Looks within the shortest of all waits."""

SHORTEST_PERIOD_S = 0.01
LONGEST_PERIOD_S = 1.0


class Watched(Protocol):
    """Something that may wait too long."""

    def check(self, now_s: float) -> None:
        """End what is overdue at this loop time."""
        ...


class Patrol:
    """Walks its rounds while there is anybody to look at."""

    def __init__(self, *waits_s: float) -> None:
        """`waits_s`: how long those it looks at may wait."""
        self._period_s = LONGEST_PERIOD_S
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.heed(*waits_s)

    def __repr__(self) -> str:
        return f"<Patrol of {len(self._watched)} every {self._period_s} s>"

    def __len__(self) -> int:
        return len(self._watched)

    def heed(self, *waits_s: float) -> None:
        """Look often enough for these as well."""
        self._period_s = min(self._period_s, max(SHORTEST_PERIOD_S, min(waits_s) / FORBEARANCE))

    def watch(self, one: Watched) -> None:
        self._watched.add(one)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._walk)

    def leave(self, one: Watched) -> None:
        self._watched.discard(one)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _walk(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for one in tuple(self._watched):
            one.check(now_s)
        self._timer = loop.call_later(self._period_s, self._walk) if self._watched else None

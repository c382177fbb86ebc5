"""One timer for all waiting: now and then it asks every connection whether it has waited too long.

Clients have a patrol and lines to pods have one: a line is idle for seconds only, and thousands of clients need not be
asked as often as that takes. A timer of its own for every request would cost more than the rest of the request. The
price: what is late is noticed up to one period late; two, where the wait itself begins with the first look at it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.runtime.guard import Ticker, report

FORBEARANCE = 8
"""Looks within the shortest of all waits."""

SHORTEST_PERIOD_S = 0.01
LONGEST_PERIOD_S = 1.0

LOOP = "patrol"
"""The name under which exceptions are reported."""


class Watched(Protocol):
    """Something that may wait too long."""

    def check(self, now_s: float) -> None:
        """End what is overdue at this loop time."""
        ...


class Patrol:
    """Walks its rounds while there is anybody to look at."""

    def __init__(self, *waits_s: float) -> None:
        """`waits_s`: how long those it looks at may wait."""
        self._watched: set[Watched] = set()
        self._ticker = Ticker(LOOP, LONGEST_PERIOD_S, self._walk, lambda: self._watched)
        self.heed(*waits_s)

    def __repr__(self) -> str:
        return f"<Patrol of {len(self._watched)} every {self._ticker.period_s} s>"

    def __len__(self) -> int:
        return len(self._watched)

    def heed(self, *waits_s: float) -> None:
        """Look often enough for these as well."""
        ticker = self._ticker
        ticker.period_s = min(ticker.period_s, max(SHORTEST_PERIOD_S, min(waits_s) / FORBEARANCE))

    def watch(self, one: Watched) -> None:
        self._watched.add(one)
        self._ticker.start()

    def leave(self, one: Watched) -> None:
        self._watched.discard(one)

    def stop(self) -> None:
        self._ticker.stop()

    def _walk(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for one in tuple(self._watched):
            try:
                one.check(now_s)
            except Exception as error:  # noqa: BLE001 - of this one alone: the others are looked at
                report(LOOP, error)

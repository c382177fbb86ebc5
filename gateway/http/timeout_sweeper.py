"""Checks the timeouts of many connections with one periodic timer.

Downstream and upstream connections have a sweeper each, since upstream timeouts are shorter. A timer for every request
would cost more than the rest of the request. The price: a timeout fires up to one period late, or two where it starts
with the first check.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from gateway.runtime.guard import PeriodicTimer, report_exception

SWEEPS_PER_TIMEOUT = 8
"""Sweeps within the shortest timeout."""

MIN_PERIOD_S = 0.01
MAX_PERIOD_S = 1.0

LOOP = "timeouts"
"""The name under which exceptions are reported."""


class SweptConnection(Protocol):
    """A connection with timeouts."""

    def check(self, now_s: float) -> None:
        """End whatever has timed out at this loop time."""
        ...


C = TypeVar("C", bound=SweptConnection)


class TimeoutSweeper(Generic[C]):
    """Calls `check` of its connections once per period, while it has any."""

    def __init__(self, *waits_s: float) -> None:
        """`waits_s`: the timeouts of the connections; the shortest sets the period."""
        self.connections: set[C] = set()
        """The connections that are checked, while the timer runs."""
        self.ticker = PeriodicTimer(LOOP, MAX_PERIOD_S, self._walk, lambda: self.connections)
        self.set_timeouts(*waits_s)

    def __repr__(self) -> str:
        return f"<TimeoutSweeper of {len(self.connections)} every {self.ticker.period_s} s>"

    def __len__(self) -> int:
        return len(self.connections)

    def set_timeouts(self, *waits_s: float) -> None:
        """Shorten the period so that it suits these timeouts as well."""
        ticker = self.ticker
        ticker.period_s = min(ticker.period_s, max(MIN_PERIOD_S, min(waits_s) / SWEEPS_PER_TIMEOUT))

    def add(self, one: C) -> None:
        """Check this connection from now on."""
        self.connections.add(one)
        if self.ticker.timer is None:
            self.ticker.start()

    def remove(self, one: C) -> None:
        """Check this connection no more."""
        self.connections.discard(one)

    def stop(self) -> None:
        """Stop the timer."""
        self.ticker.stop()

    def _walk(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for one in tuple(self.connections):
            try:
                one.check(now_s)
            except Exception as error:  # noqa: BLE001 - of one connection; the others are checked
                report_exception(LOOP, error)

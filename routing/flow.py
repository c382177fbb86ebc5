"""How much comes to engines: requests and seconds of prefill, per second, as of late.

A count per slot that fades, so that engines of several models are told apart. Time is an argument.
"""

from __future__ import annotations

from math import exp, inf

from routing.fleet import Pick

MEMORY_S = 30.0
"""Long enough to see through a burst, short enough to follow a morning."""

LEAST_SEEN_S = 5.0
"""What the first requests say of a rate is as if they had come in this time."""

TICK_S = 0.25
"""Rates are told as they were at most so long ago."""


class Flow:
    """Written by the ledger as it charges."""

    def __init__(self) -> None:
        self._arrived: list[float] = []
        self._worked_s: list[float] = []
        self._born_s = inf
        self._faded_s = 0.0
        """Until when the counts have faded."""
        self._told: tuple[float, float] = (0.0, 0.0)
        self._told_to: Pick | None = None
        self._told_until_s = -inf

    def reach(self, slots: int) -> None:
        """Have room for this many slots."""
        more = [0.0] * (slots - len(self._arrived))
        self._arrived += more
        self._worked_s += more

    def observe(self, slot: int, prefill_s: float, now_s: float) -> None:
        """A request with so much prefill has been put on an engine."""
        if now_s >= self._faded_s + TICK_S or self._born_s == inf:
            self._fade(now_s)
        self._arrived[slot] += 1.0
        self._worked_s[slot] += prefill_s

    def rates(self, pick: Pick, now_s: float) -> tuple[float, float]:
        """Requests per second that come to one of the picked engines on average, and the share of time they prefill."""
        if pick is not self._told_to or now_s >= self._told_until_s:
            self._told, self._told_to, self._told_until_s = self._rates(pick, now_s), pick, now_s + TICK_S
        return self._told

    def _rates(self, pick: Pick, now_s: float) -> tuple[float, float]:
        arrived = pick(self._arrived)
        seen_s = max(now_s - self._born_s, LEAST_SEEN_S)
        over_s = MEMORY_S * (1 - exp(-seen_s / MEMORY_S)) * len(arrived)
        faded = exp((self._faded_s - now_s) / MEMORY_S)
        return sum(arrived) * faded / over_s, sum(pick(self._worked_s)) * faded / over_s

    def _fade(self, now_s: float) -> None:
        self._born_s = min(self._born_s, now_s)
        faded = exp(min(self._faded_s - now_s, 0.0) / MEMORY_S)
        self._arrived[:] = [count * faded for count in self._arrived]
        self._worked_s[:] = [seconds * faded for seconds in self._worked_s]
        self._faded_s = now_s

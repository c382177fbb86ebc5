"""What tiers ask for and what they get, in seconds of prefill per second, as of late. Time is an argument."""

from __future__ import annotations

from math import ceil, exp, sqrt

MEMORY_S = 10.0
"""A few answers long: what is promised in seconds must follow load in seconds."""

LEAST_SEEN_S = 2.0
"""What the first requests say is as if they had come in this time."""

SHORTEST_S, LONGEST_S = 2.0, 30.0
"""Bounds of what a rate remembers: some requests at least, and no other time of the day."""

IDLE = 0.01
"""Engines kept busy by a tier that asks for next to nothing."""


class Demand:
    """How much is asked for."""

    __slots__ = ("_asked_s", "_at_s", "_born_s")

    def __init__(self, now_s: float) -> None:
        self._asked_s = 0.0
        self._at_s = self._born_s = now_s

    def ask(self, prefill_s: float, now_s: float) -> None:
        self._asked_s = self._asked_s * exp((self._at_s - now_s) / MEMORY_S) + prefill_s
        self._at_s = now_s

    def engines(self, now_s: float) -> float:
        """How many engines it keeps in prefill, on average."""
        over_s = MEMORY_S * (1 - exp(-max(now_s - self._born_s, LEAST_SEEN_S) / MEMORY_S))
        return self._asked_s * exp((self._at_s - now_s) / MEMORY_S) / over_s

    def wanted(self, now_s: float) -> int:
        """Engines that it wants to find open: its load and the root of it, the rule by which service desks are
        staffed for random arrivals (Halfin and Whitt, 1981).
        """
        busy = self.engines(now_s)
        return ceil(busy + sqrt(busy)) if busy > IDLE else 0


class Rate:
    """How much it was given while it waited, hence how soon who waits now will be served.

    A wait of some seconds is foretold from what as many seconds have shown.
    """

    __slots__ = ("_at_s", "_memory_s", "_over_s", "_served_s")

    def __init__(self, guess: float, memory_s: float, now_s: float) -> None:
        self._served_s, self._over_s, self._at_s = guess, 1.0, now_s
        self._memory_s = min(max(memory_s, SHORTEST_S), LONGEST_S)

    def pass_time(self, now_s: float, *, is_waiting: bool) -> None:
        if is_waiting:
            fade = exp((self._at_s - now_s) / self._memory_s)
            self._served_s *= fade
            self._over_s = self._over_s * fade + now_s - self._at_s
        self._at_s = now_s

    def serve(self, prefill_s: float) -> None:
        self._served_s += prefill_s

    @property
    def per_s(self) -> float:
        return self._served_s / self._over_s

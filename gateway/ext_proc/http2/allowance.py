"""Bounds how often the other end may send frames that carry nothing of a request. Knows nothing of frames."""

from __future__ import annotations

from collections.abc import Callable


class Allowance:
    """A token bucket: spent by frames, refilled by time and by requests that were served."""

    __slots__ = ("_clock", "_left", "_most", "_per_s", "_since_s")

    def __init__(self, most: int, per_s: float, clock: Callable[[], float]) -> None:
        """`most` is what it holds at first and at most; `clock` returns seconds."""
        self._left: float = most
        self._most = most
        self._per_s = per_s
        self._clock = clock
        self._since_s = clock()

    def __repr__(self) -> str:
        return f"<Allowance with {self._left} of {self._most} left>"

    def spend(self, cost: int = 1) -> bool:
        """Take `cost` out. Returns False where nothing is left; the last cost may exceed what is left."""
        if self._left <= 0:
            now_s = self._clock()
            self._left = min(self._most, self._left + (now_s - self._since_s) * self._per_s)
            self._since_s = now_s
            if self._left <= 0:
                return False
        self._left -= cost
        return True

    def earn(self, count: int) -> None:
        """Put `count` back, up to the most that it holds."""
        self._left = min(self._most, self._left + count)

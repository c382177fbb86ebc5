"""Budget of shadow samples: which accepted answers are compared with the next model's, within a share and a rate.

Random draws and times are arguments.
"""

from __future__ import annotations

from math import inf

HOUR_S = 3_600.0
MAX_CARRY_S = 600.0
"""Unspent budget is carried over for at most this long, so that a quiet night is not followed by a burst."""


class ShadowBudget:
    """Budget of one cascade: a share of accepted answers, while money and places are left."""

    def __init__(self, fraction: float, *, per_hour: float = inf, at_once: int = 8) -> None:
        """`fraction` of kept answers, 0 for none; `per_hour` in the currency of the prices."""
        self._fraction = fraction
        self._per_s = per_hour / HOUR_S
        self._left = self._per_s * MAX_CARRY_S
        self._max_left = self._left
        self._at_once = at_once
        self._observed_s: float | None = None
        self.in_flight = 0
        self.spent = 0.0

    def reserve(self, draw: float, price: float, now_s: float) -> bool:
        """Whether this answer is shadowed: `draw` is uniform in [0, 1), `price` what the shadow is expected to cost.

        True reserves a place until `end` is called.
        """
        self._fill(now_s)
        if draw >= self._fraction or self.in_flight >= self._at_once or price > self._left:
            return False
        self.in_flight += 1
        self._left -= price
        return True

    def release(self, reserved: float, cost: float) -> None:
        """End a sample: release its place and its reservation, and charge what it cost."""
        self.in_flight -= 1
        self.spent += cost
        self._left = min(self._max_left, self._left + reserved - cost)

    def _fill(self, now_s: float) -> None:
        passed = 0.0 if self._observed_s is None else max(0.0, now_s - self._observed_s)
        self._observed_s = now_s
        if passed and self._left < self._max_left:
            self._left = min(self._max_left, self._left + passed * self._per_s)

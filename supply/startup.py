"""Start-up seconds of a pool's engines: learned from engines that became ready, and from those that have not yet."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 20
"""Starts that are remembered."""

PRIOR_WEIGHT = 1
"""Starts as which the configured estimate counts."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """A value: `observed` and `after` give new ones."""

    prior_s: float = 60.0
    seen: tuple[float, ...] = ()

    def observed(self, seconds: float) -> StartTimes:
        """Return the times with one more engine that took `seconds` from its request to its first served request."""
        return StartTimes(self.prior_s, (*self.seen, max(seconds, 0.0))[-MEMORY:])

    def upper_s(self, oldest_start_s: float = 0.0) -> float:
        """Return the 0.8 quantile in seconds; never less than an engine has been starting for (`oldest_start_s`)."""
        times = sorted((*self.seen, *[self.prior_s] * PRIOR_WEIGHT))
        return max(times[min(int(0.8 * len(times)), len(times) - 1)], oldest_start_s)

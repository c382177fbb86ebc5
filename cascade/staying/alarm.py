"""Has a rate risen above what it may be? An alarm whose false calls are counted in samples, not in hopes.

An e-detector of the Shiryaev-Roberts kind (Shin, Ramdas and Rinaldo, 2023): for each of a few bets L = 1 + bet x
(seen - allowed) the sum R <- (R + 1) L is kept. While every sample, given those before it, has a mean of at most
`allowed`, R grows by at most one a sample on average; so from start to a false alarm at R >= `patience` it takes
`patience` samples on average, or more. Nothing else is assumed: samples may be graded, their rate may wander below.
"""

from __future__ import annotations

BETS = (0.1, 0.25, 0.5, 0.9)
"""As shares of the boldest bet, 1 / allowed: bold ones see great rises soon, timid ones small rises at all."""


class Alarm:
    """Rings once and stays: what rang it is for a person to look at."""

    __slots__ = ("_allowed", "_bets", "_patience", "_sums", "rings", "seen")

    def __init__(self, allowed: float, patience: float = 10_000.0) -> None:
        """`allowed` is the greatest mean that is no reason to ring, between 0 and 1."""
        self._allowed = min(max(allowed, 1e-4), 0.999)
        self._patience = patience
        self._bets = tuple(part / self._allowed for part in BETS)
        self._sums = [0.0] * len(BETS)
        self.seen = 0
        self.rings = False

    @property
    def strain(self) -> float:
        """How near it is: rings at 1."""
        return sum(self._sums) / len(self._sums) / self._patience

    def hear(self, sample: float) -> bool:
        """One more sample between 0 (all is well) and 1. Whether it rings now or has rung before."""
        self.seen += 1
        away = min(max(sample, 0.0), 1.0) - self._allowed
        # A rung alarm is beyond counting; the sums must not run away meanwhile.
        self._sums = [
            min((one + 1.0) * (1.0 + bet * away), 1e12) for one, bet in zip(self._sums, self._bets, strict=True)
        ]
        self.rings = self.rings or self.strain >= 1.0
        return self.rings

"""Does a rung keep any of its answers? One that keeps none is frozen: it is asked in vain, so it is asked seldom.

It freezes when so many answers in a row were judged and not kept that the calibrated share of kept ones is ruled out:
thresholds that shadows have raised too far, or a signal that is computed from other engines, words or tasks than those
of the labelled file. A frozen rung is tried again with one request in `TRIAL`; the first kept answer ends it.
"""

from __future__ import annotations

from math import ceil, log, log1p

SURE = 1e-9
"""The chance that a rung freezes which keeps the calibrated share of its answers."""

FEWEST = 100
"""Answers in a row after which a rung freezes at the earliest."""

TRIAL = 100
"""While frozen a rung is asked for one request of so many that would begin there."""

LEAST_KEPT = 0.02
"""Share kept that is assumed where calibration found less, but not nothing."""


class FreezeWatch:
    """One rung at work."""

    __slots__ = ("_asked", "enough", "in_vain", "is_frozen")

    def __init__(self, kept: float) -> None:
        """`kept` is the share of its answers that calibration kept, 0 where it kept none: then nothing is expected."""
        self.enough = max(FEWEST, ceil(log(SURE) / log1p(-min(0.999, max(kept, LEAST_KEPT))))) if kept > 0.0 else None
        """Answers in a row that were not kept, with which the rung freezes; None: never."""
        self.in_vain = 0
        """Answers that were judged since the last kept one."""
        self.is_frozen = False
        self._asked = 0

    def take(self, *, is_kept: bool) -> bool:
        """Count an answer that was judged. Returns whether the rung froze or thawed by it."""
        before = self.is_frozen
        self.in_vain = 0 if is_kept else self.in_vain + 1
        self.is_frozen = self.enough is not None and self.in_vain >= self.enough
        if not self.is_frozen:
            self._asked = 0
        return self.is_frozen is not before

    def asks(self) -> bool:
        """Whether the next request is asked of this rung: each, or one in `TRIAL` while it is frozen."""
        if not self.is_frozen:
            return True
        self._asked += 1
        return self._asked % TRIAL == 0

"""Thresholds that follow what shadows show: stricter when kept answers are too often worse than the next rung's.

The calibrated thresholds are the floor: nothing is ever kept that calibration would not have kept, so a correction
cannot break what was promised, only give up savings. How far above the floor they stand moves with each shadow by
`pace` x (worse - allowed), as in adaptive conformal inference (Gibbs and Candes, 2021): while it is below its ceiling,
the mean of what shadows saw is at most allowed + ceiling / (pace x shadows), whatever the traffic does, given that
stricter thresholds help at all. At the ceiling, or when the alarm rings, nothing is kept any more.

A threshold never rises past the greatest value of its signal: from there on a falling share of the answers at that
value is kept, so that shadows go on. A rung that keeps nothing all the same has no shadows that could lower its
threshold. Its answers that are judged and not kept lower it (`ease`): they lose nothing, and so count as `allowed` less
than is allowed. In the bound above they count as shadows.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from cascade.computable import range_of
from cascade.ladder_file import Cut, LadderFile
from cascade.staying.alarm import Alarm

PACE = 0.1
"""Steps of the threshold by one answer that was worse. A step is what a tenth of the answers lie apart."""
CEILING = 10.0
"""Steps above the calibrated threshold at which nothing is left to keep."""

LEAST_KEPT = 0.02
"""Share kept below which what is allowed would be no bound at all."""


class Staying:
    """One ladder file at work."""

    def __init__(self, file: LadderFile, *, harmless: float = 0.0, patience: float = 10_000.0) -> None:
        """`harmless` is the share of shadows that differ and yet lose nothing: 0 where a judge compares, more where
        answers are held against each other as text.
        """
        self._calibrated = self._corrected = file
        kept = max(file.evidence.kept, LEAST_KEPT)
        # Of all requests at most max_loss may lose; all of those are among the kept.
        self.allowed = min(0.95, file.promise.max_loss / kept + harmless)
        self._alarm = Alarm(self.allowed, patience)
        self._steps = [0.0] * (len(file.models) - 1)
        self._worse = 0.0
        self.shadows = 0

    @property
    def file(self) -> LadderFile:
        """The file to judge by now."""
        return self._corrected

    @property
    def alarm(self) -> bool:
        """Whether it was given up. A new calibration begins anew."""
        return self._alarm.rings or any(steps >= CEILING for steps in self._steps)

    @property
    def agreement(self) -> float:
        """Share of shadows that were no better than what was kept; 1 while there are none."""
        return 1.0 - self._worse / self.shadows if self.shadows else 1.0

    @property
    def correction(self) -> tuple[float, ...]:
        """By rung, how many steps above the calibrated thresholds it keeps now."""
        return tuple(self._steps)

    @property
    def strain(self) -> float:
        """How near the alarm is, 0 to 1."""
        return min(1.0, self._alarm.strain)

    def take(self, rung: int, agreed: float) -> None:
        """A kept answer was compared with the next rung's: 1 for as good, 0 for worse, or between."""
        if self.alarm:
            return
        worse = 1.0 - min(1.0, max(0.0, agreed))
        self.shadows += 1
        self._worse += worse
        self._alarm.hear(worse)
        self._steps[rung] = min(CEILING, max(0.0, self._steps[rung] + PACE * (worse - self.allowed)))
        self._correct()

    def ease(self, rung: int) -> None:
        """Lower the rung's correction by one answer that was judged, not kept, and so lost nothing.

        Only for a rung that keeps nothing (`keeping.py`): one that keeps some has shadows.
        """
        if self.alarm or not self._steps[rung]:
            return
        self._steps[rung] = max(0.0, self._steps[rung] - PACE * self.allowed)
        self._correct()

    def _correct(self) -> None:
        if self.alarm:
            self._corrected = replace(self._calibrated, is_promised=False)
            return
        greatest = range_of(self._calibrated.signal)[1]
        cuts = tuple(_raised(cut, self._steps[cut.rung], greatest) for cut in self._calibrated.cuts)
        self._corrected = replace(self._calibrated, cuts=cuts)


def _raised(cut: Cut, steps: float, greatest: float) -> Cut:
    if not steps:
        return cut
    if cut.threshold == inf:
        return replace(cut, edge_share=cut.edge_share * (1.0 - steps / CEILING))
    threshold = cut.threshold + steps * _step(cut)
    if cut.threshold <= greatest < threshold:
        return replace(cut, threshold=inf, edge=greatest, edge_share=1.0 - steps / CEILING)
    return replace(cut, threshold=threshold, edge=None, edge_share=0.0)


def _step(cut: Cut) -> float:
    """What a tenth of the answers lie apart, just above the threshold; else a part of the map's width."""
    if cut.grey > 0.0:
        return cut.grey
    signals = cut.map.signals
    return (signals[-1] - signals[0]) / CEILING if len(signals) > 1 else 0.1

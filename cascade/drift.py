"""Drift control of a cascade in production: thresholds that follow shadow samples, an alarm, and frozen models.

`DriftController` makes thresholds stricter while accepted answers are worse than the next model's too often. The
calibrated thresholds are the floor: nothing is accepted that calibration would not have accepted, so a correction
cannot break the guarantee, only give up savings. The distance above the floor moves with each sample by
`STEP_PER_SAMPLE` x (worse - allowed), as in adaptive conformal inference (Gibbs and Candes, 2021): while it is below
`MAX_STEPS`, their mean is at most allowed + CEILING / (PACE x samples), whatever the traffic is, given that stricter
thresholds help at all. At the ceiling, or when the alarm is raised, nothing is accepted any more.

A threshold never rises past the greatest value of its signal: from there on a falling share of the answers at that
value is accepted, so that samples continue. A model that accepts nothing has no samples that could lower
its threshold. Its answers that are judged and escalated lower it (`ease`): they lose nothing, and so count as `allowed`
less than is allowed. In the bound above they count as samples.

`DriftAlarm` is an e-detector of the Shiryaev-Roberts kind (Shin, Ramdas and Rinaldo, 2023): for each of a few bets
L = 1 + bet x (seen - allowed) the sum R <- (R + 1) L is kept. While every sample, given those before it, has a mean of
at most `allowed`, R grows by at most one a sample on average; so a false alarm at R >= `patience` takes `patience`
samples on average, or more. Nothing else is assumed: samples may be graded, their rate may wander below.

`FreezeDetector` freezes a model when so many answers in a row were escalated that the calibrated share of accepted ones
is ruled out: thresholds were raised too far, or the signal is computed from other engines, words or tasks than those of
the labelled file. A frozen model is tried with one request in `TRIAL_INTERVAL`; the first accepted answer ends it.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf, log, log1p

from cascade.calibration_file import AcceptanceThreshold, CalibrationFile
from cascade.computable import signal_range

STEP_PER_SAMPLE = 0.1
"""Steps of the threshold by one answer that was worse. A step is what a tenth of the answers lie apart."""
MAX_STEPS = 10.0
"""Steps above the calibrated threshold at which nothing is left to keep."""

MIN_KEPT_SHARE = 0.02
"""Share kept below which what is allowed would be no bound at all."""


class DriftController:
    """Corrects the thresholds of one calibration by shadow samples."""

    def __init__(self, file: CalibrationFile, *, harmless: float = 0.0, patience: float = 10_000.0) -> None:
        """`harmless` is the share of shadows that differ and yet lose nothing: 0 where a judge compares, more where
        answers are held against each other as text.
        """
        self._calibrated = self._corrected = file
        kept = max(file.evidence.kept, MIN_KEPT_SHARE)
        # Of all requests at most max_loss may lose; all of those are among the kept.
        self.allowed_rate = min(0.95, file.promise.max_loss / kept + harmless)
        self._alarm = DriftAlarm(self.allowed_rate, patience)
        self._steps = [0.0] * (len(file.models) - 1)
        self._worse = 0.0
        self.shadows = 0

    @property
    def calibration(self) -> CalibrationFile:
        """The calibration with corrected thresholds."""
        return self._corrected

    @property
    def is_withdrawn(self) -> bool:
        """Whether the guarantee was withdrawn, until there is a new calibration."""
        return self._alarm.is_raised or any(steps >= MAX_STEPS for steps in self._steps)

    @property
    def agreement(self) -> float:
        """Share of samples that were not better than the accepted answer; 1 without samples."""
        return 1.0 - self._worse / self.shadows if self.shadows else 1.0

    @property
    def raised_steps(self) -> tuple[float, ...]:
        """By model, steps of its thresholds above the calibrated ones."""
        return tuple(self._steps)

    @property
    def alarm_level(self) -> float:
        """Level of the alarm, 0 to 1: raised at 1."""
        return min(1.0, self._alarm.level)

    def record_sample(self, index: int, agreed: float) -> None:
        """Record a comparison with the next model's answer: 1 for as good, 0 for worse, or between."""
        if self.is_withdrawn:
            return
        worse = 1.0 - min(1.0, max(0.0, agreed))
        self.shadows += 1
        self._worse += worse
        self._alarm.observe(worse)
        self._steps[index] = min(
            MAX_STEPS, max(0.0, self._steps[index] + STEP_PER_SAMPLE * (worse - self.allowed_rate))
        )
        self._correct()

    def lower_thresholds(self, index: int) -> None:
        """Lower the model's correction by one answer that was judged, not kept, and so lost nothing.

        Only for a model that keeps nothing (`FreezeDetector`): one that keeps some has shadows.
        """
        if self.is_withdrawn or not self._steps[index]:
            return
        self._steps[index] = max(0.0, self._steps[index] - STEP_PER_SAMPLE * self.allowed_rate)
        self._correct()

    def _correct(self) -> None:
        if self.is_withdrawn:
            self._corrected = replace(self._calibrated, is_promised=False)
            return
        greatest = signal_range(self._calibrated.signal)[1]
        cuts = tuple(_raised(cut, self._steps[cut.rung], greatest) for cut in self._calibrated.cuts)
        self._corrected = replace(self._calibrated, cuts=cuts)


def _raised(cut: AcceptanceThreshold, steps: float, greatest: float) -> AcceptanceThreshold:
    if not steps:
        return cut
    if cut.threshold == inf:
        return replace(cut, edge_share=cut.edge_share * (1.0 - steps / MAX_STEPS))
    threshold = cut.threshold + steps * _step(cut)
    if cut.threshold <= greatest < threshold:
        return replace(cut, threshold=inf, edge=greatest, edge_share=1.0 - steps / MAX_STEPS)
    return replace(cut, threshold=threshold, edge=None, edge_share=0.0)


def _step(cut: AcceptanceThreshold) -> float:
    """What a tenth of the answers lie apart, just above the threshold; else a part of the map's width."""
    if cut.grey > 0.0:
        return cut.grey
    signals = cut.map.signals
    return (signals[-1] - signals[0]) / MAX_STEPS if len(signals) > 1 else 0.1


BETS = (0.1, 0.25, 0.5, 0.9)
"""As shares of the boldest bet, 1 / allowed: bold ones see great rises soon, timid ones small rises at all."""


class DriftAlarm:
    """Alarm on a mean above what is allowed. Stays raised: its cause needs an operator."""

    __slots__ = ("_allowed", "_bets", "_patience", "_sums", "is_raised", "samples")

    def __init__(self, allowed: float, patience: float = 10_000.0) -> None:
        """`allowed`: largest mean without an alarm, in (0, 1). `patience`: samples to a false alarm, on average."""
        self._allowed = min(max(allowed, 1e-4), 0.999)
        self._patience = patience
        self._bets = tuple(part / self._allowed for part in BETS)
        self._sums = [0.0] * len(BETS)
        self.samples = 0
        self.is_raised = False

    @property
    def level(self) -> float:
        """Level of the alarm: raised at 1."""
        return sum(self._sums) / len(self._sums) / self._patience

    def observe(self, sample: float) -> bool:
        """Add a sample in [0, 1], 0 for no loss. Returns whether the alarm is raised."""
        self.samples += 1
        away = min(max(sample, 0.0), 1.0) - self._allowed
        # A raised alarm is beyond counting; the sums must not run away meanwhile.
        self._sums = [
            min((one + 1.0) * (1.0 + bet * away), 1e12) for one, bet in zip(self._sums, self._bets, strict=True)
        ]
        self.is_raised = self.is_raised or self.level >= 1.0
        return self.is_raised


FALSE_FREEZE_PROBABILITY = 1e-9
"""The chance that a model freezes which keeps the calibrated share of its answers."""

MIN_ANSWERS = 100
"""Answers in a row after which a model freezes at the earliest."""

TRIAL_INTERVAL = 100
"""While frozen a model is called for one of this many requests that would begin there."""


class FreezeDetector:
    """Detects that one model's answers are never accepted."""

    __slots__ = ("_requests", "freeze_after", "is_frozen", "rejected_in_a_row")

    def __init__(self, kept: float) -> None:
        """`kept` is the share of its answers that calibration kept, 0 where it kept none: then nothing is expected."""
        self.freeze_after = (
            max(MIN_ANSWERS, ceil(log(FALSE_FREEZE_PROBABILITY) / log1p(-min(0.999, max(kept, MIN_KEPT_SHARE)))))
            if kept > 0.0
            else None
        )
        """Answers in a row that were not kept, with which the model freezes; None: never."""
        self.rejected_in_a_row = 0
        """Answers that were judged since the last kept one."""
        self.is_frozen = False
        self._requests = 0

    def record(self, *, is_kept: bool) -> bool:
        """Count an answer that was judged. Returns whether the model froze or thawed by it."""
        before = self.is_frozen
        self.rejected_in_a_row = 0 if is_kept else self.rejected_in_a_row + 1
        self.is_frozen = self.freeze_after is not None and self.rejected_in_a_row >= self.freeze_after
        if not self.is_frozen:
            self._requests = 0
        return self.is_frozen is not before

    def should_ask(self) -> bool:
        """Whether the next request goes to this model: each, or one in `TRIAL_INTERVAL` while it is frozen."""
        if not self.is_frozen:
            return True
        self._requests += 1
        return self._requests % TRIAL_INTERVAL == 0

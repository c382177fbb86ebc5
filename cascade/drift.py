"""Drift control of a cascade in production: thresholds that follow shadow samples, an alarm, and frozen models.

A shadow sample compares an accepted answer with the next model's: worse, alike or better. Samples are compared with a
reference of the **same** comparison (`DriftReference`), never with the guarantee's bound itself: a comparison has
errors of its own, and its gains and losses need not be those of the labels. Sources of the reference, first that
applies: the calibration file; a share of differing answers that the operator declared; the first `LEARNED_SAMPLES`
samples.

`NetLossWindow` counts losses and gains among the last samples. From a first limit on a shift is suspected: thresholds
stand `SUSPECTED_STEPS` higher as long as it is, and more samples are due. From a second limit on the guarantee is
withdrawn, and nothing is accepted until a new calibration is loaded.

`DriftController` makes thresholds stricter while accepted answers are worse than the next model's too often. The
calibrated thresholds are the floor: nothing is accepted that calibration would not have accepted, so a correction
cannot break the guarantee, only give up savings. The distance above the floor moves with each sample by
`STEP_PER_SAMPLE` x (outcome - allowed), as in adaptive conformal inference (Gibbs and Candes, 2021): while it is below
`MAX_STEPS`, their mean is at most allowed + CEILING / (PACE x samples), whatever the traffic is, given that stricter
thresholds help at all. At the ceiling nothing is accepted any more.

A threshold never rises past the greatest value of its signal: from there on a falling share of the answers at that
value is accepted, so that samples continue. A model that accepts nothing has no samples that could lower
its threshold. Its answers that are judged and escalated lower it (`ease`): they lose nothing, and so count as the slack
between what is allowed and the reference. In the bound above they count as samples.

`FreezeDetector` freezes a model when so many answers in a row were escalated that the calibrated share of accepted ones
is ruled out: thresholds were raised too far, or the signal is computed from other engines, words or tasks than those of
the labelled file. A frozen model is tried with one request in `TRIAL_INTERVAL`; the first accepted answer ends it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from math import inf, log, log1p, nextafter

from cascade.calibration_file import TENTHS, AcceptanceThreshold, CalibrationFile, Comparison
from cascade.computable import signal_range
from cascade.net_loss_window import DriftReference, NetLossWindow, alarm_limits

STEP_PER_SAMPLE = 0.1
"""Steps of the threshold by one answer that was worse. A step is what a tenth of the answers lie apart."""
MAX_STEPS = 10.0
"""Steps above the calibrated threshold at which nothing is left to keep."""

SUSPECTED_STEPS = 1.0
"""Steps by which thresholds stand higher while a shift is suspected."""

MIN_KEPT_SHARE = 0.02
"""Share kept below which what is allowed would be no bound at all."""

LEARNED_SAMPLES = 300
"""Samples that make a reference where the calibration file has none of this comparison. While it is learned neither
thresholds nor the guarantee change."""

DECLARED_SAMPLES = 2_000
"""As how many samples the share of differing answers counts that an operator declares."""

SENSITIVITY = {Comparison.SCORES: 1.0, Comparison.JUDGE: 0.8, Comparison.TEXT: 0.8}
"""Share of the true losses that a comparison is taken to show, where it is asked how large a break would look."""

MIN_SHIFT = 0.01
"""Smallest rise of the mean outcome that counts as a break."""


@dataclass(frozen=True, slots=True)
class SampleOutcome:
    """What one shadow sample says."""

    index: int
    """Of the model whose answer was accepted."""
    outcome: int
    """1: its answer is worse than the next model's (by text: differs), -1: better, 0: alike."""
    is_surest: bool = False
    """Whether its signal is among the surest (`CalibrationFile.is_surest`)."""


class DriftController:
    """Corrects the thresholds of one calibration by shadow samples."""

    def __init__(
        self,
        file: CalibrationFile,
        *,
        comparison: Comparison = Comparison.SCORES,
        declared_difference: float | None = None,
    ) -> None:
        """`declared_difference` is the share of accepted answers that differ from the next model's without a shift;
        None: it is not declared.
        """
        self._calibrated = self._corrected = file
        self.comparison = comparison
        kept = max(file.evidence.kept, MIN_KEPT_SHARE)
        # Of all requests at most max_loss may lose; all of those are among the kept.
        self.allowed_rate = min(0.95, file.promise.max_loss / kept)
        """Mean net loss of an accepted answer that the guarantee allows."""
        self._loss_rate = min(0.95, max(0.0, file.evidence.loss) / kept)
        """Mean net loss of an accepted answer of the labelled examples."""
        self._slack = 0.0
        """How far the mean outcome may rise above the reference's; 0 while the reference is learned."""
        self._learned: list[tuple[int, bool]] = []
        self._windows: tuple[NetLossWindow, ...] = ()
        """The shortest first; none while the reference is learned."""
        self.reference: DriftReference | None = None
        """None while it is learned."""
        self._set_reference(*_known_reference(file, comparison, declared_difference))
        self._steps = [0.0] * (len(file.models) - 1)
        self._applied_steps = list(self._steps)
        """Those of the corrected calibration."""
        self.shadows = 0
        self.worse = 0
        """Samples in which the accepted answer was worse."""
        self.better = 0

    def _set_reference(self, reference: DriftReference | None, surest: DriftReference | None) -> None:
        self.reference = reference
        if reference is not None:
            self._slack = self._rise(reference, self.allowed_rate)
            shift = max(MIN_SHIFT, self._rise(reference, 2.0 * self.allowed_rate))
            limits = alarm_limits(reference, max(self._slack, MIN_SHIFT), shift, surest)
            self._windows = tuple(map(NetLossWindow, limits))

    def _rise(self, reference: DriftReference, net_loss: float) -> float:
        """Return by how much the mean outcome rises where the mean net loss of accepted answers rises to this.

        Answers that the comparison calls worse without a loss cannot be called so once more where they become one: as
        many are taken to be called so as the labelled losses do not explain.
        """
        sensitivity, unexplained = SENSITIVITY[self.comparison], 0.0
        if self.comparison is not Comparison.SCORES:
            unexplained = min(0.95, max(0.0, reference.net - sensitivity * self._loss_rate))
        return sensitivity * (1.0 - unexplained) * max(0.0, net_loss - self._loss_rate)

    @property
    def calibration(self) -> CalibrationFile:
        """The calibration with corrected thresholds."""
        return self._corrected

    @property
    def is_withdrawn(self) -> bool:
        """Whether the guarantee was withdrawn, until there is a new calibration."""
        return any(window.is_raised for window in self._windows) or any(steps >= MAX_STEPS for steps in self._steps)

    @property
    def agreement(self) -> float:
        """Share of samples that were not better than the accepted answer; 1 without samples."""
        return 1.0 - self.worse / self.shadows if self.shadows else 1.0

    @property
    def raised_steps(self) -> tuple[float, ...]:
        """By model, steps of its thresholds above the calibrated ones."""
        return tuple(self._steps)

    def steps_of(self, index: int) -> float:
        """Return the steps that a model's thresholds stand above the calibrated ones, those of a suspicion included."""
        return min(MAX_STEPS, self._steps[index] + (SUSPECTED_STEPS if self.is_suspected else 0.0))

    @property
    def alarm_level(self) -> float:
        """Level of the alarm, 0 to 1: raised at 1."""
        return max((window.level for window in self._windows), default=0.0)

    @property
    def is_suspected(self) -> bool:
        """Whether the last samples are worse than a guarantee that holds makes likely, and not yet ruled out by it."""
        return any(window.is_suspected for window in self._windows)

    @property
    def windows(self) -> tuple[NetLossWindow, ...]:
        """The windows of the alarm, the shortest first; empty while the reference is learned."""
        return self._windows

    @property
    def noticed(self) -> float:
        """Probability of noticing a break within the shortest window; 0 while the reference is learned."""
        shortest = min((window.limits.shadows for window in self._windows), default=0)
        return max((each.limits.noticed for each in self._windows if each.limits.shadows == shortest), default=0.0)

    @property
    def samples_to_learn(self) -> int:
        """Samples until the reference is complete; 0 where it is."""
        return 0 if self._windows else LEARNED_SAMPLES - len(self._learned)

    def record_sample(self, index: int, outcome: int, *, is_surest: bool = False) -> None:
        """Record a comparison with the next model's answer: 1 if the accepted one is worse, -1 if better, else 0.

        Where answers are compared as text, 1 stands for different. `is_surest`: by `CalibrationFile.is_surest`.
        """
        if self.is_withdrawn:
            return
        self.shadows += 1
        self.worse += outcome > 0
        self.better += outcome < 0
        if self.reference is None:
            self._learn(outcome, is_surest=is_surest)
            return
        for window in self._windows:
            if is_surest or not window.limits.is_of_surest:
                window.observe(outcome)
        allowed = self.reference.net + self._slack
        self._steps[index] = min(MAX_STEPS, max(0.0, self._steps[index] + STEP_PER_SAMPLE * (outcome - allowed)))
        self._correct()

    def _learn(self, outcome: int, *, is_surest: bool) -> None:
        self._learned.append((outcome, is_surest))
        if len(self._learned) >= LEARNED_SAMPLES:
            self._set_reference(
                _counted([outcome for outcome, _ in self._learned]),
                _counted([outcome for outcome, is_surest in self._learned if is_surest]),
            )

    def lower_thresholds(self, index: int) -> None:
        """Lower the model's correction by one answer that was judged, not kept, and so lost nothing.

        Only for a model that keeps nothing (`FreezeDetector`): one that keeps some has shadows.
        """
        if self.is_withdrawn or not self._steps[index]:
            return
        self._steps[index] = max(0.0, self._steps[index] - STEP_PER_SAMPLE * max(self._slack, MIN_SHIFT))
        self._correct()

    def _correct(self) -> None:
        if self.is_withdrawn:
            self._corrected = replace(self._calibrated, is_promised=False)
            return
        steps = [self.steps_of(index) for index in range(len(self._steps))]
        if steps == self._applied_steps:
            return
        self._applied_steps = steps
        greatest = signal_range(self._calibrated.signal)[1]
        cuts = tuple(_raised(cut, steps[cut.rung], greatest) for cut in self._calibrated.cuts)
        self._corrected = replace(self._calibrated, cuts=cuts)


def _known_reference(
    file: CalibrationFile, comparison: Comparison, declared_difference: float | None
) -> tuple[DriftReference | None, DriftReference | None]:
    """Return the reference of the file, else the declared one; None where it has to be learned.

    The second is of the surest answers; None where it is not known.
    """
    own = [entry for entry in file.reference if entry.comparison is comparison]
    if samples := sum(entry.samples for entry in own):
        surest = DriftReference(
            sum(entry.surest for entry in own),
            sum(entry.surest_worse for entry in own),
            sum(entry.surest_better for entry in own),
        )
        return DriftReference(samples, sum(entry.worse for entry in own), sum(entry.better for entry in own)), surest
    if declared_difference is not None:
        return DriftReference(DECLARED_SAMPLES, declared_difference * DECLARED_SAMPLES, 0.0), None
    return None, None


def _counted(outcomes: list[int]) -> DriftReference:
    return DriftReference(len(outcomes), outcomes.count(1), outcomes.count(-1))


def _raised(cut: AcceptanceThreshold, steps: float, greatest: float) -> AcceptanceThreshold:
    if not steps:
        return cut
    if cut.threshold == inf:
        return replace(cut, edge_share=cut.edge_share * (1.0 - steps / MAX_STEPS))
    if cut.above:
        return _raised_along(cut, min(TENTHS - 1e-9, steps / MAX_STEPS * TENTHS))
    threshold = cut.threshold + steps * _step(cut)
    if cut.threshold <= greatest < threshold:
        return replace(cut, threshold=inf, edge=greatest, edge_share=1.0 - steps / MAX_STEPS)
    return replace(cut, threshold=threshold, edge=None, edge_share=0.0)


def _raised_along(cut: AcceptanceThreshold, tenths: float) -> AcceptanceThreshold:
    """Reject so many tenths of the calibrated accepted answers, those with the lowest signals."""
    at = int(tenths)
    lower, upper = (cut.threshold, *cut.above)[at : at + 2]
    if lower < upper:
        threshold = lower + (tenths - at) * (upper - lower)
        return replace(cut, threshold=threshold, edge=None, edge_share=0.0)
    # Many answers have this one signal: of them a share is accepted.
    first = 0 if cut.threshold == upper else bisect_left(cut.above, upper) + 1
    last = bisect_right(cut.above, upper)
    share = (last - tenths) / (last - first)
    return replace(cut, threshold=nextafter(upper, inf), edge=upper, edge_share=share)


def _step(cut: AcceptanceThreshold) -> float:
    """What a tenth of the answers lie apart, just above the threshold; else a part of the map's width."""
    if cut.grey > 0.0:
        return cut.grey
    signals = cut.map.signals
    return (signals[-1] - signals[0]) / MAX_STEPS if len(signals) > 1 else 0.1


FALSE_FREEZE_PROBABILITY = 1e-9
"""The chance that a model freezes which keeps the calibrated share of its answers."""

MIN_ANSWERS = 100
"""Answers in a row after which a model freezes at the earliest."""

MIN_SCALE = 0.1
"""Smallest part of the calibrated share that raised thresholds are taken to leave."""

TRIAL_INTERVAL = 100
"""While frozen a model is called for one of this many requests that would begin there."""


class FreezeDetector:
    """Detects that one model's answers are never accepted."""

    __slots__ = ("_evidence", "_kept", "_requests", "is_frozen", "rejected_in_a_row")

    def __init__(self, kept: float) -> None:
        """`kept` is the share of its answers that calibration kept, 0 where it kept none: then nothing is expected."""
        self._kept = min(0.999, max(kept, MIN_KEPT_SHARE)) if kept > 0.0 else 0.0
        self._evidence = 0.0
        """Logarithm of the probability of the answers since the last kept one, negated."""
        self.rejected_in_a_row = 0
        """Answers that were judged since the last kept one."""
        self.is_frozen = False
        self._requests = 0

    def record(self, *, is_kept: bool, raised_steps: float = 0.0) -> bool:
        """Count an answer that was judged. Returns whether the model froze or thawed by it.

        `raised_steps` is by how much its thresholds are raised now: the fewer answers they accept, the less one that is
        not accepted shows.
        """
        before = self.is_frozen
        if is_kept:
            self.rejected_in_a_row, self._evidence = 0, 0.0
        else:
            self.rejected_in_a_row += 1
            self._evidence -= log1p(-self._kept * max(MIN_SCALE, 1.0 - raised_steps / MAX_STEPS))
        self.is_frozen = (
            self._kept > 0.0
            and self.rejected_in_a_row >= MIN_ANSWERS
            and self._evidence >= -log(FALSE_FREEZE_PROBABILITY) - 1e-9
        )
        if not self.is_frozen:
            self._requests = 0
        return self.is_frozen is not before

    def should_ask(self) -> bool:
        """Whether the next request goes to this model: each, or one in `TRIAL_INTERVAL` while it is frozen."""
        if not self.is_frozen:
            return True
        self._requests += 1
        return self._requests % TRIAL_INTERVAL == 0

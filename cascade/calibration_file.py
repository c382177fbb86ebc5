"""The result of a calibration: thresholds and curves by model and bucket, the quality guarantee and its evidence.

Values, and how an answer is judged by them. What was not calibrated is never accepted. Independent of how thresholds
are found (`calibration/`) nor JSON (`calibration_json.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isnan

from cascade.signals.combination import SignalCombination


class SignalStage(StrEnum):
    """When a signal is known."""

    PROMPT = "prompt"
    """Before anything is generated."""
    WINDOW = "window"
    """When the held-back part of the answer is there."""
    WHOLE = "whole"
    """When the answer has ended."""
    REASONING = "reasoning"
    """When the model has thought and has not answered yet."""


@dataclass(frozen=True, slots=True)
class QualityGuarantee:
    """At most `max_loss` of quality lost against always asking the largest model, with this confidence."""

    max_loss: float
    """Mean score lost per request; scores go from 0 to 1, so 0.01 is one point."""
    confidence: float

    def __str__(self) -> str:
        return f"lose at most {self.max_loss * 100:g} points, {self.confidence * 100:g} % sure"


@dataclass(frozen=True, slots=True)
class CalibrationEvidence:
    """Evidence of a guarantee: what the thresholds did to the examples that they were tested on."""

    examples: int
    """On which the thresholds were tested."""
    fingerprint: str
    """Of the examples, as sha256:HEX."""
    loss: float = 0.0
    """Mean score lost by those examples with these thresholds."""
    kept: float = 0.0
    """Share of requests without a call of the largest model."""
    cost: float = 0.0
    """Of one request, in the currency of the prices."""
    cost_always_top: float = 0.0
    cost_always_first: float = 0.0
    quality: float = 0.0
    quality_always_top: float = 0.0
    quality_always_first: float = 0.0
    needs: int | None = None
    """How many examples would do, where the guarantee is not made; None where no number would, or none is needed."""


@dataclass(frozen=True, slots=True)
class BenefitCurve:
    """Expected benefit of escalating by signal: falls as the signal rises, level beyond the ends, straight between."""

    signals: tuple[float, ...]
    benefits: tuple[float, ...]

    def benefit_at(self, signal: float) -> float:
        """Return the expected score gained by asking the next model; inf where the signal is not known."""
        if not self.signals or isnan(signal):
            return inf
        right = bisect_right(self.signals, signal)
        if right == 0:
            return self.benefits[0]
        if right == len(self.signals):
            return self.benefits[-1]
        left, width = right - 1, self.signals[right] - self.signals[right - 1]
        part = (signal - self.signals[left]) / width
        return self.benefits[left] + part * (self.benefits[right] - self.benefits[left])


TENTHS = 10
SUREST_TENTHS = 6
"""Of the accepted answers, those with the highest signals. Few of them lose, so that a break shows soonest there."""


@dataclass(frozen=True, slots=True)
class AcceptanceThreshold:
    """Where one model's answers to one bucket of tasks are good enough."""

    rung: int
    """Index of the model, cheapest first; the next one is `rung` + 1."""
    bucket: str
    threshold: float
    """The answer is kept from this signal on; inf: never."""
    grey: float = 0.0
    """How far above the threshold it is still likely to fall below it."""
    map: BenefitCurve = BenefitCurve((), ())
    edge: float | None = None
    """Where many answers have one signal and not all of them may be kept: that signal, just below the threshold."""
    edge_share: float = 0.0
    """Of the answers right there, as many are kept, drawn by lot."""
    above: tuple[float, ...] = ()
    """The signals that one to ten tenths of the accepted answers stay below or at; drift raises the threshold along
    them. Empty in files written before there were any."""

    def is_surest(self, signal: float) -> bool:
        """Return whether a signal is above those of the accepted answers that are not among the surest."""
        return bool(self.above) and signal > self.above[TENTHS - SUREST_TENTHS - 1]

    def accepts(self, signal: float, draw: float = 1.0) -> bool:
        """Return whether an answer is accepted; `draw` in [0, 1) decides at the edge, without one none there is."""
        return signal >= self.threshold or (signal == self.edge and draw < self.edge_share)


class Comparison(StrEnum):
    """How an accepted answer is compared with the next model's."""

    SCORES = "scores"
    """By the scores of the labelled file: worse and better are counted apart."""
    TEXT = "text"
    """As normalised text: answers that differ count as worse."""
    JUDGE = "judge"
    """By a judge model, in both orders: worse and better are counted apart."""


@dataclass(frozen=True, slots=True)
class ReferenceOutcomes:
    """How one comparison came out on those labelled answers of one model that the thresholds accept."""

    rung: int
    """Index of the model; its answers were compared with those of `rung` + 1."""
    comparison: Comparison
    judged: int
    """Answers of the model that were judged; those that a smaller model answered are not among them."""
    samples: int
    """Of them, accepted and compared."""
    worse: float
    """Of the samples; graded scores count in part."""
    better: float
    surest: int = 0
    """Of the samples, those among the surest `SUREST_TENTHS` of the accepted answers (`AcceptanceThreshold.is_surest`);
    0 in files written before they were counted."""
    surest_worse: float = 0.0
    surest_better: float = 0.0


ANY_BUCKET = "*"
"""The bucket of a cut that holds for tasks without a cut of their own."""


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """Calibration of one cascade."""

    models: tuple[str, ...]
    """The models, cheapest first."""
    signal: str
    """Which signal the thresholds are in; higher = surer."""
    stage: SignalStage
    promise: QualityGuarantee
    evidence: CalibrationEvidence
    cuts: tuple[AcceptanceThreshold, ...] = ()
    is_promised: bool = False
    """Whether the guarantee is made. If not, nothing is kept: the largest model answers."""
    reference: tuple[ReferenceOutcomes, ...] = ()
    """What drift is compared with; empty in files written before there was one."""
    combinations: tuple[SignalCombination, ...] = ()
    """By model but the largest, where the signal is `combined`."""

    def threshold_for(self, index: int, bucket: str) -> AcceptanceThreshold | None:
        """Return the threshold of a model's answers in a bucket; None where none was calibrated: none is accepted."""
        found = None
        for cut in self.cuts:
            if cut.rung == index and cut.bucket in (bucket, ANY_BUCKET):
                found = cut if found is None or cut.bucket == bucket else found
        return found

    def is_surest(self, index: int, bucket: str, signal: float | None) -> bool:
        """Return whether an accepted answer with this signal is among the surest of its model and bucket."""
        cut = self.threshold_for(index, bucket)
        return cut is not None and signal is not None and cut.is_surest(signal)

    def may_accept(self, index: int, bucket: str) -> bool:
        """Return whether any answer of this model in this bucket could be accepted."""
        cut = self.threshold_for(index, bucket) if self.is_promised else None
        return cut is not None and (cut.threshold < inf or cut.edge is not None)


class AnswerVerdict(StrEnum):
    """Verdict on a model's answer."""

    KEEP = "keep"
    ESCALATE = "escalate"


def judge_signal(
    file: CalibrationFile, index: int, bucket: str, signal: float | None, *, draw: float = 1.0
) -> AnswerVerdict:
    """Return whether this model's answer is accepted.

    `signal` is the one that the file names, None or nan where it could not be had; `draw` is uniform in [0, 1) and
    decides where many answers share the signal at the edge (without one they escalate).
    """
    cut = file.threshold_for(index, bucket) if file.is_promised else None
    is_kept = cut is not None and signal is not None and cut.accepts(signal, draw)
    return AnswerVerdict.KEEP if is_kept else AnswerVerdict.ESCALATE

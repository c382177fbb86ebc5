"""Judges the answer of one model of a cascade: accept it, or escalate to the next model.

The relay holds an answer back, collects `AnswerEvidence` and calls `AnswerJudge.judge` once, at a `JudgingTrigger`.
`ModelJudge` decides by the form of the answer and by the signal that the cascade was calibrated on. Text is kept until
the verdict only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from msgspec import Struct, field

from cascade.calibration_file import AnswerVerdict, CalibrationFile, SignalStage, judge_signal
from cascade.logprobs import LogprobFilter
from cascade.record import KEPT_FOR_ESCALATION_LIMIT
from cascade.signals.answer_checks import NO_SCHEMA, CompleteAnswer, answer_faults
from cascade.signals.combination import input_values
from cascade.signals.tokens import TokenLogprobs, TokenSignals, read_signals


class JudgingTrigger(StrEnum):
    """Why an answer is judged now."""

    WINDOW = "window"
    """As many tokens have been received as are held."""
    ENDED = "ended"
    """The answer is complete."""
    TIME = "time"
    """It has been held for the longest time allowed."""
    SIZE = "room"
    """It has more bytes than may be held."""


class HoldbackTimeoutAction(StrEnum):
    """What happens to a held answer at the end of its hold-back time."""

    JUDGE = "judge"
    """It is judged by the tokens received so far."""
    RELEASE = "release"
    """The client gets it without a verdict; the quality guarantee does not cover it."""
    ESCALATE = "escalate"
    """It is discarded; the quality guarantee covers every accepted answer."""


@dataclass(frozen=True, slots=True)
class HoldbackSettings:
    """How much of an answer is held, and for how long."""

    tokens: int = 48
    """Answer tokens; reasoning tokens are not counted."""
    max_added_s: float = 0.15
    """Longest delay of an accepted stream, counted from the first answer token that is held."""
    streams_reasoning: bool = False
    """Whether reasoning is judged by its own first tokens and streamed from there. Otherwise it is held with the
    answer, and `max_added_s` counts from the first token of the answer itself."""
    complete_streams: bool = False
    """Whether streams are held to their end too, and judged as complete answers."""
    on_timeout: HoldbackTimeoutAction = HoldbackTimeoutAction.JUDGE


MAX_HELD_BYTES = 4 << 20
"""Most bytes held of one answer. A longer one is judged by what was received."""


class AnswerEvidence(Struct):
    """What was received of an answer: log-probabilities, text, tool arguments, end. Only the first choice is read."""

    answer: list[TokenLogprobs] = field(default_factory=list)
    """Tokens of the answer, reasoning left out."""
    reasoning: list[TokenLogprobs] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    arguments: dict[int, list[str]] = field(default_factory=dict)
    """Pieces of the arguments of each tool call, by its index."""
    answer_events: int = 0
    """Events of the answer. Without log-probabilities an event counts as a token."""
    reasoning_events: int = 0
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        """Number of answer tokens so far."""
        return max(self.answer_events, len(self.answer))

    @property
    def reasoning_tokens(self) -> int:
        return max(self.reasoning_events, len(self.reasoning))

    def joined_text(self) -> str:
        """Return the text of the answer so far."""
        return "".join(self.text)

    def calls(self) -> list[str]:
        """Return the arguments of each tool call, as JSON text."""
        return ["".join(pieces) for pieces in self.arguments.values()]


class AnswerJudge(Protocol):
    """Judges one answer of one model."""

    @property
    def hold_back(self) -> HoldbackSettings: ...

    @property
    def logprob_filter(self) -> LogprobFilter | None:
        """Removes log-probabilities that the client did not ask for; None where it asked for all of them."""
        ...

    def judge(self, evidence: AnswerEvidence, moment: JudgingTrigger) -> AnswerVerdict:
        """Return the verdict on the answer. Called once."""
        ...


@dataclass(frozen=True, slots=True)
class JudgingStandard:
    """By what an answer is judged."""

    calibration: CalibrationFile | None
    model_index: int
    """Index of the model that answers, cheapest first."""
    bucket: str
    """Task bucket of the prompt."""
    wants_json: bool = False
    schema: object = None
    """JSON Schema that the answer must conform to; None where the request has none."""
    draw: float = 0.0
    """In [0, 1): decides between answers whose signal equals a threshold."""
    is_limited: bool = False
    """Whether its client has set `max_tokens`: then an answer cut by length is not at fault."""


class ModelJudge:
    """Judges one answer. Its attributes are read when the attempt has ended."""

    def __init__(
        self,
        standard: JudgingStandard,
        hold_back: HoldbackSettings,
        trim: LogprobFilter | None,
        *,
        may_escalate: Callable[[], bool],
    ) -> None:
        """`may_escalate` says whether the tenant's share of escalated answers allows one more."""
        self.hold_back = hold_back
        self.logprob_filter = trim
        self._standard = standard
        self._may_escalate = may_escalate
        self.verdict: AnswerVerdict | None = None
        self.moment: JudgingTrigger | None = None
        self.signal: float | None = None
        self.signal_parts: dict[str, float] | None = None
        """What each input adds to a combined signal; None for any other."""
        self.faults: tuple[str, ...] = ()
        self.tokens = 0
        self.override_reason: str | None = None
        """Why an answer was accepted that is not good enough; None where it is."""

    def judge(self, evidence: AnswerEvidence, moment: JudgingTrigger) -> AnswerVerdict:
        """Return the verdict on the answer, and keep what it was based on."""
        self.moment = moment
        self.tokens = evidence.tokens + evidence.reasoning_tokens
        verdict = self._verdict(evidence, moment)
        if verdict is AnswerVerdict.ESCALATE and not self._may_escalate():
            verdict, self.override_reason = AnswerVerdict.KEEP, KEPT_FOR_ESCALATION_LIMIT
        self.verdict = verdict
        return verdict

    def _verdict(self, evidence: AnswerEvidence, moment: JudgingTrigger) -> AnswerVerdict:
        if moment is JudgingTrigger.SIZE and not evidence.tokens:
            return AnswerVerdict.ESCALATE
        if moment is JudgingTrigger.ENDED:
            self.faults = self._faults(evidence)
            if self.faults:
                return AnswerVerdict.ESCALATE
        if moment is JudgingTrigger.TIME and self.hold_back.on_timeout is not HoldbackTimeoutAction.JUDGE:
            return (
                AnswerVerdict.KEEP
                if self.hold_back.on_timeout is HoldbackTimeoutAction.RELEASE
                else AnswerVerdict.ESCALATE
            )
        standard = self._standard
        file = standard.calibration
        if file is None:
            return AnswerVerdict.KEEP  # Without a calibration the configuration accepts it, unless its form is broken.
        if file.stage is SignalStage.PROMPT:
            return AnswerVerdict.KEEP  # The prompt was judged before the model was called.
        tokens = self._tokens(evidence, file.stage)
        self.signal = self._signal(file, read_signals(tokens)) if tokens else None
        return judge_signal(file, standard.model_index, standard.bucket, self.signal, draw=standard.draw)

    def _signal(self, file: CalibrationFile, signals: TokenSignals) -> float:
        if not file.combinations:
            return signals.value_of(file.signal)
        combination, values = file.combinations[self._standard.model_index], input_values(signals)
        self.signal_parts = combination.parts(values)
        return combination.value(values)

    def _tokens(self, evidence: AnswerEvidence, stage: SignalStage) -> list[TokenLogprobs]:
        """Return the tokens that the calibration's signal is computed from."""
        highest = self.hold_back.tokens
        if stage is SignalStage.REASONING:
            return evidence.reasoning[:highest] if self.hold_back.streams_reasoning else evidence.reasoning
        return evidence.answer if stage is SignalStage.WHOLE else evidence.answer[:highest]

    def _faults(self, evidence: AnswerEvidence) -> tuple[str, ...]:
        standard = self._standard
        answer = CompleteAnswer(
            text=evidence.joined_text(),
            calls=tuple(evidence.calls()),
            finish_reason=None if standard.is_limited else evidence.finish_reason,
            is_json_requested=standard.wants_json,
            schema=NO_SCHEMA if standard.schema is None else standard.schema,
        )
        return tuple(fault.value for fault in answer_faults(answer))

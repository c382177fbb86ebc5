"""Judges the answer of one model of a cascade: accept it, or escalate to the next model.

The relay holds an answer back, collects `AnswerEvidence` and calls `Judge.weigh` once, at a `Moment`. `ModelJudge`
decides by the form of the answer and by the signal that the cascade was calibrated on. Text is kept until the verdict
only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from msgspec import Struct, field

from cascade.calibration_file import LadderFile, Stage, Verdict, judge
from cascade.logprobs import Trim
from cascade.record import KEPT_FOR_SHARE
from cascade.signals.answer_checks import NO_SCHEMA, Whole, faults_of
from cascade.signals.tokens import Token, read_signals


class Moment(StrEnum):
    """Why an answer is judged now."""

    WINDOW = "window"
    """As many tokens have been received as are held."""
    ENDED = "ended"
    """The answer is complete."""
    TIME = "time"
    """It has been held for the longest time allowed."""
    ROOM = "room"
    """It has more bytes than may be held."""


class AtTime(StrEnum):
    """What happens to a held answer at the end of its hold-back time."""

    JUDGE = "judge"
    """It is judged by the tokens received so far."""
    RELEASE = "release"
    """The client gets it without a verdict; the quality guarantee does not cover it."""
    ESCALATE = "escalate"
    """It is discarded; the quality guarantee covers every accepted answer."""


@dataclass(frozen=True, slots=True)
class HoldBack:
    """How much of an answer is held, and for how long."""

    tokens: int = 48
    """Answer tokens; reasoning tokens are not counted."""
    max_added_s: float = 0.15
    """Longest delay of an accepted stream, counted from the first answer token that is held."""
    streams_reasoning: bool = False
    """Whether reasoning is judged by its own first tokens and streamed from there. Otherwise it is held with the
    answer, and `max_added_s` counts from the first token of the answer itself."""
    whole: bool = False
    """Whether streams are held to their end too, and judged as complete answers."""
    at_time: AtTime = AtTime.JUDGE


HELD_BYTES = 4 << 20
"""Most bytes held of one answer. A longer one is judged by what was received."""


class AnswerEvidence(Struct):
    """What was received of an answer: log-probabilities, text, tool arguments, end. Only the first choice is read."""

    answer: list[Token] = field(default_factory=list)
    """Tokens of the answer, reasoning left out."""
    reasoning: list[Token] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    arguments: dict[int, list[str]] = field(default_factory=dict)
    """Pieces of the arguments of each tool call, by its index."""
    pieces: int = 0
    """Events of the answer. Without log-probabilities an event counts as a token."""
    reasoning_pieces: int = 0
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        """Number of answer tokens so far."""
        return max(self.pieces, len(self.answer))

    @property
    def reasoning_tokens(self) -> int:
        return max(self.reasoning_pieces, len(self.reasoning))

    def joined_text(self) -> str:
        """Return the text of the answer so far."""
        return "".join(self.text)

    def calls(self) -> list[str]:
        """Return the arguments of each tool call, as JSON text."""
        return ["".join(pieces) for pieces in self.arguments.values()]


class Judge(Protocol):
    """Judges one answer of one model."""

    @property
    def hold_back(self) -> HoldBack: ...

    @property
    def trim(self) -> Trim | None:
        """Removes log-probabilities that the client did not ask for; None where it asked for all of them."""
        ...

    def weigh(self, evidence: AnswerEvidence, moment: Moment) -> Verdict:
        """Return the verdict on the answer. Called once."""
        ...


@dataclass(frozen=True, slots=True)
class JudgingStandard:
    """By what an answer is judged."""

    file: LadderFile | None
    at: int
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
        self, standard: JudgingStandard, hold_back: HoldBack, trim: Trim | None, *, may_escalate: Callable[[], bool]
    ) -> None:
        """`may_escalate` says whether the tenant's share of escalated answers allows one more."""
        self.hold_back = hold_back
        self.trim = trim
        self._standard = standard
        self._may_escalate = may_escalate
        self.verdict: Verdict | None = None
        self.moment: Moment | None = None
        self.signal: float | None = None
        self.faults: tuple[str, ...] = ()
        self.tokens = 0
        self.kept_for: str | None = None
        """Why an answer was accepted that is not good enough; None where it is."""

    def weigh(self, evidence: AnswerEvidence, moment: Moment) -> Verdict:
        """Return the verdict on the answer, and keep what it was based on."""
        self.moment = moment
        self.tokens = evidence.tokens + evidence.reasoning_tokens
        verdict = self._verdict(evidence, moment)
        if verdict is Verdict.ESCALATE and not self._may_escalate():
            verdict, self.kept_for = Verdict.KEEP, KEPT_FOR_SHARE
        self.verdict = verdict
        return verdict

    def _verdict(self, evidence: AnswerEvidence, moment: Moment) -> Verdict:
        if moment is Moment.ROOM and not evidence.tokens:
            return Verdict.ESCALATE
        if moment is Moment.ENDED:
            self.faults = self._faults(evidence)
            if self.faults:
                return Verdict.ESCALATE
        if moment is Moment.TIME and self.hold_back.at_time is not AtTime.JUDGE:
            return Verdict.KEEP if self.hold_back.at_time is AtTime.RELEASE else Verdict.ESCALATE
        standard = self._standard
        file = standard.file
        if file is None:
            return Verdict.KEEP  # Without a calibration the configuration accepts it, unless its form is broken.
        if file.stage is Stage.PROMPT:
            return Verdict.KEEP  # The prompt was judged before the model was asked.
        tokens = self._tokens(evidence, file.stage)
        self.signal = read_signals(tokens).named(file.signal) if tokens else None
        return judge(file, standard.at, standard.bucket, self.signal, draw=standard.draw)

    def _tokens(self, evidence: AnswerEvidence, stage: Stage) -> list[Token]:
        """Return the tokens that the calibration's signal is computed from."""
        most = self.hold_back.tokens
        if stage is Stage.REASONING:
            return evidence.reasoning[:most] if self.hold_back.streams_reasoning else evidence.reasoning
        return evidence.answer if stage is Stage.WHOLE else evidence.answer[:most]

    def _faults(self, evidence: AnswerEvidence) -> tuple[str, ...]:
        standard = self._standard
        answer = Whole(
            text=evidence.joined_text(),
            calls=tuple(evidence.calls()),
            finish_reason=None if standard.is_limited else evidence.finish_reason,
            is_json_asked=standard.wants_json,
            schema=NO_SCHEMA if standard.schema is None else standard.schema,
        )
        return tuple(fault.value for fault in faults_of(answer))

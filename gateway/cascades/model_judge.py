"""Judges what one rung has answered: by its shape, and by the signal that the ladder was calibrated on.

Made for one attempt; what it found is read when the attempt has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cascade.ladder import Ladder
from cascade.ladder_file import LadderFile, Stage
from cascade.signals.tokens import read_signals
from cascade.signals.wholes import NO_SCHEMA, Whole, faults_of
from cascade.verdict import Verdict as Found
from cascade.verdict import judge
from gateway.cascades.evidence import Evidence, Token
from gateway.cascades.features import Asked
from gateway.cascades.judge import AtTime, HoldBack, Moment, Verdict
from gateway.cascades.logprobs import Trim
from gateway.cascades.record import KEPT_FOR_SHARE


@dataclass(frozen=True, slots=True)
class Standard:
    """By what an answer is judged."""

    ladder: Ladder
    file: LadderFile | None
    at: int
    """The rung that answers, counted from the cheapest."""
    asked: Asked
    draw: float = 0.0
    """In [0, 1): decides between answers that share the very signal of a threshold."""
    is_limited: bool = False
    """Whether its client has set how long the answer may get: that it was cut there says nothing of it."""

    @property
    def bucket(self) -> str:
        return self.asked.bucket


class RungJudge:
    """Of one answer. `may_climb` says whether one more may be thrown away."""

    def __init__(
        self,
        standard: Standard,
        hold_back: HoldBack,
        trim: Trim | None,
        *,
        may_climb: Callable[[], bool],
    ) -> None:
        self.hold_back = hold_back
        self.trim = trim
        self._standard = standard
        self._may_climb = may_climb
        self.verdict: Verdict | None = None
        self.moment: Moment | None = None
        self.signal: float | None = None
        self.faults: tuple[str, ...] = ()
        self.tokens = 0
        self.kept_for: str | None = None
        """Why it was kept all the same, where it was not good enough."""

    def weigh(self, evidence: Evidence, moment: Moment) -> Verdict:
        self.moment = moment
        self.tokens = evidence.tokens + evidence.reasoning_tokens
        verdict = self._judged(evidence, moment)
        if verdict is Verdict.ESCALATE and not self._may_climb():
            verdict, self.kept_for = Verdict.KEEP, KEPT_FOR_SHARE
        self.verdict = verdict
        return verdict

    def _judged(self, evidence: Evidence, moment: Moment) -> Verdict:
        if moment is Moment.ROOM and not evidence.tokens:
            return Verdict.ESCALATE
        if moment is Moment.ENDED:
            self.faults = self._faults(evidence)
            if self.faults:
                return Verdict.ESCALATE
        if moment is Moment.TIME and self.hold_back.at_time is not AtTime.JUDGE:
            return Verdict.KEEP if self.hold_back.at_time is AtTime.RELEASE else Verdict.ESCALATE
        return self._by_signal(evidence)

    def _by_signal(self, evidence: Evidence) -> Verdict:
        standard = self._standard
        if standard.file is None:
            return Verdict.KEEP  # Nothing was calibrated: the configuration lets it answer, unless its form is broken.
        if standard.file.stage is Stage.PROMPT:
            return Verdict.KEEP  # That was judged before it was asked.
        self.signal = self._signal(evidence)
        found = judge(standard.file, standard.at, standard.bucket, self.signal, draw=standard.draw)
        return Verdict.KEEP if found is Found.KEEP else Verdict.ESCALATE

    def _signal(self, evidence: Evidence) -> float | None:
        file = self._standard.file
        tokens = self._tokens(evidence)
        return read_signals(tokens).named(file.signal) if file is not None and tokens else None

    def _tokens(self, evidence: Evidence) -> list[Token]:
        """Those that the calibration looked at."""
        stage = self._standard.file.stage if self._standard.file else Stage.WINDOW
        most = self.hold_back.tokens
        if stage is Stage.REASONING:
            return evidence.reasoning[:most] if self.hold_back.streams_reasoning else evidence.reasoning
        return evidence.answer if stage is Stage.WHOLE else evidence.answer[:most]

    def _faults(self, evidence: Evidence) -> tuple[str, ...]:
        standard = self._standard
        whole = Whole(
            text=evidence.said(),
            calls=tuple(evidence.calls()),
            finish_reason=None if standard.is_limited else evidence.finish_reason,
            is_json_asked=standard.asked.wants_json,
            schema=NO_SCHEMA if standard.asked.schema is None else standard.asked.schema,
        )
        return tuple(fault.value for fault in faults_of(whole))

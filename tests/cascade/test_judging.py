"""The verdict on an answer: its form, the time limit, the calibrated signal, the tenant's share."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    AnswerVerdict,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from cascade.judging import (
    AnswerEvidence,
    HoldbackSettings,
    HoldbackTimeoutAction,
    JudgingStandard,
    JudgingTrigger,
    ModelJudge,
)
from cascade.record import KEPT_FOR_ESCALATION_LIMIT
from cascade.signals.combination import COMBINED, SignalCombination

FILE = CalibrationFile(
    *(
        ("small", "large"),
        "margin",
        SignalStage.WINDOW,
        QualityGuarantee(0.01, 0.95),
        CalibrationEvidence(1_000, "sha256:00"),
    ),
    cuts=(AcceptanceThreshold(0, ANY_BUCKET, 0.5),),
    is_promised=True,
)
SURE = AnswerEvidence(answer=[(-0.01, (-0.01, -5.0))], text=["Paris"])
UNSURE = AnswerEvidence(answer=[(-0.7, (-0.7, -0.7))], text=["Paris"])


def a_judge(
    file: CalibrationFile | None = FILE,
    *,
    hold_back: HoldbackSettings | None = None,
    may_escalate: bool = True,
    **words: bool,
) -> ModelJudge:
    standard = JudgingStandard(file, 0, "chat", **words)
    return ModelJudge(standard, hold_back or HoldbackSettings(), None, may_escalate=lambda: may_escalate)


def test_a_combined_signal_decides_and_is_explained() -> None:
    """By the combination of the model that answered; its parts stay for the record, other signals have none."""
    combination = SignalCombination(("margin", "length"), (8.0, 0.0), (0.5, 0.7), 0.0)
    file = replace(FILE, signal=COMBINED, combinations=(combination,))
    judge = a_judge(file)
    assert judge.judge(SURE, JudgingTrigger.WINDOW) is AnswerVerdict.KEEP
    assert judge.signal_parts is not None
    assert judge.signal_parts["margin"] > 3.0
    unsure = a_judge(file)
    assert unsure.judge(UNSURE, JudgingTrigger.WINDOW) is AnswerVerdict.ESCALATE
    assert unsure.signal == pytest.approx(1 / (1 + exp(4.0)))
    plain = a_judge()
    plain.judge(SURE, JudgingTrigger.WINDOW)
    assert plain.signal_parts is None


def test_the_signal_decides_behind_the_window() -> None:
    """From the threshold on an answer is kept; the signal and the tokens stay for the record."""
    judge = a_judge()
    assert judge.judge(SURE, JudgingTrigger.WINDOW) is AnswerVerdict.KEEP
    assert (judge.tokens, judge.moment) == (1, JudgingTrigger.WINDOW)
    assert judge.signal is not None
    assert a_judge().judge(UNSURE, JudgingTrigger.WINDOW) is AnswerVerdict.ESCALATE


def test_a_fault_of_its_form_goes_before_the_signal() -> None:
    """Of complete answers only: a sure one that is no JSON escalates where JSON was asked for."""
    judge = a_judge(wants_json=True)
    assert judge.judge(SURE, JudgingTrigger.ENDED) is AnswerVerdict.ESCALATE
    assert judge.faults == ("invalid_json",)
    assert a_judge(wants_json=True).judge(SURE, JudgingTrigger.WINDOW) is AnswerVerdict.KEEP


@pytest.mark.parametrize(
    ("at_time", "verdict"),
    [
        (HoldbackTimeoutAction.JUDGE, AnswerVerdict.KEEP),
        (HoldbackTimeoutAction.RELEASE, AnswerVerdict.KEEP),
        (HoldbackTimeoutAction.ESCALATE, AnswerVerdict.ESCALATE),
    ],
)
def test_the_configuration_decides_at_the_end_of_the_time(
    at_time: HoldbackTimeoutAction, verdict: AnswerVerdict
) -> None:
    """An answer is judged by its tokens, released or discarded."""
    assert a_judge(hold_back=HoldbackSettings(on_timeout=at_time)).judge(SURE, JudgingTrigger.TIME) is verdict


def test_a_tenant_without_escalations_keeps_the_answer() -> None:
    """The reason is recorded, since the guarantee does not cover it."""
    judge = a_judge(may_escalate=False)
    assert judge.judge(UNSURE, JudgingTrigger.WINDOW) is AnswerVerdict.KEEP
    assert judge.override_reason == KEPT_FOR_ESCALATION_LIMIT


def test_without_a_calibration_only_the_form_is_judged() -> None:
    """An answer too long to hold of which no token is known escalates all the same."""
    assert a_judge(None).judge(UNSURE, JudgingTrigger.ENDED) is AnswerVerdict.KEEP
    assert a_judge(None).judge(AnswerEvidence(), JudgingTrigger.ENDED) is AnswerVerdict.ESCALATE
    assert a_judge(None).judge(AnswerEvidence(), JudgingTrigger.SIZE) is AnswerVerdict.ESCALATE

"""The verdict on an answer: its form, the time limit, the calibrated signal, the tenant's share."""

from __future__ import annotations

import pytest

from cascade.calibration_file import ANY_BUCKET, Cut, Evidence, LadderFile, Promise, Stage, Verdict
from cascade.judging import AnswerEvidence, AtTime, HoldBack, JudgingStandard, ModelJudge, Moment
from cascade.record import KEPT_FOR_SHARE

FILE = LadderFile(
    *(("small", "large"), "margin", Stage.WINDOW, Promise(0.01, 0.95), Evidence(1_000, "sha256:00")),
    cuts=(Cut(0, ANY_BUCKET, 0.5),),
    is_promised=True,
)
SURE = AnswerEvidence(answer=[(-0.01, (-0.01, -5.0))], text=["Paris"])
UNSURE = AnswerEvidence(answer=[(-0.7, (-0.7, -0.7))], text=["Paris"])


def a_judge(
    file: LadderFile | None = FILE, *, hold_back: HoldBack | None = None, may_escalate: bool = True, **words: bool
) -> ModelJudge:
    standard = JudgingStandard(file, 0, "chat", **words)
    return ModelJudge(standard, hold_back or HoldBack(), None, may_escalate=lambda: may_escalate)


def test_the_signal_decides_behind_the_window() -> None:
    """From the threshold on an answer is kept; the signal and the tokens stay for the record."""
    judge = a_judge()
    assert judge.weigh(SURE, Moment.WINDOW) is Verdict.KEEP
    assert (judge.tokens, judge.moment) == (1, Moment.WINDOW)
    assert judge.signal is not None
    assert a_judge().weigh(UNSURE, Moment.WINDOW) is Verdict.ESCALATE


def test_a_fault_of_its_form_goes_before_the_signal() -> None:
    """Of complete answers only: a sure one that is no JSON escalates where JSON was asked for."""
    judge = a_judge(wants_json=True)
    assert judge.weigh(SURE, Moment.ENDED) is Verdict.ESCALATE
    assert judge.faults == ("invalid_json",)
    assert a_judge(wants_json=True).weigh(SURE, Moment.WINDOW) is Verdict.KEEP


@pytest.mark.parametrize(
    ("at_time", "verdict"),
    [(AtTime.JUDGE, Verdict.KEEP), (AtTime.RELEASE, Verdict.KEEP), (AtTime.ESCALATE, Verdict.ESCALATE)],
)
def test_the_configuration_decides_at_the_end_of_the_time(at_time: AtTime, verdict: Verdict) -> None:
    """An answer is judged by its tokens, released or discarded."""
    assert a_judge(hold_back=HoldBack(at_time=at_time)).weigh(SURE, Moment.TIME) is verdict


def test_a_tenant_without_escalations_keeps_the_answer() -> None:
    """The reason is recorded, since the guarantee does not cover it."""
    judge = a_judge(may_escalate=False)
    assert judge.weigh(UNSURE, Moment.WINDOW) is Verdict.KEEP
    assert judge.kept_for == KEPT_FOR_SHARE


def test_without_a_calibration_only_the_form_is_judged() -> None:
    """An answer too long to hold of which no token is known escalates all the same."""
    assert a_judge(None).weigh(UNSURE, Moment.ENDED) is Verdict.KEEP
    assert a_judge(None).weigh(AnswerEvidence(), Moment.ENDED) is Verdict.ESCALATE
    assert a_judge(None).weigh(AnswerEvidence(), Moment.ROOM) is Verdict.ESCALATE

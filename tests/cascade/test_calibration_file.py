"""Looking up in a calibration: thresholds by bucket, curves between their knots, and the verdict on one answer."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    AnswerVerdict,
    BenefitCurve,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
    judge_signal,
)


def file_of(*cuts: AcceptanceThreshold, is_promised: bool = True) -> CalibrationFile:
    promise, evidence = QualityGuarantee(0.01, 0.95), CalibrationEvidence(1_000, "sha256:00")
    return CalibrationFile(("a", "b", "c"), "margin", SignalStage.WINDOW, promise, evidence, cuts, is_promised)


def test_a_bucket_has_its_own_cut_first() -> None:
    """Then the one for any, in whatever order they stand; none where nothing was calibrated."""
    own, any_ = AcceptanceThreshold(0, "code", 0.5), AcceptanceThreshold(0, ANY_BUCKET, 0.7)
    for file in (file_of(own, any_), file_of(any_, own)):
        assert file.threshold_for(0, "code") == own
        assert file.threshold_for(0, "chat") == any_
        assert file.threshold_for(1, "code") is None


def test_what_may_keep() -> None:
    """Only below an infinite threshold, and only under a guarantee."""
    assert file_of(AcceptanceThreshold(0, "code", 0.5)).may_accept(0, "code")
    assert not file_of(AcceptanceThreshold(0, "code", inf)).may_accept(0, "code")
    assert not file_of(AcceptanceThreshold(0, "code", 0.5), is_promised=False).may_accept(0, "code")


@pytest.mark.parametrize(("signal", "benefit"), [(-9, 0.4), (0, 0.4), (0.5, 0.3), (1, 0.2), (3, -0.1), (9, -0.1)])
def test_maps_are_straight_between_knots(signal: float, benefit: float) -> None:
    """And level beyond their ends."""
    assert BenefitCurve((0.0, 1.0, 3.0), (0.4, 0.2, -0.1)).benefit_at(signal) == pytest.approx(benefit)


def test_what_is_not_known_is_worth_escalating() -> None:
    """Without a map or a signal the next model is worth everything."""
    assert BenefitCurve((), ()).benefit_at(0.5) == inf
    assert BenefitCurve((0.0,), (0.1,)).benefit_at(nan) == inf


def test_a_guarantee_in_text() -> None:
    """As reports say it."""
    assert str(QualityGuarantee(0.01, 0.95)) == "lose at most 1 points, 95 % sure"


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
EMPTY = CalibrationFile(("small", "large"), "margin", SignalStage.WINDOW, FILE.promise, FILE.evidence)


@pytest.mark.parametrize(
    ("signal", "verdict"), [(0.5, "keep"), (0.49, "escalate"), (nan, "escalate"), (None, "escalate")]
)
def test_a_full_window_is_decided(signal: float | None, verdict: str) -> None:
    """From the threshold on an answer is kept; what is not known never is."""
    assert judge_signal(FILE, 0, "chat", signal) is AnswerVerdict(verdict)


def test_lots_decide_at_the_edge() -> None:
    """Of the answers right there a share is kept, and none where nobody draws."""
    file = replace(FILE, cuts=(AcceptanceThreshold(0, ANY_BUCKET, inf, edge=0.5, edge_share=0.3),))
    assert judge_signal(file, 0, "chat", 0.5, draw=0.29) is AnswerVerdict.KEEP
    assert judge_signal(file, 0, "chat", 0.5, draw=0.3) is AnswerVerdict.ESCALATE
    assert judge_signal(file, 0, "chat", 0.5) is AnswerVerdict.ESCALATE
    assert judge_signal(file, 0, "chat", 0.51, draw=0.0) is AnswerVerdict.ESCALATE
    assert file.may_accept(0, "chat")


def test_without_a_guarantee_nothing_is_kept() -> None:
    """Nor at a model that was not calibrated."""
    assert judge_signal(EMPTY, 0, "chat", 1.0) is AnswerVerdict.ESCALATE
    assert judge_signal(FILE, 1, "chat", 1.0) is AnswerVerdict.ESCALATE

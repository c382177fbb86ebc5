"""Labelled examples through a calibration file: who answers, what is paid."""

from math import inf

import pytest

from cascade.calibration.replay import answering_model, replay
from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from tests.cascade.calibration.labels import example, three_models


def file_of(*cuts: AcceptanceThreshold, models: tuple[str, ...] = ("small", "large")) -> CalibrationFile:
    return CalibrationFile(
        models,
        "margin",
        SignalStage.WINDOW,
        QualityGuarantee(0.03, 0.95),
        CalibrationEvidence(9, "sha256:0"),
        cuts,
        True,
    )


def test_escalating_costs_twice() -> None:
    """The small answer was asked for in vain."""
    file = file_of(AcceptanceThreshold(0, ANY_BUCKET, 0.5))
    assert answering_model(file, example(0.5)) == (0, 0.1)
    rung, cost = answering_model(file, example(0.4))
    assert rung == 1
    assert cost == pytest.approx(1.1)


def test_a_model_that_is_never_kept_is_never_called() -> None:
    """Nor paid."""
    assert answering_model(file_of(AcceptanceThreshold(0, ANY_BUCKET, inf)), example(9.0)) == (1, 1.0)


def test_sums() -> None:
    """Loss by bucket, shares by model, savings against the top."""
    drawn = [example(1.0, small=0.0, bucket="a"), example(1.0, bucket="b"), example(0.0, small=0.0, bucket="b")]
    played = replay(file_of(AcceptanceThreshold(0, ANY_BUCKET, 0.5)), drawn)
    assert played.losses == {"a": 1.0, "b": 0.0}
    assert played.answered == pytest.approx((2 / 3, 1 / 3))
    assert played.loss == pytest.approx(1 / 3)
    assert played.saved == pytest.approx(1 - 1.3 / 3)
    assert played.quality == pytest.approx(played.quality_always_top - 1 / 3)


def test_three_models_escalate_one_by_one() -> None:
    """The middle one answers what the first does not."""
    file = file_of(
        AcceptanceThreshold(0, ANY_BUCKET, 9.0),
        AcceptanceThreshold(1, ANY_BUCKET, -9.0),
        models=("small", "middle", "large"),
    )
    assert replay(file, three_models(50)).answered == (0.0, 1.0, 0.0)

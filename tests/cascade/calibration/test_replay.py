"""Labelled examples through a calibration file: who answers, what is paid."""

from math import inf

import pytest

from cascade.calibration.replay import answering_rung, replay
from cascade.calibration_file import ANY_BUCKET, Cut, Evidence, LadderFile, Promise, Stage
from tests.cascade.calibration.labels import example, rungs_of_three


def file_of(*cuts: Cut, models: tuple[str, ...] = ("small", "large")) -> LadderFile:
    return LadderFile(models, "margin", Stage.WINDOW, Promise(0.03, 0.95), Evidence(9, "sha256:0"), cuts, True)


def test_escalating_costs_twice() -> None:
    """The small answer was asked for in vain."""
    file = file_of(Cut(0, ANY_BUCKET, 0.5))
    assert answering_rung(file, example(0.5)) == (0, 0.1)
    rung, cost = answering_rung(file, example(0.4))
    assert rung == 1
    assert cost == pytest.approx(1.1)


def test_a_model_that_is_never_kept_is_never_asked() -> None:
    """Nor paid."""
    assert answering_rung(file_of(Cut(0, ANY_BUCKET, inf)), example(9.0)) == (1, 1.0)


def test_sums() -> None:
    """Loss by bucket, shares by model, savings against the top."""
    drawn = [example(1.0, small=0.0, bucket="a"), example(1.0, bucket="b"), example(0.0, small=0.0, bucket="b")]
    played = replay(file_of(Cut(0, ANY_BUCKET, 0.5)), drawn)
    assert played.losses == {"a": 1.0, "b": 0.0}
    assert played.answered == pytest.approx((2 / 3, 1 / 3))
    assert played.loss == pytest.approx(1 / 3)
    assert played.saved == pytest.approx(1 - 1.3 / 3)
    assert played.quality == pytest.approx(played.quality_always_top - 1 / 3)


def test_three_models_escalate_one_by_one() -> None:
    """The middle one answers what the first does not."""
    file = file_of(Cut(0, ANY_BUCKET, 9.0), Cut(1, ANY_BUCKET, -9.0), models=("small", "middle", "large"))
    assert replay(file, rungs_of_three(50)).answered == (0.0, 1.0, 0.0)

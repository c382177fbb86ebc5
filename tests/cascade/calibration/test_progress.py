"""Progress of a collection towards a guarantee: what none, few and enough labels show."""

from __future__ import annotations

from random import Random

import pytest

from cascade.calibration.calibrate import CalibrationTarget
from cascade.calibration.progress import label_progress, mean_bound
from cascade.calibration_file import QualityGuarantee, SignalStage
from tests.cascade.calibration.labels import informative_examples

TARGET = CalibrationTarget(("small", "large"), "margin", SignalStage.WINDOW)
GUARANTEE = QualityGuarantee(0.03, 0.95)


def test_without_labels_nothing_is_known() -> None:
    """But how many at least it takes."""
    progress = label_progress([], TARGET, GUARANTEE)
    assert (progress.is_enough, progress.needs, progress.loss_bound) == (False, 99, 1.0)


def test_few_labels_give_a_wide_bound_and_no_guarantee() -> None:
    """The bound is above the loss that all labels together show."""
    few = label_progress(informative_examples(40), TARGET, GUARANTEE)
    assert not few.is_enough
    assert few.loss + 0.1 < few.loss_bound <= 1.0
    assert "no guarantee yet" in str(few)


def test_enough_labels_are_called_so() -> None:
    """With a bound that is no longer wide."""
    progress = label_progress(informative_examples(1_500), TARGET, GUARANTEE)
    assert progress.is_enough
    assert progress.loss_bound < progress.loss + 0.05
    assert "enough for the guarantee" in str(progress)


@pytest.mark.parametrize("count", [2, 10, 100])
def test_the_bound_of_a_mean_holds(count: int) -> None:
    """Losses of a tenth: in at least 95 % of 400 draws it is not below (seeded)."""
    random = Random(count)
    draws = ([float(random.random() < 0.1) for _ in range(count)] for _ in range(400))
    assert sum(mean_bound(drawn, 0.05) < 0.1 for drawn in draws) <= 20
    assert mean_bound([0.0], 0.05) == 1.0

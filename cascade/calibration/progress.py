"""How far labels are from carrying a guarantee, and what few of them show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

from cascade.calibration.calibrate import CalibrationTarget, calibrate
from cascade.calibration.examples import Example
from cascade.calibration_file import QualityGuarantee
from cascade.loss_bound import min_examples


@dataclass(frozen=True, slots=True)
class LabelProgress:
    """State of a collection."""

    labelled: int
    is_enough: bool
    """Whether the labels carry the guarantee."""
    needs: int | None
    """Labels that would, if further ones are like these; None where no number would or it is not known."""
    loss: float
    """Mean loss of always using the smallest model."""
    loss_bound: float
    """What that mean is at most, with the confidence of the guarantee; 1 where nothing is known."""

    def __str__(self) -> str:
        bound = f"smallest model alone loses {self.loss * 100:.1f} points, at most {self.loss_bound * 100:.1f}"
        if self.is_enough:
            return f"{self.labelled:,} labels: enough for the guarantee; {bound}"
        if self.needs is None:
            return f"{self.labelled:,} labels: no guarantee yet, and no number of labels like these gives one; {bound}"
        return f"{self.labelled:,} labels: no guarantee yet, about {self.needs:,} would do; {bound}"


def label_progress(
    examples: Sequence[Example], target: CalibrationTarget, guarantee: QualityGuarantee, label_error: float = 0.0
) -> LabelProgress:
    """Return the progress towards the guarantee; without labels only the smallest number that may do is known."""
    error = 1.0 - guarantee.confidence - label_error
    fewest = min_examples(guarantee.max_loss, error)
    if not examples:
        return LabelProgress(0, is_enough=False, needs=fewest, loss=0.0, loss_bound=1.0)
    losses = [example.scores[-1] - example.scores[0] for example in examples]
    found = calibrate(examples, target, guarantee, label_error).file
    return LabelProgress(
        labelled=len(examples),
        is_enough=found.is_promised,
        needs=None if found.is_promised else found.evidence.needs,
        loss=sum(losses) / len(losses),
        loss_bound=mean_bound(losses, error),
    )


def mean_bound(values: Sequence[float], error: float) -> float:
    """Return what the mean of values between -1 and 1 is at most: Maurer and Pontil's Bernstein bound (COLT 2009).

    It holds for any distribution, except with the probability `error`; 1 for fewer than 2 values.
    """
    count = len(values)
    if count < 2:
        return 1.0
    mean = sum(values) / count
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    logarithm = log(2.0 / error)
    return min(1.0, mean + sqrt(2.0 * variance * logarithm / count) + 2.0 * 7.0 * logarithm / (3.0 * (count - 1)))

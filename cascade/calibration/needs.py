"""How many examples would do, where a promise cannot be made of those at hand.

An estimate: it takes the losses seen for the true ones, and part of one more that was not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from statistics import NormalDist

from cascade.calibration.bound import fewest
from cascade.calibration.walk import Step
from cascade.ladder_file import Promise

POWER = NormalDist().inv_cdf(0.9)
"""With so many examples the promise would be made nine times in ten."""

UNSEEN = 1 / 3
"""Losses that may hide among examples that show none: a few examples without one are not a model without any."""


def examples_needed(steps: Sequence[Step], promise: Promise, cost_of_top: float, seen: int) -> int | None:
    """More examples than were `seen`, with which the rule that needs fewest of those that save anything would be shown.

    None where every rule that saves loses more than may be lost: then no number of examples like these would do.
    """
    saving = [step for step in steps if step.cost < cost_of_top]
    # Of a handful even a third of a loss is more than may be lost: then what was seen must do.
    for unseen in (UNSEEN / seen, 0.0):
        hoped = [needed for step in saving if (needed := _needed(step, promise, unseen)) is not None]
        if hoped:
            return max(seen + 1, min(hoped))
    return None


def _needed(step: Step, promise: Promise, unseen: float) -> int | None:
    limit, error = promise.max_loss, 1.0 - promise.confidence
    loss = step.loss + unseen
    if loss >= limit:
        return None
    room, variance = limit - loss, max(loss, step.spread + unseen) - loss * loss
    # At the limit there are as many losses more as the mean is short of it.
    at_limit = variance + room * (1.0 - limit)
    far = NormalDist().inv_cdf(promise.confidence) * sqrt(at_limit) + POWER * sqrt(variance)
    return max(fewest(limit, error), ceil((far / room) ** 2))

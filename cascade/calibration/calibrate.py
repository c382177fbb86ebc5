"""From labelled examples to a calibration file: order, tests, thresholds, curves, and the evidence of the guarantee."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite, sqrt
from statistics import NormalDist

from cascade.calibration.examples import Example, fingerprint
from cascade.calibration.thresholds import (
    NEVER,
    Edge,
    Step,
    benefit_map,
    buckets_apart,
    by_rank,
    by_worth,
    chosen,
    cost_of_top,
    kept_from,
    split,
    walk,
    worth_maps,
)
from cascade.calibration_file import ANY_BUCKET, Cut, Evidence, LadderFile, Promise, Stage
from cascade.loss_bound import fewest

GREY = 0.1
"""Of a model's answers, the share just above the threshold that spans one step by which drift raises it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is calibrated: which models, by which signal, known when."""

    models: tuple[str, ...]
    signal: str
    stage: Stage


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibration file, and the way to it."""

    file: LadderFile
    steps: tuple[Step, ...]
    """Every rule that was looked at, from keeping nothing to keeping everything."""
    at: Step | None
    """The rule that was taken, None where nothing can be promised that saves anything."""


def calibrate(examples: Sequence[Example], subject: Subject, promise: Promise) -> Calibration:
    """Raises ValueError where there is not a single example, or their models are not those of the subject."""
    if not examples or any(len(example.scores) != len(subject.models) for example in examples):
        raise ValueError("calibration takes one example or more, each with a score of every rung")
    spent, tested = split(examples)
    apart = buckets_apart(examples)
    order = by_worth(tested, worth_maps(spent, apart)) if spent else by_rank(tested)
    steps = walk(tested, order, promise)
    at = chosen(steps, tested)
    evidence = _evidence(tested, at, fingerprint(examples))
    if at is None:
        needs = examples_needed(steps, promise, cost_of_top(tested), len(tested))
        # What is spent on maps is needed on top.
        evidence = replace(evidence, needs=None if needs is None else needs * len(examples) // len(tested))
        cuts: tuple[Cut, ...] = ()
    elif spent:
        edges = kept_from(tested, order, at.level, apart | {ANY_BUCKET})
        cuts = tuple(_cuts(examples, apart, lambda index, bucket: edges.get((index, bucket), NEVER)))
    else:
        # Buckets share the threshold of their model, and it holds for tasks that were not labelled apart.
        edges = kept_from(tested, order, at.level, (ANY_BUCKET,))
        cuts = tuple(_cuts(examples, apart, lambda index, _: edges.get((index, ANY_BUCKET), NEVER)))
    file = LadderFile(subject.models, subject.signal, subject.stage, promise, evidence, cuts, at is not None)
    return Calibration(file, tuple(steps), at)


def _cuts(examples: Sequence[Example], apart: frozenset[str], edge_of: Callable[[int, str], Edge]) -> Iterator[Cut]:
    """Of every model: one for any bucket, and one for each separate bucket, with a map of its own."""
    for index in range(examples[0].top):
        for bucket in (ANY_BUCKET, *sorted(apart - {ANY_BUCKET})):
            own = [example for example in examples if bucket in (ANY_BUCKET, example.bucket)]
            edge = edge_of(index, bucket)
            grey, benefits = _grey(own, index, edge.threshold), benefit_map(own, index, ANY_BUCKET)
            yield Cut(index, bucket, edge.threshold, grey, benefits, edge.at, edge.share)


def _grey(examples: Sequence[Example], index: int, threshold: float) -> float:
    above = sorted(
        example.signals[index]
        for example in examples
        if isfinite(example.signals[index]) and example.signals[index] >= threshold
    )
    return above[min(len(above) - 1, int(GREY * len(examples)))] - threshold if above else 0.0


def _evidence(examples: Sequence[Example], at: Step | None, digest: str) -> Evidence:
    count, top = len(examples), cost_of_top(examples)
    best = sum(example.scores[-1] for example in examples) / count
    return Evidence(
        examples=count,
        fingerprint=digest,
        loss=0.0 if at is None else at.loss,
        kept=0.0 if at is None else at.kept,
        cost=top if at is None else at.cost,
        cost_always_top=top,
        cost_always_first=sum(example.costs[0] for example in examples) / count,
        quality=best if at is None else best - at.loss,
        quality_always_top=best,
        quality_always_first=sum(example.scores[0] for example in examples) / count,
    )


POWER = NormalDist().inv_cdf(0.9)
"""With so many examples the guarantee would be made nine times in ten."""

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

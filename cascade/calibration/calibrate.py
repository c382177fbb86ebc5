"""From labelled examples to a calibration file: order, tests, thresholds, curves, and the evidence of the guarantee."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite, isnan, nan, sqrt
from statistics import NormalDist

from cascade.calibration.examples import Example, fingerprint
from cascade.calibration.replay import answering_model
from cascade.calibration.thresholds import (
    NEVER_ACCEPT,
    EvaluatedRule,
    ThresholdEdge,
    benefit_curve,
    by_rank,
    by_worth,
    cheapest_passed,
    cost_of_largest,
    evaluate_rules,
    loss_curves,
    separate_buckets,
    split_examples,
    thresholds_at,
    tie_break,
)
from cascade.calibration_file import (
    ANY_BUCKET,
    TENTHS,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    Comparison,
    QualityGuarantee,
    ReferenceOutcomes,
    SignalStage,
)
from cascade.loss_bound import min_examples

DRIFT_STEP_SHARE = 0.1
"""Of a model's answers, the share just above the threshold that spans one step by which drift raises it."""


@dataclass(frozen=True, slots=True)
class CalibrationTarget:
    """What is calibrated: which models, by which signal, known when."""

    models: tuple[str, ...]
    signal: str
    stage: SignalStage


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """A calibration file, and the way to it."""

    file: CalibrationFile
    rules: tuple[EvaluatedRule, ...]
    """Every rule that was looked at, from keeping nothing to keeping everything."""
    chosen_rule: EvaluatedRule | None
    """The rule that was taken, None if no guarantee can be given that saves anything."""


def calibrate(
    examples: Sequence[Example], subject: CalibrationTarget, guarantee: QualityGuarantee, label_error: float = 0.0
) -> CalibrationResult:
    """Find thresholds that keep the guarantee.

    `label_error` is the probability that the scores understate the losses: the test may err by as much less.

    Raises ValueError where there is not a single example, or their models are not those of the subject, or the
    `label_error` is all that the guarantee allows.
    """
    if guarantee.confidence + label_error >= 1.0:
        raise ValueError("the labels are less sure than the guarantee")
    if not examples or any(len(example.scores) != len(subject.models) for example in examples):
        raise ValueError("calibration takes one example or more, each with a score of every rung")
    spent, tested = split_examples(examples)
    separated = separate_buckets(examples)
    order = by_worth(tested, loss_curves(spent, separated)) if spent else by_rank(tested)
    tested_guarantee = replace(guarantee, confidence=guarantee.confidence + label_error)
    steps = evaluate_rules(tested, order, tested_guarantee)
    at = cheapest_passed(steps, tested)
    evidence = _evidence(tested, at, fingerprint(examples))
    if at is None:
        needs = examples_needed(steps, tested_guarantee, cost_of_largest(tested), len(tested))
        # What is spent on maps is needed on top.
        evidence = replace(evidence, needs=None if needs is None else needs * len(examples) // len(tested))
        cuts: tuple[AcceptanceThreshold, ...] = ()
    elif spent:
        edges = thresholds_at(tested, order, at.level, separated | {ANY_BUCKET})
        cuts = tuple(_cuts(examples, separated, lambda index, bucket: edges.get((index, bucket), NEVER_ACCEPT)))
    else:
        # Buckets share the threshold of their model, and it holds for tasks that were not labelled apart.
        edges = thresholds_at(tested, order, at.level, (ANY_BUCKET,))
        cuts = tuple(_cuts(examples, separated, lambda index, _: edges.get((index, ANY_BUCKET), NEVER_ACCEPT)))
    file = CalibrationFile(subject.models, subject.signal, subject.stage, guarantee, evidence, cuts, at is not None)
    if at is not None:
        file = replace(file, reference=tuple(reference_outcomes(file, tested)))
    return CalibrationResult(file, tuple(steps), at)


def reference_outcomes(file: CalibrationFile, examples: Sequence[Example]) -> Iterator[ReferenceOutcomes]:
    """Yield by model and comparison how accepted answers compare with the next model's."""
    judged = [0] * (len(file.models) - 1)
    accepted: list[list[Example]] = [[] for _ in judged]
    for at, example in enumerate(examples):
        index, _ = answering_model(file, example, tie_break(at))
        for before in range(min(index + 1, len(judged))):
            judged[before] += file.may_accept(before, example.bucket)
        if index < len(judged):
            accepted[index].append(example)
    for index, own in enumerate(accepted):
        if not judged[index]:
            continue
        for comparison in Comparison:
            outcomes = [found for example in own if (found := _outcome(example, index, comparison)) is not None]
            if outcomes or comparison is Comparison.SCORES:
                worse = sum(outcome for outcome in outcomes if outcome > 0.0)
                better = -sum(outcome for outcome in outcomes if outcome < 0.0)
                yield ReferenceOutcomes(
                    *(index, comparison, judged[index], len(outcomes), worse, better),
                    *_surest(file, own, index, comparison),
                )


def _surest(
    file: CalibrationFile, accepted: Sequence[Example], index: int, comparison: Comparison
) -> tuple[int, float, float]:
    """Return how many of the compared answers are among the surest, and how many of them are worse and better."""
    outcomes = [
        outcome
        for example in accepted
        if (outcome := _outcome(example, index, comparison)) is not None
        and file.is_surest(index, example.bucket, example.signals[index])
    ]
    worse = sum(outcome for outcome in outcomes if outcome > 0.0)
    return len(outcomes), worse, worse - sum(outcomes)


def _outcome(example: Example, index: int, comparison: Comparison) -> float | None:
    """Return how this model's answer compares with the next one's: 1 worse to -1 better; None if not compared."""
    if comparison is Comparison.SCORES:
        return example.scores[index + 1] - example.scores[index]
    given = example.outcomes.get(comparison) if example.outcomes else None
    value = given[index] if given else nan
    return None if isnan(value) else value


def _cuts(
    examples: Sequence[Example], separated: frozenset[str], edge_of: Callable[[int, str], ThresholdEdge]
) -> Iterator[AcceptanceThreshold]:
    """Of every model: one for any bucket, and one for each separate bucket, with a map of its own."""
    for index in range(examples[0].largest):
        for bucket in (ANY_BUCKET, *sorted(separated - {ANY_BUCKET})):
            own = [example for example in examples if bucket in (ANY_BUCKET, example.bucket)]
            edge = edge_of(index, bucket)
            benefits, above = benefit_curve(own, index, ANY_BUCKET), _above(own, index, edge.threshold)
            grey = above[min(len(above) - 1, int(DRIFT_STEP_SHARE * len(own)))] - edge.threshold if above else 0.0
            tenths = tuple(above[-(-len(above) * part // TENTHS) - 1] for part in range(1, TENTHS + 1)) if above else ()
            yield AcceptanceThreshold(index, bucket, edge.threshold, grey, benefits, edge.signal, edge.share, tenths)


def _above(examples: Sequence[Example], index: int, threshold: float) -> list[float]:
    """Return the signals from the threshold on, rising."""
    return sorted(
        example.signals[index]
        for example in examples
        if isfinite(example.signals[index]) and example.signals[index] >= threshold
    )


def _evidence(examples: Sequence[Example], at: EvaluatedRule | None, digest: str) -> CalibrationEvidence:
    count, top = len(examples), cost_of_largest(examples)
    best = sum(example.scores[-1] for example in examples) / count
    return CalibrationEvidence(
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

UNOBSERVED_LOSSES = 1 / 3
"""Losses that may hide among examples that show none: a few examples without one are not a model without any."""


def examples_needed(
    steps: Sequence[EvaluatedRule], guarantee: QualityGuarantee, cost_of_top: float, seen: int
) -> int | None:
    """More examples than were `seen`, with which the rule that needs fewest of those that save anything would be shown.

    None where every rule that saves loses more than may be lost: then no number of examples like these would do.
    """
    saving = [step for step in steps if step.cost < cost_of_top]
    # Of a handful even a third of a loss is more than may be lost: then what was seen must do.
    for unseen in (UNOBSERVED_LOSSES / seen, 0.0):
        hoped = [needed for step in saving if (needed := _needed(step, guarantee, unseen)) is not None]
        if hoped:
            return max(seen + 1, min(hoped))
    return None


def _needed(step: EvaluatedRule, guarantee: QualityGuarantee, unseen: float) -> int | None:
    limit, error = guarantee.max_loss, 1.0 - guarantee.confidence
    loss = step.loss + unseen
    if loss >= limit:
        return None
    room, variance = limit - loss, max(loss, step.spread + unseen) - loss * loss
    # At the limit there are as many losses more as the mean is short of it.
    at_limit = variance + room * (1.0 - limit)
    far = NormalDist().inv_cdf(guarantee.confidence) * sqrt(at_limit) + POWER * sqrt(variance)
    return max(min_examples(limit, error), ceil((far / room) ** 2))

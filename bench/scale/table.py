"""The table of a case, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.scale.cases import GRANTED, Case
from bench.scale.runs import CLAIRVOYANT, OURS, REACTIVE, UNFOLDED, Outcome, Row
from bench.target import Target

OF_ATTAINMENT = 0.95
OF_HOURS = 1.2
NO_WORSE = 0.01
"""By which attainment and cost may differ without a pattern."""


def mean(outcomes: Sequence[Outcome], scaler: str, field: str) -> float:
    """Return the mean of a figure over the seeds."""
    return sum(float(getattr(outcome.of(scaler), field)) for outcome in outcomes) / len(outcomes)


def block(case: Case, outcomes: Sequence[Outcome]) -> str:
    """Return the table of a case."""
    requests = sum(outcome.requests for outcome in outcomes) / len(outcomes)
    full_fleet = sum(outcome.full_fleet for outcome in outcomes) / len(outcomes)
    figures = f"{case.seconds / 3_600:g} h, {requests:,.0f} requests, 60 engines: {full_fleet:.4f}"
    head = f"{case.name}: {case.about} ({figures})"
    lines = [f"  {'':34}attainment   gold silver    hours  of clairv.  peak  wanted  changes"]
    base = mean(outcomes, CLAIRVOYANT, "engine_hours")
    for row in outcomes[0].rows:
        hours = mean(outcomes, row.scaler, "engine_hours")
        tiers = [sum(outcome.of(row.scaler).by_tier[at] for outcome in outcomes) / len(outcomes) for at in (0, 1)]
        lines.append(
            f"  {row.scaler:34}{mean(outcomes, row.scaler, 'attainment'):10.4f} {tiers[0]:6.3f} {tiers[1]:6.3f}"
            f" {hours:8.1f} {hours / base:11.3f} {_worst(outcomes, row, 'peak'):5} {_worst(outcomes, row, 'wanted'):7}"
            f" {mean(outcomes, row.scaler, 'changes'):8.0f}"
        )
    return "\n".join([head, *lines])


def _worst(outcomes: Sequence[Outcome], row: Row, field: str) -> int:
    return max(int(getattr(outcome.of(row.scaler), field)) for outcome in outcomes)


def targets_of(case: Case, outcomes: Sequence[Outcome]) -> Iterator[Target]:
    """Return what issue 25 asks: the clairvoyant's attainment and cost; the forecast beside the reactive scaler."""
    name = case.name
    reached = mean(outcomes, OURS, "attainment") / mean(outcomes, CLAIRVOYANT, "attainment")
    yield Target(f"{name}: attainment by the clairvoyant's", OF_ATTAINMENT, reached, is_minimum=True)
    hours = mean(outcomes, OURS, "engine_hours")
    yield Target(
        f"{name}: engine-hours by the clairvoyant's", OF_HOURS, hours / mean(outcomes, CLAIRVOYANT, "engine_hours")
    )
    gain = mean(outcomes, OURS, "attainment") - mean(outcomes, REACTIVE, "attainment")
    cost = hours / mean(outcomes, REACTIVE, "engine_hours")
    if case.has_pattern is True:
        yield Target(f"{name}: misses without the forecast beyond those with it", 0.0, gain, is_minimum=True)
    elif case.has_pattern is False:
        yield Target(f"{name}: attainment with the forecast beyond that without", -NO_WORSE, gain, is_minimum=True)
        yield Target(f"{name}: engine-hours with the forecast by those without", 1 + NO_WORSE, cost)
    if case.loop is not None:
        calm = max(outcome.of(OURS).wanted for outcome in outcomes)
        looped = max(outcome.of(UNFOLDED).wanted for outcome in outcomes)
        yield Target(f"{name}: engines wanted by those with each retry counted", 0.7, calm / looped)
    if case.is_bounded:
        wanted = max(outcome.of(OURS).wanted for outcome in outcomes)
        yield Target(f"{name}: engines wanted, by those granted", 1.5, wanted / GRANTED)

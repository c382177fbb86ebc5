"""The walk over thresholds: what each rule loses and costs, and where it stops."""

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.calibration.examples import Example
from cascade.calibration.orders import by_rank
from cascade.calibration.walk import chosen, cost_of_top, walk
from cascade.ladder_file import Promise
from tests.cascade.calibration.labels import UNKNOWN, example, rungs_of_three, telling

PROMISE = Promise(0.03, 0.95)


def test_steps_say_what_is_lost_and_paid() -> None:
    """Two of four kept, one of them wrong; who climbs has paid for the small answer too."""
    drawn = [example(3.0), example(2.0, small=0.0), example(1.0), example(0.0, small=0.0)]
    first, second, *_ = walk(drawn, by_rank(drawn), PROMISE)
    assert (first.kept, first.loss, first.cost) == pytest.approx((0.25, 0.0, 0.85))
    assert (second.kept, second.loss, second.cost) == pytest.approx((0.5, 0.25, 0.6))


def test_nothing_is_shown_after_the_first_failure() -> None:
    """However good later rules look: that is what keeps the error of all of them together."""
    drawn = [*(example(9.0, small=0.0) for _ in range(60)), *(example(1.0) for _ in range(940))]
    shown = [step.is_shown for step in walk(drawn, by_rank(drawn), PROMISE)]
    assert shown == sorted(shown, reverse=True)
    assert 5 <= sum(shown) < 30


def test_equal_signals_are_kept_by_lot() -> None:
    """One after the other, so that a promise may hold for a part of them."""
    drawn = [example(1.0) for _ in range(200)]
    steps = walk(drawn, by_rank(drawn), PROMISE)
    assert [step.kept for step in steps] == pytest.approx([(at + 1) / 200 for at in range(200)])
    assert steps[-1].is_shown


def test_unknown_signals_are_never_kept() -> None:
    """They climb under every rule."""
    drawn = [UNKNOWN] * 50 + [example(1.0)] * 150
    assert walk(drawn, by_rank(drawn), PROMISE)[-1].kept == 0.75


def test_gains_make_room() -> None:
    """What the small model answers better counts against what it answers worse."""
    lost, gained, rest = [example(small=0.0)] * 36, [example(large=0.0)] * 36, [example()] * 1_900
    assert not walk([*lost, *rest], by_rank([*lost, *rest]), Promise(0.02, 0.95))[-1].is_shown
    assert walk([*lost, *gained, *rest], by_rank([*lost, *gained, *rest]), Promise(0.02, 0.95))[-1].is_shown


def test_what_saves_nothing_is_not_chosen() -> None:
    """A promise that costs money helps nobody: one in twenty kept does not pay for twenty small answers."""
    drawn = [example(1.0, cost=0.1)] * 10 + [example(0.0, small=0.0, cost=0.1)] * 190
    steps = walk(drawn, by_rank(drawn), PROMISE)
    assert steps[0].is_shown
    assert chosen(steps, drawn) is None


def by_hand(drawn: list[Example], order: list[tuple[float | None, ...]], level: float) -> tuple[float, float]:
    """Loss and cost of one rule, reckoned from nothing."""
    played = [
        {one.bucket for one, own in zip(drawn, order, strict=True) if (at := own[rung]) is not None and at >= level}
        for rung in range(drawn[0].top)
    ]
    loss = cost = 0.0
    for one, own in zip(drawn, order, strict=True):
        kept = [rung for rung, at in enumerate(own) if at is not None and at >= level]
        rung = kept[0] if kept else one.top
        loss += one.scores[-1] - one.scores[rung]
        cost += one.costs[rung] + sum(one.wasted[below] for below in range(rung) if one.bucket in played[below])
    return loss / len(drawn), cost / len(drawn)


@given(st.integers(0, 10_000), st.sampled_from([telling, rungs_of_three]))
def test_sums_on_the_way_are_those_from_nothing(seed: int, draw: object) -> None:
    """Every step of every walk, two rungs and three."""
    drawn = (telling if draw is telling else rungs_of_three)(25, seed=seed)
    order = [tuple(levels) for levels in by_rank(drawn)]
    for step in walk(drawn, order, PROMISE):
        loss, cost = by_hand(drawn, order, step.level)
        assert isclose(step.loss, loss, abs_tol=1e-9)
        assert isclose(step.cost, cost, abs_tol=1e-9)
    assert cost_of_top(drawn) == pytest.approx(1.0)

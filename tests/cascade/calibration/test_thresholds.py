"""Thresholds: falling maps, the order of answers, the tests along it, and where it ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf, isclose, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.calibration.examples import Example
from cascade.calibration.thresholds import (
    NEVER_ACCEPT,
    ThresholdEdge,
    by_rank,
    by_worth,
    cheapest_passed,
    cost_of_largest,
    evaluate_rules,
    fit_benefit_curve,
    loss_curves,
    separate_buckets,
    split_examples,
    thresholds_at,
    tie_break,
)
from cascade.calibration_file import ANY_BUCKET, QualityGuarantee
from tests.cascade.calibration.labels import UNKNOWN, example, informative_examples, three_models


def test_few_examples_are_all_tested() -> None:
    """And many of one bucket too: one signal orders itself."""
    for drawn in (
        informative_examples(2_000),
        informative_examples(5_000),
        [*informative_examples(500, bucket="a"), *informative_examples(500, bucket="b")],
    ):
        assert split_examples(drawn) == ((), drawn)


def test_many_examples_of_many_kinds_are_split() -> None:
    """A third goes into the maps; no example is both spent and tested."""
    drawn = [*informative_examples(2_500, bucket="a"), *informative_examples(2_500, bucket="b")]
    spent, tested = split_examples(drawn)
    assert len(spent) + len(tested) == 5_000
    assert not {id(one) for one in spent} & {id(one) for one in tested}
    assert split_examples(three_models(1_600))[0]


def test_tiny_buckets_are_not_distinguished() -> None:
    """Their maps would be noise."""
    assert separate_buckets([*informative_examples(300, bucket="a"), *informative_examples(299, bucket="b")]) == {"a"}


def test_ranks_go_by_signal_and_then_by_lot() -> None:
    """Those that are alike share out the places that are theirs; the unknown have none."""
    levels = [own[0] for own in by_rank([example(1.0), example(5.0), example(1.0), example(nan), example(9.0)])]
    assert levels[3] is None
    first, second, third, last = (level for level in levels if level is not None)
    assert 0.0 < third < first <= 0.5 < second <= 0.75 < last <= 1.0


def test_lots_are_spread_evenly() -> None:
    """A tenth of them lies in each tenth."""
    lots = [int(tie_break(at) * 10) for at in range(1_000)]
    assert all(abs(lots.count(tenth) - 100) <= 3 for tenth in range(10))


def test_by_worth_goes_first_where_least_is_lost() -> None:
    """A bucket whose signal tells goes before one in which it does not, at the same signal."""
    sharp, dull = (
        informative_examples(3_000, bucket="sharp"),
        informative_examples(3_000, shift=0.0, bucket="dull", seed=2),
    )
    maps = loss_curves([*sharp, *dull], {"sharp", "dull"})
    requested = [example(1.5, bucket="sharp"), example(1.5, bucket="dull"), example(-3.0, bucket="sharp"), example(nan)]
    levels = [own[0] for own in by_worth(requested, maps)]
    first, second, third = (level for level in levels[:3] if level is not None)
    assert first > second > third
    assert levels[3] is None


PROMISE = QualityGuarantee(0.03, 0.95)


def test_steps_report_what_is_lost_and_paid() -> None:
    """Two of four kept, one of them wrong; who escalates has paid for the small answer too."""
    drawn = [example(3.0), example(2.0, small=0.0), example(1.0), example(0.0, small=0.0)]
    first, second, *_ = evaluate_rules(drawn, by_rank(drawn), PROMISE)
    assert (first.kept, first.loss, first.cost) == pytest.approx((0.25, 0.0, 0.85))
    assert (second.kept, second.loss, second.cost) == pytest.approx((0.5, 0.25, 0.6))


def test_nothing_is_shown_after_the_first_failure() -> None:
    """However good later rules look: that is what keeps the error of all of them together."""
    drawn = [*(example(9.0, small=0.0) for _ in range(60)), *(example(1.0) for _ in range(940))]
    shown = [step.has_passed for step in evaluate_rules(drawn, by_rank(drawn), PROMISE)]
    assert shown == sorted(shown, reverse=True)
    assert 5 <= sum(shown) < 30


def test_equal_signals_are_kept_by_lot() -> None:
    """One after the other, so that a guarantee may hold for a part of them."""
    drawn = [example(1.0) for _ in range(200)]
    steps = evaluate_rules(drawn, by_rank(drawn), PROMISE)
    assert [step.kept for step in steps] == pytest.approx([(at + 1) / 200 for at in range(200)])
    assert steps[-1].has_passed


def test_unknown_signals_are_never_kept() -> None:
    """They escalate under every rule."""
    drawn = [UNKNOWN] * 50 + [example(1.0)] * 150
    assert evaluate_rules(drawn, by_rank(drawn), PROMISE)[-1].kept == 0.75


def test_gains_make_room() -> None:
    """What the small model answers better counts against what it answers worse."""
    lost, gained, rest = [example(small=0.0)] * 36, [example(large=0.0)] * 36, [example()] * 1_900
    assert not evaluate_rules([*lost, *rest], by_rank([*lost, *rest]), QualityGuarantee(0.02, 0.95))[-1].has_passed
    assert evaluate_rules([*lost, *gained, *rest], by_rank([*lost, *gained, *rest]), QualityGuarantee(0.02, 0.95))[
        -1
    ].has_passed


def test_what_saves_nothing_is_not_chosen() -> None:
    """A guarantee that costs money helps nobody: one in twenty kept does not pay for twenty small answers."""
    drawn = [example(1.0, cost=0.1)] * 10 + [example(0.0, small=0.0, cost=0.1)] * 190
    steps = evaluate_rules(drawn, by_rank(drawn), PROMISE)
    assert steps[0].has_passed
    assert cheapest_passed(steps, drawn) is None


def by_hand(drawn: list[Example], order: list[tuple[float | None, ...]], level: float) -> tuple[float, float]:
    """Loss and cost of one rule, reckoned from nothing."""
    played = [
        {one.bucket for one, own in zip(drawn, order, strict=True) if (at := own[rung]) is not None and at >= level}
        for rung in range(drawn[0].largest)
    ]
    loss = cost = 0.0
    for one, own in zip(drawn, order, strict=True):
        kept = [rung for rung, at in enumerate(own) if at is not None and at >= level]
        rung = kept[0] if kept else one.largest
        loss += one.scores[-1] - one.scores[rung]
        cost += one.costs[rung] + sum(one.wasted[below] for below in range(rung) if one.bucket in played[below])
    return loss / len(drawn), cost / len(drawn)


@given(st.integers(0, 10_000), st.sampled_from([informative_examples, three_models]))
def test_sums_on_the_way_are_those_from_nothing(seed: int, draw: object) -> None:
    """Every step of every walk, two models and three."""
    drawn = (informative_examples if draw is informative_examples else three_models)(25, seed=seed)
    order = [tuple(levels) for levels in by_rank(drawn)]
    for step in evaluate_rules(drawn, order, PROMISE):
        loss, cost = by_hand(drawn, order, step.level)
        assert isclose(step.loss, loss, abs_tol=1e-9)
        assert isclose(step.cost, cost, abs_tol=1e-9)
    assert cost_of_largest(drawn) == pytest.approx(1.0)


PAIRS = st.lists(st.tuples(st.integers(-5, 5).map(float), st.sampled_from([-1.0, 0.0, 0.5, 1.0])), max_size=40)


@given(PAIRS, st.sampled_from([0.0, 3.0, 50.0]))
def test_maps_fall_and_signals_rise(pairs: list[tuple[float, float]], doubt: float) -> None:
    """Whatever the examples, and however much is believed beforehand."""
    found = fit_benefit_curve(pairs, towards=0.2, doubt=doubt)
    assert all(left < right for left, right in pairwise(found.signals))
    assert all(left >= right for left, right in pairwise(found.benefits))


@given(PAIRS.filter(bool))
def test_the_mean_is_kept(pairs: list[tuple[float, float]]) -> None:
    """Benefits within those seen: pooling averages and no more."""
    found = fit_benefit_curve(pairs)
    assert min(benefit for _, benefit in pairs) - 1e-9 <= min(found.benefits)
    assert max(found.benefits) <= max(benefit for _, benefit in pairs) + 1e-9


def test_violators_are_pooled() -> None:
    """The second and third would rise, so they share their mean; the ends stay."""
    found = fit_benefit_curve([(1.0, 0.9), (2.0, 0.2), (3.0, 0.4), (4.0, 0.0)])
    assert found.benefits == pytest.approx((0.9, 0.3, 0.0))
    assert found.signals == (1.0, 2.5, 4.0)


def test_ties_stand_in_one_step() -> None:
    """Equal signals have one benefit."""
    assert fit_benefit_curve([(1.0, 1.0), (1.0, 0.0), (1.0, 0.5)]).benefits == pytest.approx((0.5,))


def test_steps_of_few_lean_towards_what_is_believed() -> None:
    """One example says little against ten believed ones."""
    assert fit_benefit_curve([(1.0, 1.0)], towards=0.0, doubt=9.0).benefits == pytest.approx((0.1,))


def test_unknown_signals_are_left_out() -> None:
    """Nothing known gives an empty map."""
    assert fit_benefit_curve([(nan, 1.0)]).signals == ()


ALIKE = [example(1.0), example(1.0), example(1.0), example(1.0), example(2.0), example(nan)]
ORDER = [(0.1,), (0.3,), (0.5,), (0.6,), (0.9,), (None,)]


def test_a_level_between_two_signals_is_a_threshold() -> None:
    """Nothing is left to chance."""
    assert thresholds_at(ALIKE, ORDER, 0.9, [ANY_BUCKET]) == {(0, ANY_BUCKET): ThresholdEdge(2.0)}
    assert thresholds_at(ALIKE, ORDER, 0.1, [ANY_BUCKET]) == {(0, ANY_BUCKET): ThresholdEdge(1.0)}


def test_a_level_among_those_alike_keeps_a_share_of_them() -> None:
    """Above them all is kept."""
    assert thresholds_at(ALIKE, ORDER, 0.5, [ANY_BUCKET]) == {(0, ANY_BUCKET): ThresholdEdge(2.0, 1.0, 0.5)}


def test_one_signal_for_all_has_an_edge_only() -> None:
    """No signal is above it."""
    assert thresholds_at(ALIKE[:4], ORDER[:4], 0.3, [ANY_BUCKET]) == {(0, ANY_BUCKET): ThresholdEdge(inf, 1.0, 0.75)}
    assert thresholds_at(ALIKE, ORDER, 2.0, [ANY_BUCKET]) == {(0, ANY_BUCKET): NEVER_ACCEPT}


def test_buckets_have_their_own() -> None:
    """Others share the one for any."""
    drawn = [example(1.0, bucket="a"), example(2.0, bucket="b")]
    assert thresholds_at(drawn, [(0.5,), (0.5,)], 0.5, ["a", ANY_BUCKET]) == {
        (0, "a"): ThresholdEdge(1.0),
        (0, ANY_BUCKET): ThresholdEdge(2.0),
    }


def test_examples_of_one_prompt_are_on_one_side() -> None:
    """Of the split into maps and tests; a few groups that cannot be divided are split one by one."""
    buckets = [*informative_examples(3_000, bucket="a"), *informative_examples(3_000, bucket="b", seed=2)]
    grouped = [replace(one, group=1 + at // 3) for at, one in enumerate(buckets)]
    spent, tested = split_examples(grouped)
    assert spent
    assert {one.group for one in spent}.isdisjoint(one.group for one in tested)
    spent, tested = split_examples([replace(one, group=4) for one in buckets])
    assert len(tested) == 2 * len(spent)

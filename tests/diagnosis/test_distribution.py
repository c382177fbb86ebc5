"""Counts by bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.distribution import TIME_LIMITS_S, Distribution, distribution_of, from_cumulative, medians_by_step


def test_a_distribution_has_mean_and_quantiles() -> None:
    """Linear within a bucket; beyond all limits the last one is given."""
    held = distribution_of([0.5, 1.5, 1.5, 9.0], (1.0, 2.0, 4.0))
    assert list(held.counts) == [1.0, 2.0, 0.0, 1.0]
    assert held.mean == pytest.approx(3.125)
    assert held.quantile(0.5) == pytest.approx(1.5)
    assert held.quantile(1.0) == 4.0
    assert held.share_above(2.0) == 0.25


def test_without_values_nothing_is_known() -> None:
    """None, not zero."""
    held = Distribution((1.0,), (0.0, 0.0))
    assert (held.mean, held.quantile(0.5), held.share_above(0.5)) == (None, None, None)
    assert Distribution((), (3.0,), 6.0).mean == 2.0
    assert Distribution((), (3.0,), 6.0).quantile(0.5) is None


def test_cumulative_buckets_may_come_in_any_order() -> None:
    """As Prometheus has them."""
    assert from_cumulative([(2.0, 3.0), (1.0, 1.0)], 9.0, 4.0) == Distribution((1.0, 2.0), (1.0, 2.0, 1.0), 9.0)


def test_growth_is_none_after_a_restart_or_with_other_limits() -> None:
    """Counts that fell cannot be subtracted."""
    before, after = distribution_of([0.1, 0.1]), distribution_of([0.1])
    assert after.minus(before) is None
    assert after.minus(distribution_of([], (1.0,))) is None


@given(st.lists(st.floats(0.0, 500.0)), st.lists(st.floats(0.0, 500.0)))
def test_what_is_added_can_be_subtracted(one: list[float], other: list[float]) -> None:
    """Counts, at any values."""
    first, second = distribution_of(one), distribution_of(other)
    summed = first.plus(second)
    assert summed.count == len(one) + len(other)
    grown = summed.minus(first) if one else summed
    assert grown is not None
    assert grown.counts == second.counts


def test_other_limits_are_added_at_their_mean() -> None:
    """Count and sum are kept."""
    summed = distribution_of([0.01], TIME_LIMITS_S).plus(distribution_of([1.0, 3.0], (2.0,)))
    assert summed.count == 3
    assert summed.total == pytest.approx(4.01)


def test_medians_by_step_are_in_order_of_time() -> None:
    """Steps without a value are left out."""
    values = [(12.0, 9.0), (0.5, 1.0), (1.0, 3.0), (4.9, 8.0), (14.9, 1.0)]
    assert medians_by_step(values, 5.0) == ((0.0, 3.0), (10.0, 5.0))
    assert medians_by_step([], 5.0) == ()

"""Falling maps by pooling: least squares, monotone, ties together."""

from itertools import pairwise
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.calibration.isotonic import falling_map

PAIRS = st.lists(st.tuples(st.integers(-5, 5).map(float), st.sampled_from([-1.0, 0.0, 0.5, 1.0])), max_size=40)


@given(PAIRS, st.sampled_from([0.0, 3.0, 50.0]))
def test_maps_fall_and_signals_rise(pairs: list[tuple[float, float]], doubt: float) -> None:
    """Whatever the examples, and however much is believed beforehand."""
    found = falling_map(pairs, towards=0.2, doubt=doubt)
    assert all(left < right for left, right in pairwise(found.signals))
    assert all(left >= right for left, right in pairwise(found.benefits))


@given(PAIRS.filter(bool))
def test_the_mean_is_kept(pairs: list[tuple[float, float]]) -> None:
    """Benefits within those seen: pooling averages and no more."""
    found = falling_map(pairs)
    assert min(benefit for _, benefit in pairs) - 1e-9 <= min(found.benefits)
    assert max(found.benefits) <= max(benefit for _, benefit in pairs) + 1e-9


def test_violators_are_pooled() -> None:
    """The second and third would rise, so they share their mean; the ends stay."""
    found = falling_map([(1.0, 0.9), (2.0, 0.2), (3.0, 0.4), (4.0, 0.0)])
    assert found.benefits == pytest.approx((0.9, 0.3, 0.0))
    assert found.signals == (1.0, 2.5, 4.0)


def test_ties_stand_in_one_step() -> None:
    """Equal signals have one benefit."""
    assert falling_map([(1.0, 1.0), (1.0, 0.0), (1.0, 0.5)]).benefits == pytest.approx((0.5,))


def test_steps_of_few_lean_towards_what_is_believed() -> None:
    """One example says little against ten believed ones."""
    assert falling_map([(1.0, 1.0)], towards=0.0, doubt=9.0).benefits == pytest.approx((0.1,))


def test_unknown_signals_are_left_out() -> None:
    """Nothing known gives an empty map."""
    assert falling_map([(nan, 1.0)]).signals == ()

"""A weighted mean of what was seen by what was expected, which begins with doubt and forgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.ratio import LARGEST_STEP, OUTLIER, Ratio


def test_it_begins_with_doubt_and_ends_with_what_is_seen() -> None:
    """The first observations move it a little, many of them all the way."""
    ratio = Ratio(memory=40.0, seen=8.0)
    ratio.observe(2.0)
    assert 1.0 < ratio.value < 1.2
    for _ in range(400):
        ratio.observe(2.0)
    assert ratio.value == pytest.approx(2.0, rel=0.01)


def test_much_counts_for_much() -> None:
    """Observations of little weight do not move what one of much weight says."""
    ratio = Ratio(memory=1000.0, seen=1.0)
    for _ in range(10):
        ratio.observe(3.0, 0.01)
        ratio.observe(1.0, 1.0)
    assert ratio.value < 1.05


def test_it_forgets() -> None:
    """What was true for long gives way to what is true now."""
    ratio = Ratio(memory=40.0)
    for _ in range(1000):
        ratio.observe(1.0)
    for _ in range(200):
        ratio.observe(0.5)
    assert ratio.value == pytest.approx(0.5, rel=0.05)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(-1, 1e6)), max_size=50))
def test_one_observation_moves_it_within_bounds(seen: list[tuple[float, float]]) -> None:
    """However far off and heavy an observation is, the mean goes a quarter of the way to four times itself at most."""
    ratio = Ratio(memory=50.0)
    for seen_ratio, weight in seen:
        before = ratio.value
        ratio.observe(seen_ratio, weight)
        assert before * (1 - LARGEST_STEP) * 0.999 <= ratio.value <= before * (1 + LARGEST_STEP * OUTLIER)


def test_it_leans_on_another_while_little_is_seen() -> None:
    """Nothing seen: all the other's. Much seen: nearly all its own."""
    other, ratio = Ratio(memory=40.0, value=5.0), Ratio(memory=40.0)
    assert ratio.leaning_on(other, 8.0) == 5.0
    for _ in range(8):
        ratio.observe(1.0)
    assert ratio.leaning_on(other, 8.0) == pytest.approx(3.0)
    for _ in range(2000):
        ratio.observe(1.0)
    assert ratio.leaning_on(other, 8.0) == pytest.approx(1.0, rel=0.05)

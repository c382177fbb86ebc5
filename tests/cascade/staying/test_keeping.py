"""A rung that keeps none of its answers is found, asked seldom, and tried again."""

from random import Random

import pytest

from cascade.staying.keeping import FEWEST, TRIAL, FreezeWatch


def test_a_rung_that_keeps_nothing_freezes() -> None:
    """With the last of so many answers in a row, and not before."""
    keeping = FreezeWatch(0.4)
    assert keeping.enough == FEWEST
    assert not any(keeping.take(is_kept=False) for _ in range(FEWEST - 1))
    assert keeping.take(is_kept=False)
    assert keeping.is_frozen
    assert not keeping.take(is_kept=False)


def test_a_frozen_rung_is_tried_now_and_then() -> None:
    """And asked for every request again with the first answer that is kept."""
    keeping = FreezeWatch(0.4)
    assert all(keeping.asks() for _ in range(1_000))
    for _ in range(FEWEST):
        keeping.take(is_kept=False)
    assert sum(keeping.asks() for _ in range(10 * TRIAL)) == 10
    assert keeping.take(is_kept=True)
    assert keeping.asks()


def test_one_kept_answer_begins_the_count_anew() -> None:
    """Only an unbroken row shows anything."""
    keeping = FreezeWatch(0.4)
    for number in range(20 * FEWEST):
        keeping.take(is_kept=number % FEWEST == 0)
    assert not keeping.is_frozen


@pytest.mark.parametrize("kept", [0.02, 0.1, 0.9])
def test_a_rung_that_keeps_what_was_calibrated_does_not_freeze(kept: float) -> None:
    """The fewer it keeps, the longer a row has to be."""
    random, keeping = Random(5), FreezeWatch(kept)
    for _ in range(50_000):
        keeping.take(is_kept=random.random() < kept)
        assert not keeping.is_frozen


def test_where_nothing_was_kept_nothing_is_expected() -> None:
    """A calibration that keeps none is contradicted by no row."""
    keeping = FreezeWatch(0.0)
    for _ in range(5_000):
        assert not keeping.take(is_kept=False)

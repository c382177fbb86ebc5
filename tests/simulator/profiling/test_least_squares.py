"""Least squares with coefficients that cannot be negative."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.profiling.least_squares import fit_non_negative, solve


def test_a_square_system_is_solved() -> None:
    """With a pivot that is not in its place."""
    assert solve([[0.0, 2.0], [3.0, 1.0]], [4.0, 5.0]) == pytest.approx([1.0, 2.0])


def test_a_column_without_a_pivot_gets_nothing() -> None:
    """Two equal columns share one coefficient."""
    assert solve([[1.0, 1.0], [1.0, 1.0]], [2.0, 2.0]) == pytest.approx([2.0, 0.0])


@given(st.lists(st.floats(0.1, 5), min_size=4, max_size=4), st.integers(0, 1000))
def test_what_made_the_values_is_found(made_of: list[float], seed: int) -> None:
    """Without noise, to rounding."""
    draw = Random(seed)
    rows = [[draw.uniform(0, 1) for _ in made_of] for _ in range(20)]
    values = [sum(a * b for a, b in zip(row, made_of, strict=True)) for row in rows]
    assert fit_non_negative(rows, values) == pytest.approx(made_of, rel=1e-5)


def test_nothing_turns_negative() -> None:
    """A coefficient that would be negative is 0, and the others are the best without it."""
    rows = [[1.0, float(x)] for x in range(5)]
    found = fit_non_negative(rows, [5.0 - x for x in range(5)])
    assert found == pytest.approx([3.0, 0.0])


@given(st.integers(0, 500))
def test_no_neighbour_is_better(seed: int) -> None:
    """Optimality: a small step of any one coefficient that is allowed does not lower the error."""
    draw = Random(seed)
    rows = [[draw.uniform(-1, 1) for _ in range(4)] for _ in range(8)]
    values = [draw.uniform(-1, 1) for _ in range(8)]
    found = fit_non_negative(rows, values)

    def error(at: list[float]) -> float:
        return sum(
            (sum(a * b for a, b in zip(row, at, strict=True)) - value) ** 2
            for row, value in zip(rows, values, strict=True)
        )

    min_loss = error(found)
    for place in range(4):
        for step in (-1e-3, 1e-3):
            other = [max(value + step * (place == index), 0.0) for index, value in enumerate(found)]
            assert error(other) >= min_loss - 1e-9

"""The search finds minima where a walk along the axes does not."""

from collections.abc import Sequence

import pytest

from simulator.shadowing.search import evolve, minimize


def valley(point: Sequence[float]) -> float:
    """A curved valley with its minimum at (1, 1)."""
    return (1 - point[0]) ** 2 + 100 * (point[1] - point[0] ** 2) ** 2


def test_a_curved_valley_is_followed() -> None:
    """From a corner of the box to its minimum."""
    value, point = minimize(valley, [-1.2, 1.0], 0.5, 400, 1e-9)
    assert value < 1e-4
    assert point == pytest.approx([1.0, 1.0], abs=0.05)


def test_evolution_stays_in_its_box_and_repeats() -> None:
    """The same seed finds the same point; no coordinate is beyond its bounds, where the value may be anything."""
    box = [(-2.0, 2.0), (-1.0, 3.0)]

    def guarded(point: Sequence[float]) -> float:
        assert all(low <= one <= high for one, (low, high) in zip(point, box, strict=True))
        return (point[0] - 0.7) ** 2 + (point[1] - point[0]) ** 2

    first = evolve(guarded, box, population=12, generations=40, seed=1)
    assert first == evolve(guarded, box, population=12, generations=40, seed=1)
    assert first[0] < 0.01


def test_evaluations_are_bounded() -> None:
    """A function without a minimum ends the search all the same."""
    count = 0

    def endless(point: Sequence[float]) -> float:
        nonlocal count
        count += 1
        return point[0]

    minimize(endless, [0.0, 0.0], 1.0, 50, 0.0)
    assert count < 60

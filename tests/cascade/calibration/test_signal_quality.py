"""Figures of a signal with their intervals, and examples that are no independent draws."""

from __future__ import annotations

from math import nan
from random import Random

import pytest

from cascade.calibration.examples import Example
from cascade.calibration.signal_quality import (
    dependent_examples,
    mean_interval,
    share_interval,
    signal_quality,
)


def example(signal: float, *, gains: bool, group: int = 0) -> Example:
    return Example("*", (float(not gains), 1.0), (signal,), (0.1, 1.0), (0.1,), group=group)


def drawn(shift: float, seed: int, count: int) -> list[Example]:
    """Examples whose signals are lower by `shift` standard deviations where they gain."""
    random = Random(seed)
    found = []
    for _ in range(count):
        gains = random.random() < 0.3
        found.append(example(random.gauss(0.0, 1.0) - shift * gains, gains=gains))
    return found


def test_a_signal_that_tells_is_told_from_chance() -> None:
    """One standard deviation apart the AUROC is 0.76; missing signals are left out."""
    quality = signal_quality([*drawn(1.0, 1, 800), example(nan, gains=True)], 0)
    assert quality.auroc.low < 0.76 < quality.auroc.high
    assert quality.gaining + quality.others == 800
    assert not quality.is_chance


def test_the_interval_of_noise_holds_chance() -> None:
    """In 19 of 20 draws or so (seeded)."""
    assert sum(signal_quality(drawn(0.0, seed, 200), 0).is_chance for seed in range(40)) >= 36


def test_a_handful_shows_nothing() -> None:
    """Two examples told apart, and none of a kind, are not better than chance."""
    pair = [example(0.1, gains=True), example(0.9, gains=False)]
    assert signal_quality(pair, 0).is_chance
    assert signal_quality(pair[1:], 0).is_chance


def test_intervals_hold_what_they_are_of() -> None:
    """Also at the ends, and of nothing."""
    assert share_interval(0.0, 20).high == pytest.approx(0.161, abs=1e-3)
    assert (share_interval(0.5, 0).low, share_interval(0.5, 0).high) == (0.0, 1.0)
    found = mean_interval([0.0, 1.0] * 50)
    assert found.value == 0.5
    assert found.high - found.low == pytest.approx(0.197, abs=1e-3)
    assert mean_interval([]).value == 0.0


def test_examples_of_one_prompt_are_counted() -> None:
    """Groups of one are independent, and so is what has no group."""
    groups = [7, 7, 7, 8, 9, 9, 0, 0]
    found = dependent_examples([example(0.5, gains=False, group=group) for group in groups])
    assert (found.examples, found.groups, found.max_group) == (5, 2, 3)

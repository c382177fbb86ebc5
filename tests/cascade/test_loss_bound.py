"""The bound holds its error, exactly for 0/1 scores, and is no blunter than it must be."""

from __future__ import annotations

from math import comb, inf, log, log1p
from random import Random

import pytest

from cascade.loss_bound import TERNARY, critical_value, distance, min_examples


def error_by_counting(examples: int, limit: float, gains: float, far: float) -> float:
    """The chance of showing a loss below the limit where it stands at it, over all outcomes, by multinomials."""
    losses, rest = gains + limit, 1 - 2 * gains - limit
    return sum(
        comb(examples, a) * comb(examples - a, b) * losses**a * gains**b * rest ** (examples - a - b)
        for a in range(examples + 1)
        for b in range(examples - a + 1)
        if distance((b, examples - a - b, a), TERNARY, limit) >= far
    )


@pytest.mark.parametrize(("examples", "limit"), [(60, 0.05), (60, 0.1), (110, 0.03), (110, 0.08)])
def test_the_error_is_at_most_what_is_allowed(examples: int, limit: float) -> None:
    """Whatever the share of gains, also between those that were searched."""
    far = critical_value(examples, limit, 0.05)
    worst = max(error_by_counting(examples, limit, gains, far) for gains in (0.0, 0.005, 0.015, 0.03, 0.06, 0.12, 0.25))
    assert worst <= 0.05
    assert worst > 0.02, "so blunt a bound would save nothing"


def test_without_losses_it_is_clopper_and_pearsons() -> None:
    """299 examples without a loss show a loss below 1 %; 298 do not."""
    assert min_examples(0.01, 0.05) == 299
    assert min_examples(0.03, 0.05) == 99
    assert critical_value(298, 0.01, 0.05) == inf
    assert distance((0, 310, 0), TERNARY, 0.01) >= critical_value(310, 0.01, 0.05)
    assert log(0.05) / log1p(-0.01) < 299


def test_more_examples_ask_no_more() -> None:
    """The distance falls to near the normal one."""
    assert critical_value(2_000, 0.03, 0.05) == pytest.approx(1.74, abs=0.06)
    assert critical_value(10**6, 0.03, 0.05) == critical_value(4_000, 0.03, 0.05)


@pytest.mark.parametrize("limit", [0.0, 1.0, -0.5, 2.0])
def test_there_is_nothing_to_show_beyond_the_ends(limit: float) -> None:
    """A guarantee to lose nothing at all cannot be shown by any number of examples."""
    assert critical_value(1_000, limit, 0.05) == inf


def test_more_losses_lie_nearer_more_gains_farther() -> None:
    """The distance goes the right way in both."""
    rare, often = distance((0, 990, 10), TERNARY, 0.03), distance((0, 980, 20), TERNARY, 0.03)
    gained = distance((10, 970, 20), TERNARY, 0.03)
    assert rare > often
    assert gained > often
    assert distance((0, 950, 50), TERNARY, 0.03) < 0


def test_graded_losses_of_three_kinds_are_ternary_ones() -> None:
    """Both ways to reckon agree where both apply: levels that nobody stands at change nothing."""
    plain = distance((12, 955, 33), TERNARY, 0.04)
    graded = distance((12, 0, 955, 0, 33), (-1.0, -0.5, 0.0, 0.5, 1.0), 0.04)
    assert graded == pytest.approx(plain, rel=1e-3)


def test_small_losses_are_shown_sooner_than_rare_large_ones() -> None:
    """Of the same mean, what is less dispersed tells more."""
    levels = (-1.0, 0.0, 0.1, 1.0)
    assert distance((0, 900, 100, 0), levels, 0.03) > distance((0, 990, 0, 10), levels, 0.03)


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_graded_losses_keep_the_error_too(share: float) -> None:
    """Skewed losses whose mean stands at the limit are seldom taken for less (seeded: the same every time)."""
    random, levels = Random(7), (-1.0, 0.0, 0.2, 0.5, 1.0)
    weights = (0.0, 1 - 2.5 * share, share, share, share / 2)
    limit = share * 0.2 + share * 0.5 + share / 2
    far = critical_value(150, limit, 0.05)
    shown = 0
    for _ in range(1_000):
        drawn = random.choices(range(5), weights, k=150)
        shown += distance([float(drawn.count(at)) for at in range(5)], levels, limit) >= far
    assert shown <= 60

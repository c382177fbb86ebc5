"""Both coefficients of a decode step are learned, whatever shape the prior has."""

from __future__ import annotations

from random import Random

import pytest

from routing.cost import CostPrior
from routing.decode_pace import MIN_TOKENS, DecodePace

PRIOR = CostPrior(step_base_s=0.012, step_per_sequence_s=0.0001)
BASE_S, EACH_S = 0.020, 0.0012


def observed(pace: DecodePace, slot: int, sequences: list[float], base_s: float = BASE_S) -> None:
    for running in sequences:
        pace.observe(slot, running, 100, 100 * (base_s + running * EACH_S))


def draws(count: int, highest: int = 40) -> list[float]:
    random = Random(7)
    return [float(random.randint(1, highest)) for _ in range(count)]


def test_the_prior_counts_before_anything_was_seen() -> None:
    """Its own line."""
    assert DecodePace(PRIOR).line(0) == (PRIOR.step_base_s, PRIOR.step_per_sequence_s)


def test_a_line_of_another_shape_is_found() -> None:
    """The prior's slope is a hundred and twentieth of its base; the engine's a seventeenth."""
    pace = DecodePace(PRIOR)
    observed(pace, 0, draws(100))
    base_s, each_s = pace.line(0)
    assert base_s == pytest.approx(BASE_S, rel=0.2)
    assert each_s == pytest.approx(EACH_S, rel=0.1)


def test_an_engine_that_was_never_seen_is_like_the_fleet_and_a_slow_one_is_not() -> None:
    """Of two kinds of engine each has its own base; a slot that was forgotten has the fleet's."""
    pace = DecodePace(PRIOR)
    for _ in range(4):
        observed(pace, 0, draws(50))
        observed(pace, 1, draws(50), base_s=2 * BASE_S)
    slow, quick = pace.line(1)[0], pace.line(0)[0]
    assert slow > 1.4 * quick
    pace.forget(1)
    assert quick < pace.line(1)[0] < slow


def test_equal_numbers_of_sequences_bend_nothing() -> None:
    """A line through one point: the prior's shape, scaled to it."""
    pace = DecodePace(PRIOR)
    observed(pace, 0, [20.0] * 100)
    base_s, each_s = pace.line(0)
    assert base_s + 20 * each_s == pytest.approx(BASE_S + 20 * EACH_S, rel=0.02)
    assert base_s > 0
    assert each_s >= 0


def test_short_answers_and_times_that_are_none_teach_nothing() -> None:
    """And a pause counts as a few times the mean at most."""
    pace = DecodePace(PRIOR)
    pace.observe(0, 5.0, MIN_TOKENS - 1, 1.0)
    pace.observe(0, 5.0, 100, 0.0)
    assert pace.line(0) == (PRIOR.step_base_s, PRIOR.step_per_sequence_s)
    observed(pace, 0, draws(100))
    before_s = sum(pace.line(0))
    pace.observe(0, 20.0, 100, 1e6)
    assert sum(pace.line(0)) < 1.3 * before_s


def test_stalls_by_prefill_are_no_part_of_a_step() -> None:
    """Streams that prefill has stalled show the line of those that it has not; where it took most, nothing."""
    assert not DecodePace(PRIOR).is_known
    pace = DecodePace(PRIOR)
    for running in draws(100):
        seconds = 100 * (BASE_S + running * EACH_S)
        pace.observe(0, running, 100, 1.6 * seconds, stalled_s=0.6 * seconds)
        pace.observe(0, running, 100, 9.0 * seconds, stalled_s=6.0 * seconds)
    assert pace.is_known
    assert pace.line(0)[0] == pytest.approx(BASE_S, rel=0.2)

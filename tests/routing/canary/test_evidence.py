"""Bets on counts: what they show, how rarely they err, and that the order of comparisons does not matter."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.canary.evidence import (
    MAX_CELL,
    NO_EVIDENCE,
    STEP,
    TENANT_GROUPS,
    DifferenceEvidence,
    RatioEvidence,
    TrialEvidence,
    cell_of,
    group_of,
)

BAR = 80.0


def ratios(seed: int, factor: float, count: int, spread: float = 0.5) -> RatioEvidence:
    """Ratios of two noisy times, of which one is `factor` times as long."""
    random, found = Random(seed), RatioEvidence()
    for _ in range(count):
        ratio = factor * random.lognormvariate(0.0, spread) / random.lognormvariate(0.0, spread)
        found += RatioEvidence({cell_of(ratio): 1})
    return found


def test_a_cell_has_the_ratios_up_to_its_end() -> None:
    """Its end belongs to it; very small, very large and infinite ratios have a cell too."""
    assert [cell_of(ratio) for ratio in (1.0, STEP, STEP * 1.001, 1 / STEP)] == [0, 1, 2, -1]
    assert cell_of(0.0) == cell_of(1e-9) == -MAX_CELL
    assert cell_of(1e9) == MAX_CELL + 1


@pytest.mark.parametrize(("factor", "is_above", "is_below"), [(1.5, True, False), (0.8, False, True)])
def test_a_difference_is_found(factor: float, is_above: bool, is_below: bool) -> None:
    """Of ratios at a median of 1.5, or 0.8, against a limit of 1.1, within 500 comparisons."""
    for seed in range(5):
        found = ratios(seed, factor, 500)
        assert (found.above(1.1) >= BAR, found.below(1.1) >= BAR) == (is_above, is_below)


def test_the_interval_has_the_median() -> None:
    """Both bounds surround it and are where the tests decide; without comparisons there is none."""
    found = ratios(1, 1.2, 2_000)
    lower, upper = found.interval(BAR)
    assert lower is not None
    assert upper is not None
    assert lower < 1.2 < upper < 1.5
    assert found.above(lower) >= BAR > found.above(lower * STEP)
    assert found.below(upper) >= BAR > found.below(upper / STEP)
    assert RatioEvidence().interval(BAR) == (None, None)


def test_a_fair_game_makes_no_bettor_rich() -> None:
    """At the limit itself, looked at after each of 400 comparisons, a test errs at most as often as stated."""
    rich = 0
    for seed in range(100):
        random, longer, wealth = Random(seed), 0, 0.0
        for total in range(1, 401):
            longer += random.random() < 0.5
            wealth = max(wealth, RatioEvidence({-5: total - longer, 5: longer}).above(1.0))
        rich += wealth >= 20.0
    assert rich / 100 <= 0.05 + 0.03


def test_failures_count_by_their_share() -> None:
    """Above the limit it is worse, far below it is shown to be within, and few failures of a long run are nothing."""
    assert DifferenceEvidence(worse=20, better=1, same=180).above(0.02) >= BAR
    assert DifferenceEvidence(same=400).below(0.02) >= BAR
    assert DifferenceEvidence(worse=5, better=4, same=500).above(0.02) < BAR
    assert DifferenceEvidence(same=100).below(0.02) < BAR


def test_the_interval_of_a_difference_has_it() -> None:
    """It is as wide as few comparisons leave it."""
    found = DifferenceEvidence(worse=60, better=20, same=320)
    lower, upper = found.interval(BAR)
    assert lower is not None
    assert upper is not None
    assert lower < 0.1 < upper
    assert upper - lower < 0.25
    assert DifferenceEvidence().interval(BAR) == (None, None)


counts = st.dictionaries(st.integers(-MAX_CELL, MAX_CELL + 1), st.integers(0, 50), max_size=5).map(RatioEvidence)
differences = st.builds(DifferenceEvidence, *[st.integers(0, 50)] * 3)
plain = st.builds(TrialEvidence, counts, counts, differences, differences)
evidence = st.builds(TrialEvidence.of_group, plain, st.sampled_from((None, 1, 2)))


@given(evidence, evidence, evidence)
def test_evidence_adds_up_in_any_order(one: TrialEvidence, two: TrialEvidence, three: TrialEvidence) -> None:
    """So every gateway may add its own at any time; nothing is its neutral element."""
    assert one + two + three == three + (two + one)
    assert one + NO_EVIDENCE == one


@given(plain, plain)
def test_without_a_group_the_others_are_left(ours: TrialEvidence, theirs: TrialEvidence) -> None:
    """But for answers, which no group is told apart by."""
    left = (ours + theirs.of_group(3)).without(3)
    for limit in (-0.1, 0.1):
        assert left.errors.above(limit) == ours.errors.above(limit)
    assert left.ttft.above(1.1) == ours.ttft.above(1.1)
    assert left.tpot.total == ours.tpot.total
    assert left.quality == ours.quality + theirs.quality


def test_a_tenant_has_the_same_group_everywhere() -> None:
    """Groups are of names alone, and few."""
    groups = [group_of(f"tenant-{number}") for number in range(1_000)]
    assert set(groups) == set(range(TENANT_GROUPS))
    assert group_of("acme") == 33
    assert group_of("\ud800") < TENANT_GROUPS

"""Shares of engines while peers are missing: what all gateways take together is what streams there can bear."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.share import AHEAD_S, SAVED_S, BudgetShare, lower_part_of, share_of_engines

TPOT_S, STEP_S = 0.05, 0.02
BORNE = 1 - STEP_S / TPOT_S
ONE_S = 0.1
"""Prefill of a request."""


GOLD, SILVER, BRONZE = TIERS = 10, 0, -10


def taken_s(share: BudgetShare, seconds: float, priority: int) -> float:
    """Prefill that a gateway places which always has a request, looking every hundredth of a second."""
    taken = 0.0
    for tick in range(int(seconds * 100)):
        share.fill(0, STEP_S, tick / 100)
        while share.has_room(0, STEP_S, priority):
            share.drain(0, ONE_S)
            taken += ONE_S
    return taken


@pytest.mark.parametrize("part", [1.0, 0.5, 1 / 16])
def test_the_highest_tier_takes_its_share_and_no_more(part: float) -> None:
    """Over a minute; in advance it takes what two seconds bring, and one request."""
    taken = taken_s(BudgetShare(part, TPOT_S, TIERS, 0.0), 60.0, GOLD)
    assert part * BORNE * 59 <= taken <= part * BORNE * (60 + AHEAD_S) + ONE_S


@pytest.mark.parametrize("part", [1.0, 0.5, 1 / 16])
def test_lower_tiers_leave_a_margin(part: float) -> None:
    """They take nothing in advance but the request that uses up what is there."""
    taken = taken_s(BudgetShare(part, TPOT_S, TIERS, 0.0), 60.0, SILVER)
    lower = lower_part_of(part)
    assert lower * part * BORNE * 59 <= taken <= lower * part * BORNE * (60 + SAVED_S) + ONE_S


def test_the_lowest_tier_takes_what_the_others_leave_unused() -> None:
    """For a while, not for the moment: with many gateways the next request of a higher tier is seldom there yet."""
    share = BudgetShare(1 / 16, TPOT_S, TIERS, 0.0)
    share.fill(0, STEP_S, 0.1)
    assert share.has_room(0, STEP_S, SILVER)
    assert not share.has_room(0, STEP_S, BRONZE)
    share.fill(0, STEP_S, 2.0)
    assert share.has_room(0, STEP_S, BRONZE)


def test_gateways_that_notice_a_loss_at_once_begin_one_after_the_other() -> None:
    """Lower tiers of all would otherwise be put on an engine in the same moment."""
    first, last = (BudgetShare(0.5, TPOT_S, TIERS, 0.0, turn) for turn in (0.5, 1.0))
    for share in (first, last):
        share.fill(0, STEP_S, 0.3)
    assert first.has_room(0, STEP_S, SILVER)
    assert not last.has_room(0, STEP_S, SILVER)
    assert last.has_room(0, STEP_S, GOLD)


def test_lower_tiers_wait_until_the_highest_is_paid_for() -> None:
    """What the highest tier has taken in advance is missing to the others first."""
    share = BudgetShare(0.5, TPOT_S, TIERS, 0.0)
    share.fill(0, STEP_S, 0.0)
    assert share.has_room(0, STEP_S, SILVER)
    share.drain(0, ONE_S)
    assert not share.has_room(0, STEP_S, SILVER)
    assert share.has_room(0, STEP_S, GOLD)
    share.fill(0, STEP_S, ONE_S / (lower_part_of(0.5) * 0.5 * BORNE) + 0.001)
    assert share.has_room(0, STEP_S, SILVER)


def test_engines_whose_steps_are_too_slow_get_nothing() -> None:
    """Streams there bear nothing, however long nothing was placed."""
    share = BudgetShare(0.5, TPOT_S, TIERS, 0.0)
    share.fill(0, 2 * TPOT_S, 100.0)
    share.drain(0, ONE_S)
    share.fill(0, 2 * TPOT_S, 200.0)
    assert not share.has_room(0, 2 * TPOT_S, GOLD)


def test_another_share_continues_with_what_was_left() -> None:
    """One more gateway that is missing gives back no debt."""
    before, after = BudgetShare(0.5, TPOT_S, TIERS, 0.0), BudgetShare(0.25, TPOT_S, TIERS, 5.0)
    before.drain(0, 10.0)
    after.continue_from(before)
    after.fill(0, STEP_S, 0.0)
    assert not after.has_room(0, STEP_S, GOLD)


def test_the_less_is_seen_the_less_lower_tiers_get() -> None:
    """Two gateways see half of what goes on; with many hardly anything is seen."""
    assert [round(lower_part_of(share), 3) for share in (1.0, 0.5, 0.25, 1 / 16)] == [1.0, 0.8, 0.7, 0.7]


def test_higher_tiers_are_dealt_out_first() -> None:
    """A gateway with all of the highest tier takes most, however much of the lowest the others have."""
    assert share_of_engines(0.5, [(2.0, 2.0), (0.0, 100.0)], 4) == pytest.approx(0.9)
    assert share_of_engines(0.5, [(0.0, 0.0), (0.0, 0.0)], 4) == 0.5


DEMANDS = st.lists(st.floats(0, 50), min_size=3, max_size=3)


@given(st.lists(DEMANDS, min_size=1, max_size=16), st.integers(1, 64))
def test_shares_sum_to_one(demands: list[list[float]], engines: int) -> None:
    """Whatever each gateway has of each of three tiers."""
    sums = [sum(each) for each in zip(*demands, strict=True)]
    shares = [share_of_engines(1 / len(demands), list(zip(each, sums, strict=True)), engines) for each in demands]
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) > 0

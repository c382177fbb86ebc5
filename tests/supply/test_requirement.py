"""Engines that a mixture of tiers needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.facts import Role
from supply.load import EngineSpeed, TierObjective
from supply.requirement import TierNeed, decode_share, engines_needed, missed_by_tier, needs_by_tier
from tests.supply.builders import BATCH, GOLD, SILVER, work

SPEED = EngineSpeed()


def need(objective: TierObjective, requests: float, spread: float = 0.0) -> TierNeed:
    return TierNeed(objective, work(requests), spread)


@given(st.floats(0.1, 300), st.sampled_from(list(Role)), st.floats(0, 0.4))
def test_the_requirement_keeps_each_objective_and_little_less_does_not(
    requests: float, role: Role, spread: float
) -> None:
    """It is the least number: two hundredths fewer miss more than the probability allows."""
    needs = [need(GOLD, requests, spread), need(SILVER, requests, spread)]
    engines = engines_needed(needs, SPEED, role)
    assert all(missed <= 0.05 + 1e-9 for missed in missed_by_tier(needs, SPEED, role, engines))
    assert any(missed > 0.05 for missed in missed_by_tier(needs, SPEED, role, 0.98 * engines))


@given(st.floats(0.1, 100), st.floats(1.01, 4), st.sampled_from(list(Role)))
def test_more_work_needs_more_engines(requests: float, factor: float, role: Role) -> None:
    """By no more than the factor: large fleets use their engines better."""
    low = engines_needed([need(GOLD, requests)], SPEED, role)
    high = engines_needed([need(GOLD, requests * factor)], SPEED, role)
    assert 0.99 * low <= high <= 1.02 * factor * low


def test_a_stricter_objective_and_a_wider_spread_need_more() -> None:
    """TTFT, TPOT, probability and uncertainty each count."""
    base = engines_needed([need(GOLD, 20)], SPEED, Role.EITHER)
    for stricter in (
        need(replace(GOLD, ttft_s=0.2), 20),
        need(replace(GOLD, tpot_s=0.02), 20),
        need(replace(GOLD, probability=0.999), 20),
        need(GOLD, 20, 0.3),
    ):
        assert engines_needed([stricter], SPEED, Role.EITHER) > 1.01 * base


def test_a_lower_tier_does_not_delay_a_higher_one() -> None:
    """Under overload gold misses next to nothing while silver misses nearly all of the excess."""
    needs = [need(GOLD, 10), need(SILVER, 30)]
    gold, silver = missed_by_tier(needs, SPEED, Role.PREFILL, 8.0)
    assert gold < 1e-3
    assert silver == pytest.approx((40 * 4_000 / 12_000 - 8) / (30 * 4_000 / 12_000), abs=0.02)


def test_no_engine_is_added_for_best_effort_work() -> None:
    """It fills what is idle."""
    assert engines_needed([need(BATCH, 50)], SPEED, Role.EITHER) == 0.0
    with_batch = engines_needed([need(GOLD, 10), need(BATCH, 50)], SPEED, Role.EITHER)
    assert with_batch == engines_needed([need(GOLD, 10)], SPEED, Role.EITHER)


def test_tiers_are_a_decomposition() -> None:
    """Their parts sum up to the requirement, in the order of priority."""
    needs = [need(SILVER, 10), need(GOLD, 10)]
    parts = needs_by_tier(needs, SPEED, Role.EITHER)
    assert list(parts) == ["gold", "silver"]
    assert sum(parts.values()) == pytest.approx(engines_needed(needs, SPEED, Role.EITHER), rel=0.01)


def test_kv_room_bounds_the_batch_of_a_decode_engine() -> None:
    """With a tenth of the cache more engines decode the same tokens."""
    long = TierNeed(GOLD, work(30), context_tokens=20_000)
    small = replace(SPEED, kv_capacity_tokens=100_000.0)
    assert engines_needed([long], small, Role.DECODE) > 3 * engines_needed([long], SPEED, Role.DECODE)
    assert decode_share(1_000, small, 20_000, 0.05) > decode_share(1_000, SPEED, 20_000, 0.05)


def test_an_objective_that_no_engine_keeps_asks_for_a_finite_number() -> None:
    """A TPOT below one step, and a TTFT below the own prefill."""
    impossible = TierNeed(replace(GOLD, tpot_s=0.001, ttft_s=0.01, ttft_uncached_factor=0.0), work(5))
    assert engines_needed([impossible], SPEED, Role.EITHER) < 400


@pytest.mark.parametrize("requests", [5e-324, 1e-300, 1e-9])
@pytest.mark.parametrize("role", list(Role))
def test_next_to_no_work_needs_next_to_no_engine(requests: float, role: Role) -> None:
    """The search ends for any figure."""
    assert engines_needed([need(GOLD, requests)], SPEED, role) < 0.02


@pytest.mark.parametrize("spread", [float("nan"), float("inf")])
def test_figures_that_are_no_numbers_end_no_search(spread: float) -> None:
    """They are rejected: a search between bounds that compare with nothing would not end."""
    with pytest.raises(ValueError, match="finite"):
        engines_needed([need(GOLD, 10.0, spread)], SPEED, Role.EITHER)

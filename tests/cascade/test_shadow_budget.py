"""Shadows: a share of answers, never beyond money or places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cascade.shadow_budget import HOUR_S, MAX_CARRY_S, ShadowBudget


def test_a_share_of_draws() -> None:
    """Below the fraction only; none where it is 0."""
    assert ShadowBudget(0.02).reserve(0.019, 1.0, 0.0)
    assert not ShadowBudget(0.02).reserve(0.02, 1.0, 0.0)
    assert not ShadowBudget(0.0).reserve(0.0, 0.0, 0.0)


def test_no_more_than_the_places() -> None:
    """Who has ended makes room."""
    budget = ShadowBudget(1.0, at_once=1)
    assert budget.reserve(0.0, 1.0, 0.0)
    assert not budget.reserve(0.0, 1.0, 0.0)
    budget.release(1.0, 1.0)
    assert budget.reserve(0.0, 1.0, 0.0)


def test_money_comes_back_with_time() -> None:
    """And what was reserved and not used at once."""
    budget = ShadowBudget(1.0, per_hour=6.0)
    assert budget.reserve(0.0, 1.0, 0.0)
    assert not budget.reserve(0.0, 0.5, 0.0)
    budget.release(1.0, 0.5)
    assert budget.reserve(0.0, 0.5, 0.0)
    assert not budget.reserve(0.0, 0.5, 1.0)
    assert budget.reserve(0.0, 0.5, 1.0 + 0.5 / 6.0 * HOUR_S)


def test_clocks_that_go_back_give_nothing() -> None:
    """Nor take anything."""
    budget = ShadowBudget(1.0, per_hour=6.0)
    assert budget.reserve(0.0, 1.0, 100.0)
    assert not budget.reserve(0.0, 0.1, 50.0)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 3), st.floats(0, 2)), max_size=60))
def test_the_budget_is_never_overdrawn_by_what_was_reserved(steps: list[tuple[float, float, float]]) -> None:
    """Whatever comes when: spending stays below what has come in, where shadows cost what was reserved or less."""
    budget, now_s, spent = ShadowBudget(1.0, per_hour=60.0, at_once=1_000), 0.0, 0.0
    for passed, price, part in steps:
        now_s += passed
        if budget.reserve(0.0, price, now_s):
            cost = min(price, price * part)
            budget.release(price, cost)
            spent += cost
    assert spent <= 60.0 / HOUR_S * (MAX_CARRY_S + now_s) + 1e-6
    assert abs(budget.spent - spent) < 1e-6
    assert budget.in_flight == 0

"""Money by tenant and model: sums that add up, against always-top and always-first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.accounts import OTHER_TENANTS, CascadeCosts, CostAccounts, total

KEPT = CascadeCosts(requests=1, cost=20.0, always_top=200.0, always_first=20.0)
ESCALATED = CascadeCosts(requests=1, escalated=1, cost=169.0, wasted=14.0, always_top=155.0, always_first=15.5)


def test_saved_is_what_always_the_largest_model_would_have_cost_more() -> None:
    """Less than nothing where an answer that was given up cost more than the cascade spared."""
    assert KEPT.saved == 180.0
    assert ESCALATED.saved == -14.0
    assert (KEPT.escalation_share, ESCALATED.escalation_share, (KEPT + ESCALATED).escalation_share) == (0.0, 1.0, 0.5)


def test_nothing_requested_costs_nothing() -> None:
    """No requests, no share of them."""
    assert CascadeCosts().saved == CascadeCosts().escalation_share == 0.0


def test_shadows_are_paid_from_what_is_saved() -> None:
    """Evidence is not free."""
    accounts = CostAccounts()
    accounts.add("a", "auto", "small", KEPT)
    accounts.add("a", "auto", "small", CascadeCosts(shadows=100.0))
    assert accounts.total(tenant="a").saved == 80.0
    assert accounts.total(tenant="b") == CascadeCosts()


MONEY = st.integers(0, 1_000).map(float)
SUMS = st.builds(CascadeCosts, st.just(1), st.integers(0, 1), MONEY, MONEY, MONEY, MONEY, MONEY)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(("small", "large")), SUMS), max_size=20))
def test_rows_add_up(requests: list[tuple[str, str, CascadeCosts]]) -> None:
    """By tenant, by model, all together: the same money, also where tenants must share a row."""
    accounts = CostAccounts(max_entries=2)
    for tenant, model, sums in requests:
        accounts.add(tenant, "auto", model, sums)
    complete = total(sums for *_, sums in requests)
    assert accounts.total() == complete
    assert total(sums for _, sums in accounts.rows()) == complete
    tenants = {key[0] for key, _ in accounts.rows()}
    assert len(tenants - {OTHER_TENANTS}) <= 2
    assert sum(accounts.total(tenant=tenant).cost for tenant in tenants) == pytest.approx(complete.cost)

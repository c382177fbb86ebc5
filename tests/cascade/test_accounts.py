"""Money by tenant and rung: sums that add up, against always-top and always-first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.accounts import OTHERS, Accounts, Leg, Sums, sums_of, total
from cascade.ladder import Ladder, Price, Rung

LADDER = Ladder("auto", (Rung("small", Price(1.0, 0.5, 2.0)), Rung("large", Price(10.0, 1.0, 20.0))))


def test_an_answer_of_the_first_rung() -> None:
    """Cost is the small price; saved is what the large one would have taken for the same tokens."""
    sums = sums_of(LADDER, [Leg(0, 10, 0, 5)])
    assert (sums.cost, sums.wasted, sums.climbed) == (20.0, 0.0, 0)
    assert (sums.always_top, sums.always_first) == (200.0, 20.0)
    assert sums.saved == 180.0
    assert sums.saved_to_first == 0.0


def test_who_climbs_pays_for_both() -> None:
    """What was given up is wasted; against always-top it is a loss."""
    sums = sums_of(LADDER, [Leg(0, 10, 0, 2), Leg(1, 5, 5, 5)])
    assert (sums.cost, sums.wasted, sums.climbed) == (14.0 + 155.0, 14.0, 1)
    assert sums.saved == -14.0
    assert sums.climbing_share == 1.0


def test_nothing_asked_costs_nothing() -> None:
    """A request that was refused has no sums."""
    assert sums_of(LADDER, []) == Sums()
    assert Sums().climbing_share == 0.0


def test_shadows_are_paid_from_what_is_saved() -> None:
    """Evidence is not free."""
    accounts = Accounts()
    accounts.add("a", "auto", "small", sums_of(LADDER, [Leg(0, 10, 0, 5)]))
    accounts.add("a", "auto", "small", Sums(shadows=100.0))
    assert accounts.total(tenant="a").saved == 80.0
    assert accounts.total(tenant="b") == Sums()


COUNTS = st.integers(0, 1_000).map(float)
LEGS = st.lists(st.builds(Leg, st.integers(0, 1), COUNTS, COUNTS, COUNTS), max_size=3)


@given(st.lists(st.tuples(st.sampled_from("abcd"), LEGS), max_size=20))
def test_rows_add_up(requests: list[tuple[str, list[Leg]]]) -> None:
    """By tenant, by model, all together: the same money, also where tenants must share a row."""
    accounts = Accounts(most=2)
    for tenant, legs in requests:
        accounts.add(tenant, "auto", LADDER.rungs[legs[-1].rung].model if legs else "none", sums_of(LADDER, legs))
    whole = total(sums_of(LADDER, legs) for _, legs in requests)
    assert accounts.total() == whole
    assert total(sums for _, sums in accounts.rows()) == whole
    tenants = {key[0] for key, _ in accounts.rows()}
    assert len(tenants - {OTHERS}) <= 2
    assert sum(accounts.total(tenant=tenant).cost for tenant in tenants) == pytest.approx(whole.cost)

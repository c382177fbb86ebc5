"""Guard rails of the figure."""

from __future__ import annotations

from supply.bounds import bound_figure
from supply.desired import SupplyReason
from supply.load import PoolLoad
from supply.policy import GuardRails, SupplyPolicy
from supply.state import PoolMemory
from tests.supply.builders import MONDAY_S, decide, load_of, rails


def test_the_step_and_the_budget_bound_the_figure() -> None:
    """Two engines a minute; and no more than what is left of the day's engine-hours."""
    answers, _ = decide([load_of(60, PoolLoad(ready=2))] * 9, rails(step=2))
    engines = [answer.pools[0].engines for answer in answers]
    assert engines[0] == 4
    assert engines[3] == 4
    assert engines[4] == 6
    assert answers[3].pools[0].reason is SupplyReason.STEP
    policy = rails(1, hours=26.0)
    answers, _ = decide([load_of(60, PoolLoad(ready=20))] * 700, policy)
    assert answers[0].pools[0].engines == 26
    assert answers[-1].pools[0].engines == 1
    assert answers[-1].pools[0].reason is SupplyReason.BUDGET
    assert answers[-1].short == ("gold",)


def test_the_step_holds_after_the_clock_went_back() -> None:
    """An entry that seems newer than the last figure does not take its place."""
    policy = SupplyPolicy(pools={"default": GuardRails(0, 20, 2, 1e4)})
    memory = PoolMemory(figure=4, recent=((MONDAY_S + 60.0, 5), (MONDAY_S + 30.0, 4)))
    found = bound_figure(PoolLoad(ready=4), 12, policy, memory, MONDAY_S + 95.0)
    assert (found.engines, found.bound) == (6, "max_step_per_minute")

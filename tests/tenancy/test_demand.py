"""What tiers ask for and get, learned."""

from __future__ import annotations

import pytest

from tenancy.demand import Demand, Rate


def test_a_steady_load_is_seen_as_it_is() -> None:
    """Ten requests a second of 0.1 s each keep one engine busy."""
    demand = Demand(0.0)
    for tick in range(400):
        demand.ask(0.1, tick * 0.1)
    assert demand.engines(40.0) == pytest.approx(1.0, rel=0.05)
    assert demand.wanted(40.0) == 2


def test_who_has_gone_wants_no_engine() -> None:
    """A minute later nothing is kept for it."""
    demand = Demand(0.0)
    demand.ask(1.0, 0.0)
    assert demand.wanted(0.0) > 0
    assert demand.wanted(60.0) == 0


def test_a_rate_counts_only_the_time_in_which_somebody_waited() -> None:
    """What was served while nobody waited says nothing of how soon a waiter is served."""
    rate = Rate(1.0, 10.0, 0.0)
    rate.pass_time(100.0, is_waiting=False)
    for second in range(101, 160):
        rate.serve(0.5)
        rate.pass_time(float(second), is_waiting=True)
    assert rate.per_s == pytest.approx(0.5, rel=0.1)

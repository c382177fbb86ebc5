"""Accounts of what requests wait for prefixes that too few engines hold."""

from math import e

import pytest

from routing.demand import MAX_PREFIXES, MEMORY_S, PrefixDemand


def test_what_is_waited_adds_up_and_fades() -> None:
    """By prefix; a third is left after one memory."""
    demand = PrefixDemand()
    demand.add(1, 2.0, now_s=0.0)
    demand.add(1, 1.0, now_s=0.0)
    assert demand.waited_s(1, 0.0) == 3.0
    assert demand.waited_s(1, MEMORY_S) == pytest.approx(3.0 / e)
    assert demand.waited_s(2, 0.0) == 0.0


def test_a_copy_is_paid_for_once() -> None:
    """What is left of the account stays; an account is never overdrawn."""
    demand = PrefixDemand()
    demand.add(1, 3.0, now_s=0.0)
    demand.add(1, -2.0, now_s=0.0)
    assert demand.waited_s(1, 0.0) == 1.0
    demand.add(1, -2.0, now_s=0.0)
    assert demand.waited_s(1, 0.0) == 0.0
    demand.add(1, 0.5, now_s=0.0)
    assert demand.waited_s(1, 0.0) == 0.5


def test_memory_is_bounded() -> None:
    """Prefixes waited for longest ago are forgotten first."""
    demand = PrefixDemand()
    for prefix in range(MAX_PREFIXES + 1):
        demand.add(prefix, 1.0, now_s=0.0)
    assert demand.waited_s(0, 0.0) == 0.0
    assert demand.waited_s(1, 0.0) == demand.waited_s(MAX_PREFIXES, 0.0) == 1.0

"""Second attempts stand under one budget: what is lost without them decides who is refused first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.retries import RetryBudget, RetryKind, RetryTerms

ORDER = (RetryKind.RETRY, RetryKind.FAILOVER, RetryKind.RESUME)
"""Refused first to last."""


def test_requests_pay_for_second_attempts() -> None:
    """One for every five, once what was saved is spent."""
    budget = RetryBudget(RetryTerms(budget_ratio=0.2, budget_burst=2))
    assert [budget.take(RetryKind.RETRY) for _ in range(3)] == [True, True, False]
    for _ in range(5):
        budget.begin()
    assert [budget.take(RetryKind.RETRY) for _ in range(2)] == [True, False]
    assert (budget.taken[RetryKind.RETRY], budget.rejected[RetryKind.RETRY]) == (3, 2)


def test_no_more_is_saved_than_may_come_at_once() -> None:
    """A quiet night does not pay for a storm."""
    budget = RetryBudget(RetryTerms(budget_ratio=0.2, budget_burst=3))
    for _ in range(1000):
        budget.begin()
        budget.end()
    assert [budget.take(RetryKind.RETRY) for _ in range(4)] == [True, True, True, False]


def test_all_requests_of_an_engine_that_is_gone_may_move() -> None:
    """However many there are, and those who have seen some of their answer even where all are at it twice."""
    budget = RetryBudget(RetryTerms(budget_ratio=0.0, budget_burst=0))
    for _ in range(500):
        budget.begin()
    assert not budget.take(RetryKind.RETRY)
    assert all(budget.take(RetryKind.FAILOVER) for _ in range(500))
    assert not budget.take(RetryKind.FAILOVER)
    assert all(budget.take(RetryKind.RESUME) for _ in range(500))
    assert not budget.take(RetryKind.RESUME)


def test_processes_divide_what_is_saved() -> None:
    """All together they save what one would."""
    budget = RetryBudget(RetryTerms(budget_burst=8), among=4)
    assert [budget.take(RetryKind.RETRY) for _ in range(3)] == [True, True, False]


def test_a_tenant_whose_requests_fail_leaves_retries_to_others() -> None:
    """Half of what may come at once, beyond what it pays in; what it has used up comes back with its own requests."""
    budget = RetryBudget(RetryTerms(budget_ratio=0.2, budget_burst=10))
    for _ in range(1_000):
        budget.begin("odd")
        budget.take(RetryKind.RETRY, "odd")
        budget.take(RetryKind.RETRY, "odd")
        budget.end()
    assert [budget.take(RetryKind.RETRY, "plain") for _ in range(4)] == [True] * 4
    assert budget.taken[RetryKind.RETRY] == pytest.approx(5 + 200 + 4, abs=2)
    assert budget.take(RetryKind.FAILOVER, "odd") or budget.balance < 1
    for _ in range(50):
        budget.begin("odd")
        budget.begin("plain")
    assert not budget._of_tenants
    alone = RetryBudget(RetryTerms(budget_ratio=0.2, budget_burst=1))
    assert [alone.take(RetryKind.RETRY, "odd") for _ in range(2)] == [True, False]


@given(events=st.lists(st.sampled_from([*RetryKind, "begin", "end"])), saved=st.integers(0, 20), share=st.floats(0, 1))
def test_the_budget_holds(events: list[RetryKind | str], saved: int, share: float) -> None:
    """Never more second attempts than were saved, paid for, or are under way twice; the order of refusals is kept."""
    budget = RetryBudget(RetryTerms(budget_ratio=share, budget_burst=saved))
    begun = most_under_way = 0
    for event in events:
        if isinstance(event, RetryKind):
            may = budget.take(event)
            trial = [RetryBudget(RetryTerms(budget_ratio=share, budget_burst=saved)) for _ in ORDER]
            for other in trial:
                other.balance, other.in_flight = budget.balance + may, budget.in_flight
            answers = [other.take(what) for other, what in zip(trial, ORDER, strict=True)]
            assert answers == sorted(answers)
        elif event == "begin":
            budget.begin()
            begun += 1
        elif budget.in_flight:
            budget.end()
        most_under_way = max(most_under_way, budget.in_flight)
        assert sum(budget.taken.values()) <= saved + begun * share + 2 * most_under_way + 1e-6


@pytest.mark.parametrize(("failed", "requested", "may"), [(2, 2, True), (3, 3, False), (2, 8, True), (2, 9, False)])
def test_a_request_is_sent_to_few_pods(failed: int, requested: int, may: bool) -> None:
    """Three that failed nobody else before; with those that did, nine in all."""
    assert RetryTerms().may_retry(failed, requested) is may


def test_one_attempt_is_one() -> None:
    """Whoever wants no second attempts gets none, whatever is known of the pod."""
    assert not RetryTerms(max_attempts=1).may_retry(failed=0, attempts=1)

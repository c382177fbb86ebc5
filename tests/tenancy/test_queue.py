"""Who waits and who goes first."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.request import Api, Request
from tenancy.promise import promise_of
from tenancy.queue import MOST_CREDIT_S, TRICKLE, Queue, Waiter
from tenancy.tenants import Caller, Tenant
from tenancy.tier import Tier

GOLD = Tier("gold", 10, ttft_s=1.0, tpot_s=0.05)
BRONZE = Tier("bronze", -10, ttft_s=15.0, tpot_s=0.15)
BATCH = Tier("batch", -20, is_batch=True)
NUMBERS = count()
LEAVE_BY_S = 30.0


def waiter(
    tier: Tier = GOLD, tenant: str = "a", start_by_s: float = 1.0, own_s: float = 0.1, weight: float = 1.0
) -> Waiter:
    caller = Caller(Tenant(tenant, tier=tier, weight=weight))
    request = Request(str(number := next(NUMBERS)), Api.CHAT, "m")
    return Waiter(
        number, request, caller, promise_of(tier), 0.0, own_s, 12_000 * own_s, own_s, start_by_s, LEAVE_BY_S, start_by_s
    )


def put(queue: Queue, one: Waiter) -> Waiter:
    one.queue, one.line = queue, queue.line(one.promise.tier, 1.0, 0.0)
    one.line.service.enter(one.tenant)
    queue.put(one, 0.0)
    return one


def first(queue: Queue) -> Waiter:
    return next(queue.by_rank()[0].heads())


def test_higher_tiers_go_first() -> None:
    """Whoever came first."""
    queue = Queue()
    put(queue, waiter(BRONZE))
    gold = put(queue, waiter(GOLD))
    assert first(queue) is gold


def test_a_floor_makes_a_trickle_of_the_lowest() -> None:
    """However much gold waits, bronze gets its part of all service; with batch nothing is owed."""
    queue = Queue()
    served = {"gold": 0, "bronze": 0, "batch": 0}
    for tier in (GOLD, BRONZE, BATCH):
        for _ in range(400):
            put(queue, waiter(tier))
    for _ in range(300):
        one = first(queue)
        served[one.promise.tier.name] += 1
        queue.serve(queue.lines[one.promise.tier.name], one, 0.0)
        queue.take(one, 0.0)
    assert served["bronze"] == pytest.approx(300 * TRICKLE, abs=2)
    assert served["batch"] == 0


def test_a_floor_saves_up_no_flood() -> None:
    """What bronze is owed while it cannot be served is bounded."""
    queue = Queue()
    put(queue, waiter(BRONZE))
    line = queue.line(GOLD, 1.0, 0.0)
    for _ in range(10_000):
        queue.serve(line, waiter(GOLD), 0.0)
    assert queue.lines["bronze"].credit_s == MOST_CREDIT_S


def test_the_earliest_deadline_of_a_tenant_goes_first() -> None:
    """Within one tenant order is by urgency."""
    queue = Queue()
    put(queue, waiter(start_by_s=3.0))
    soon = put(queue, waiter(start_by_s=1.0))
    assert first(queue) is soon


def test_who_has_had_least_goes_first() -> None:
    """Between tenants of a tier order is by service, not by urgency."""
    queue = Queue()
    put(queue, waiter(tenant="greedy", start_by_s=0.1))
    modest = put(queue, waiter(tenant="modest", start_by_s=5.0))
    queue.lines["gold"].service.serve("greedy", 1_000, 1.0)
    assert first(queue) is modest


def test_a_modest_tenant_waits_for_its_own_only() -> None:
    """A greedy one's backlog counts against it as far as its part goes."""
    queue = Queue()
    for _ in range(100):
        put(queue, waiter(tenant="greedy"))
    line = queue.lines["gold"]
    assert line.wait_s(waiter(tenant="modest"), 0.0) == pytest.approx(0.1)
    assert line.wait_s(waiter(tenant="greedy"), 0.0) == pytest.approx(10.0)


def test_a_short_one_does_not_wait_for_what_is_less_urgent() -> None:
    """A long prompt has time, and order inside a tenant is by urgency."""
    queue = Queue()
    put(queue, waiter(start_by_s=30.0, own_s=10.0))
    line = queue.lines["gold"]
    assert line.wait_s(waiter(start_by_s=1.0), 0.0) == 0.0
    assert line.wait_s(waiter(start_by_s=31.0), 0.0) == pytest.approx(10.0)


def test_a_tenant_is_modest_until_it_has_had_as_much_as_another() -> None:
    """What waits of it and goes first counts as had; alone in its tier it is neither."""
    queue = Queue()
    line = queue.line(GOLD, 1.0, 0.0)
    line.service.enter("modest")
    assert not line.is_modest(waiter(tenant="modest"))
    line.service.enter("greedy")
    line.service.serve("greedy", 2_500, 1.0)
    assert line.is_modest(waiter(tenant="modest"))
    put(queue, waiter(tenant="modest"))
    assert line.is_modest(waiter(tenant="modest", start_by_s=0.5))
    put(queue, waiter(tenant="modest"))
    assert not line.is_modest(waiter(tenant="modest"))
    assert not line.is_modest(waiter(tenant="greedy"))


COMERS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 9), st.floats(0.01, 5)), max_size=20)


@given(COMERS, st.floats(0, 9), st.floats(0, 9))
def test_the_more_urgent_of_a_tenant_never_waits_longer(
    comers: list[tuple[str, float, float]], by_s: float, later_s: float
) -> None:
    """Nor is it less modest."""
    queue = Queue()
    line = queue.line(GOLD, 1.0, 0.0)
    for tenant, start_by_s, own_s in comers:
        put(queue, waiter(tenant=tenant, start_by_s=start_by_s, own_s=own_s))
    sooner, later = (waiter(start_by_s=at_s) for at_s in sorted([by_s, later_s]))
    assert line.wait_s(sooner, 0.0) <= line.wait_s(later, 0.0)
    assert line.is_modest(sooner) >= line.is_modest(later)


def test_overdue_are_those_that_cannot_start_in_time() -> None:
    """Of every tenant the most urgent, once its moment has passed."""
    queue = Queue()
    late = put(queue, waiter(start_by_s=1.0))
    put(queue, waiter(tenant="b", start_by_s=2.0))
    assert queue.overdue(1.5) == [late]


def test_a_modest_tenant_is_served_late_rather_than_refused() -> None:
    """Behind what can still be in time, and no longer than it may wait; a greedy one is not."""
    queue = Queue()
    late, greedy = put(queue, waiter(tenant="modest")), put(queue, waiter(tenant="greedy"))
    line = queue.lines["gold"]
    line.service.serve("greedy", 1e6, 1.0)
    assert [line.defer(one, 2.0) for one in queue.overdue(2.0)] == [True, False]
    fresh = put(queue, waiter(tenant="modest", start_by_s=3.0))
    assert (first(queue), queue.overdue(2.0), queue.waiting) == (fresh, [greedy], 3)
    queue.take(fresh, 2.0)
    assert first(queue) is late
    assert late in queue.overdue(LEAVE_BY_S + 1)
    assert not line.defer(late, LEAVE_BY_S + 1)


@given(
    st.lists(st.tuples(st.sampled_from([GOLD, BRONZE]), st.sampled_from("abc"), st.floats(0, 9)), max_size=40),
    st.randoms(),
)
def test_whoever_leaves_is_nowhere_left(comers: list[tuple[Tier, str, float]], random: object) -> None:
    """In whatever order they go, nothing of them stays: no work, no size, no head."""
    queue = Queue()
    waiters = [put(queue, waiter(tier, tenant, by_s)) for tier, tenant, by_s in comers]
    random.shuffle(waiters)  # type: ignore[attr-defined]
    for at, one in enumerate(waiters):
        assert queue.waiting == len(waiters) - at
        queue.take(one, 1.0)
        assert all(one is not head for line in queue.by_rank() for head in line.heads())
    assert (queue.waiting, queue.size, queue.backlog_s) == (0, 0, 0.0)
    assert queue.by_rank() == []

"""What tiers ask for and get, learned."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.request import Api, Request
from tenancy.objective import Tier, objective_of
from tenancy.queue import (
    MAX_CREDIT_S,
    MIN_FLOOR,
    FairShare,
    ModelQueue,
    ServiceRate,
    TierDemand,
    WaitingRequest,
    weighted_tokens,
)
from tenancy.tenants import Caller, Tenant


def test_a_steady_load_is_measured_correctly() -> None:
    """Ten requests a second of 0.1 s each keep one engine busy."""
    demand = TierDemand(0.0)
    for tick in range(400):
        demand.add(0.1, tick * 0.1)
    assert demand.engines(40.0) == pytest.approx(1.0, rel=0.05)
    assert demand.wanted(40.0) == 2


def test_who_has_gone_wants_no_engine() -> None:
    """A minute later nothing is kept for it."""
    demand = TierDemand(0.0)
    demand.add(1.0, 0.0)
    assert demand.wanted(0.0) > 0
    assert demand.wanted(60.0) == 0


def test_a_rate_counts_only_the_time_in_which_somebody_waited() -> None:
    """What was served while nobody waited says nothing of how soon a waiter is served."""
    rate = ServiceRate(1.0, 10.0, 0.0)
    rate.advance(100.0, is_waiting=False)
    for second in range(101, 160):
        rate.serve(0.5)
        rate.advance(float(second), is_waiting=True)
    assert rate.per_s == pytest.approx(0.5, rel=0.1)


def test_an_answer_costs_more_than_a_prompt() -> None:
    """A generated token counts double."""
    assert weighted_tokens(100, 0) == 100
    assert weighted_tokens(0, 100) == 200


def test_weights_stretch_what_was_had() -> None:
    """Who has twice the weight may have twice as much."""
    service = FairShare()
    service.enter("light")
    service.enter("heavy")
    service.serve("light", 100, 1.0)
    service.serve("heavy", 200, 2.0)
    assert service.served("light") == service.served("heavy") == 100


def test_who_comes_back_starts_with_the_least_of_those_here() -> None:
    """It is not owed what others were served meanwhile."""
    service = FairShare()
    service.enter("busy")
    service.serve("busy", 1_000, 1.0)
    service.enter("late")
    assert service.served("late") == 1_000


def test_leaving_does_not_mend_what_one_has_had() -> None:
    """A tenant that ends all its requests for a moment comes back where it was, while others are here."""
    service = FairShare()
    service.enter("modest")
    service.enter("greedy")
    service.serve("greedy", 500, 1.0)
    service.leave("greedy")
    service.enter("greedy")
    assert service.served("greedy") == 500
    assert service.served("modest") == 0


def test_what_came_to_nothing_is_refunded() -> None:
    """Served less than expected, the counter falls again."""
    service = FairShare()
    service.enter("a")
    service.serve("a", 300, 1.0)
    service.serve("a", -300, 1.0)
    assert service.served("a") == 0


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(1, 1_000)), min_size=40, max_size=200),
    st.sampled_from([1.0, 2.0, 4.0]),
)
def test_counters_of_those_who_always_wait_converge(served: list[tuple[str, float]], weight: float) -> None:
    """Served by least counter, two backlogged tenants are never further apart than one request (VTC's bound)."""
    service, weights = FairShare(), {"a": 1.0, "b": weight}
    for tenant in weights:
        service.enter(tenant)
    for _, tokens in served:
        service.serve(tenant := min(weights, key=service.served), tokens, weights[tenant])
        assert abs(service.served("a") - service.served("b")) <= 1_000


class PlainShare:
    """What `FairShare` is to do, without a thought for its cost."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self.open: Counter[str] = Counter()
        self.level = 0.0

    def served(self, tenant: str) -> float:
        """What it has had, but at least the level where it has no open requests."""
        had = self.counters.get(tenant, self.level)
        return had if self.open[tenant] else max(had, self.level)

    def enter(self, tenant: str) -> None:
        """A tenant that comes starts with the least of those that are here."""
        if not self.open[tenant]:
            self.level = min((self.counters[who] for who in +self.open), default=self.level)
            self.counters[tenant] = max(self.counters.get(tenant, 0.0), self.level)
        self.open[tenant] += 1

    def leave(self, tenant: str) -> None:
        """The last that leaves sets the level."""
        self.open[tenant] -= 1
        if not self.open[tenant]:
            here = [self.counters[who] for who in +self.open]
            self.level = min(here) if here else max(self.level, self.counters[tenant])
            self.counters = {
                who: had for who, had in self.counters.items() if here and (had > self.level or self.open[who])
            }


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([-50, -3, 0, 0, 1, 20, 400])), max_size=300))
def test_shares_of_many_tenants_are_counted_as_plainly(moves: list[tuple[str, int]]) -> None:
    """Tenants come, are served and refunded, and go, in any order."""
    service, plain = FairShare(), PlainShare()
    for tenant, tokens in moves:
        if tokens and plain.open[tenant]:
            service.serve(tenant, tokens, 2.0)
            plain.counters[tenant] += tokens / 2.0
        elif plain.open[tenant] and (plain.open[tenant] > 2 or tenant > "c"):
            service.leave(tenant)
            plain.leave(tenant)
        else:
            service.enter(tenant)
            plain.enter(tenant)
        for who in "abcdef":
            assert service.served(who) == plain.served(who)
            others = [plain.counters[other] for other in +plain.open if other != who]
            assert service.min_of_others(who) == min(others, default=None)


def test_thousands_of_tenants_that_come_and_go_cost_what_they_are() -> None:
    """What a tenant costs does not grow with the others: its counter is looked at a few times."""

    class Counted(dict[str | None, float]):
        looks = 0

        def __getitem__(self, tenant: str | None) -> float:
            Counted.looks += 1
            return super().__getitem__(tenant)

    service = FairShare()
    service._counters = Counted()
    tenants = [f"t{number}" for number in range(3_000)]
    for tenant in tenants:
        service.enter(tenant)
        service.serve(tenant, 100.0, 1.0)
        service.serve(tenant, -30.0, 1.0)
    for tenant in tenants:
        service.leave(tenant)
    assert Counted.looks < 50 * len(tenants)
    assert len(service._heap) + len(service._counters) <= 200


def test_those_who_left_behind_a_waiting_head_are_let_go() -> None:
    """One request waits on; ten thousand more urgent and less urgent ones come and go, in any order of leaving."""
    queue = ModelQueue()
    put(queue, waiter(start_by_s=50.0))
    heap = queue.tier_queues["gold"]._heaps["a"]
    stays = [put(queue, waiter(start_by_s=100.0 + number)) for number in range(10)]
    for number in range(10_000):
        one = put(queue, waiter(start_by_s=60.0 + number % 80))
        other = put(queue, waiter(start_by_s=200.0))
        queue.take(one, 0.0)
        queue.take(other, 0.0)
        assert len(heap) <= 2 * (2 + 1 + len(stays)) + 64
    for one in stays:
        queue.take(one, 0.0)
    assert len(list(queue.tier_queues["gold"].heads())) == queue.waiting == 1


def test_a_full_queue_rejects_requests_of_its_heaviest_user() -> None:
    """Lower tiers first, down to their floor; in a tier never for a tenant that would hold as much as another."""
    queue = ModelQueue()
    for number in range(40):
        put(queue, waiter(BRONZE, "a" if number % 4 else "b"))
    gold = waiter(GOLD, "c")
    gold.queue, gold.tier_queue = queue, queue.tier_queue(GOLD, 1.0, 0.0)
    found = queue.displaced_by(gold)
    assert found is not None
    assert (found.objective.tier.name, found.tenant) == ("bronze", "a")
    for _ in range(5):
        put(queue, waiter(GOLD, "c"))
    bronze = waiter(BRONZE, "a")
    bronze.tier_queue = queue.tier_queues["bronze"]
    assert queue.displaced_by(bronze) is None
    modest = waiter(BRONZE, "d")
    modest.tier_queue = bronze.tier_queue
    found = queue.displaced_by(modest)
    assert found is not None
    assert found.tenant == "a"
    heavy = waiter(BRONZE, "b", weight=4.0)
    heavy.tier_queue = bronze.tier_queue
    assert queue.displaced_by(heavy) is found


GOLD = Tier("gold", 10, ttft_s=1.0, tpot_s=0.05)
BRONZE = Tier("bronze", -10, ttft_s=15.0, tpot_s=0.15)
BATCH = Tier("batch", -20, is_best_effort=True)
NUMBERS = count()
LEAVE_BY_S = 30.0


def waiter(
    tier: Tier = GOLD, tenant: str = "a", start_by_s: float = 1.0, own_s: float = 0.1, weight: float = 1.0
) -> WaitingRequest:
    caller = Caller(Tenant(tenant, tier=tier, weight=weight))
    request = Request(str(number := next(NUMBERS)), Api.CHAT, "m")
    return WaitingRequest(
        number,
        request,
        caller,
        objective_of(tier),
        0.0,
        own_s,
        12_000 * own_s,
        own_s,
        start_by_s,
        LEAVE_BY_S,
        start_by_s,
    )


def put(queue: ModelQueue, one: WaitingRequest) -> WaitingRequest:
    one.queue, one.tier_queue = queue, queue.tier_queue(one.objective.tier, 1.0, 0.0)
    one.tier_queue.fair_share.enter(one.tenant)
    queue.put(one, 0.0)
    return one


def first(queue: ModelQueue) -> WaitingRequest:
    return next(queue.by_rank()[0].heads())


def test_higher_tiers_go_first() -> None:
    """Whoever came first."""
    queue = ModelQueue()
    put(queue, waiter(BRONZE))
    gold = put(queue, waiter(GOLD))
    assert first(queue) is gold


def test_a_floor_makes_a_trickle_of_the_lowest() -> None:
    """However much gold waits, bronze gets its part of all service; with batch nothing is owed."""
    queue = ModelQueue()
    served = {"gold": 0, "bronze": 0, "batch": 0}
    for tier in (GOLD, BRONZE, BATCH):
        for _ in range(400):
            put(queue, waiter(tier))
    for _ in range(300):
        one = first(queue)
        served[one.objective.tier.name] += 1
        queue.serve(queue.tier_queues[one.objective.tier.name], one, 0.0)
        queue.take(one, 0.0)
    assert served["bronze"] == pytest.approx(300 * MIN_FLOOR, abs=2)
    assert served["batch"] == 0


def test_a_floor_saves_up_no_flood() -> None:
    """What bronze is owed while it cannot be served is bounded."""
    queue = ModelQueue()
    put(queue, waiter(BRONZE))
    line = queue.tier_queue(GOLD, 1.0, 0.0)
    for _ in range(10_000):
        queue.serve(line, waiter(GOLD), 0.0)
    assert queue.tier_queues["bronze"].credit_s == MAX_CREDIT_S


def test_the_earliest_deadline_of_a_tenant_goes_first() -> None:
    """Within one tenant order is by urgency."""
    queue = ModelQueue()
    put(queue, waiter(start_by_s=3.0))
    soon = put(queue, waiter(start_by_s=1.0))
    assert first(queue) is soon


def test_who_has_had_least_goes_first() -> None:
    """Between tenants of a tier order is by service, not by urgency."""
    queue = ModelQueue()
    put(queue, waiter(tenant="greedy", start_by_s=0.1))
    modest = put(queue, waiter(tenant="modest", start_by_s=5.0))
    queue.tier_queues["gold"].fair_share.serve("greedy", 1_000, 1.0)
    assert first(queue) is modest


def test_a_modest_tenant_waits_for_its_own_only() -> None:
    """A greedy one's backlog counts against it as far as its part goes."""
    queue = ModelQueue()
    for _ in range(100):
        put(queue, waiter(tenant="greedy"))
    line = queue.tier_queues["gold"]
    assert line.wait_s(waiter(tenant="modest"), 0.0) == pytest.approx(0.1)
    assert line.wait_s(waiter(tenant="greedy"), 0.0) == pytest.approx(10.0)


def test_a_short_one_does_not_wait_for_what_is_less_urgent() -> None:
    """A long prompt has time, and order inside a tenant is by urgency."""
    queue = ModelQueue()
    put(queue, waiter(start_by_s=30.0, own_s=10.0))
    line = queue.tier_queues["gold"]
    assert line.wait_s(waiter(start_by_s=1.0), 0.0) == 0.0
    assert line.wait_s(waiter(start_by_s=31.0), 0.0) == pytest.approx(10.0)


def test_a_tenant_is_modest_until_it_has_had_as_much_as_another() -> None:
    """What waits of it and goes first counts as had; alone in its tier it is neither."""
    queue = ModelQueue()
    line = queue.tier_queue(GOLD, 1.0, 0.0)
    line.fair_share.enter("modest")
    assert not line.is_below_fair_share(waiter(tenant="modest"))
    line.fair_share.enter("greedy")
    line.fair_share.serve("greedy", 2_500, 1.0)
    assert line.is_below_fair_share(waiter(tenant="modest"))
    put(queue, waiter(tenant="modest"))
    assert line.is_below_fair_share(waiter(tenant="modest", start_by_s=0.5))
    put(queue, waiter(tenant="modest"))
    assert not line.is_below_fair_share(waiter(tenant="modest"))
    assert not line.is_below_fair_share(waiter(tenant="greedy"))


COMERS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 9), st.floats(0.01, 5)), max_size=20)


@given(COMERS, st.floats(0, 9), st.floats(0, 9))
def test_the_more_urgent_of_a_tenant_never_waits_longer(
    comers: list[tuple[str, float, float]], by_s: float, later_s: float
) -> None:
    """Nor is it less modest."""
    queue = ModelQueue()
    line = queue.tier_queue(GOLD, 1.0, 0.0)
    for tenant, start_by_s, own_s in comers:
        put(queue, waiter(tenant=tenant, start_by_s=start_by_s, own_s=own_s))
    sooner, later = (waiter(start_by_s=at_s) for at_s in sorted([by_s, later_s]))
    assert line.wait_s(sooner, 0.0) <= line.wait_s(later, 0.0)
    assert line.is_below_fair_share(sooner) >= line.is_below_fair_share(later)


def test_overdue_are_those_that_cannot_start_in_time() -> None:
    """Of every tenant the most urgent, once its moment has passed."""
    queue = ModelQueue()
    late = put(queue, waiter(start_by_s=1.0))
    put(queue, waiter(tenant="b", start_by_s=2.0))
    assert queue.overdue(1.5) == [late]


def test_a_modest_tenant_is_served_late_rather_than_rejected() -> None:
    """Behind what can still be in time, and no longer than it may wait; a greedy one is not."""
    queue = ModelQueue()
    late, greedy = put(queue, waiter(tenant="modest")), put(queue, waiter(tenant="greedy"))
    line = queue.tier_queues["gold"]
    line.fair_share.serve("greedy", 1e6, 1.0)
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
    queue = ModelQueue()
    waiters = [put(queue, waiter(tier, tenant, by_s)) for tier, tenant, by_s in comers]
    random.shuffle(waiters)  # type: ignore[attr-defined]
    for at, one in enumerate(waiters):
        assert queue.waiting == len(waiters) - at
        queue.take(one, 1.0)
        assert all(one is not head for line in queue.by_rank() for head in line.heads())
    assert (queue.waiting, queue.size, queue.backlog_s) == (0, 0, 0.0)
    assert queue.by_rank() == []


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.integers(1, 4)), max_size=200))
def test_the_request_that_leaves_is_of_the_heaviest_tenant(steps: list[tuple[str, bool, int]]) -> None:
    """Whatever came and went before, and whenever it was asked for."""
    queue, waiting = ModelQueue(), list[WaitingRequest]()
    for tenant, comes, turn in steps:
        if comes or not waiting:
            waiting.append(put(queue, waiter(BRONZE, tenant)))
        else:
            queue.take(waiting.pop(turn * len(waiting) // 5), 0.0)
        line = queue.tier_queues["bronze"]
        if turn > 2:
            found = line.last(0.0)
            counts = Counter(each.tenant for each in waiting)
            assert (found is None) is (not waiting)
            assert found is None or (found in waiting and counts[found.tenant] == max(counts.values()))

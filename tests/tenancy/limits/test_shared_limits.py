"""Gateways that have lost sight of each other: what all of them use together has the bound that is written down."""

from __future__ import annotations

from random import Random

import pytest

from tenancy.limits.account_usage import AccountUsage, LimitNeeds, Reservation, UsageStore, reserve
from tenancy.limits.leases import AccountLeases, LeaseGrant, LeaseRequest
from tenancy.limits.shared_limits import (
    allow_first_request,
    apply_grants,
    final_requests,
    lease_requests,
    partitioned_cap,
)
from tenancy.limits.usage import LimitKind, RequestUsage, TokenPrices
from tenancy.tenants import Account, Quota

APART_S = 1.8e9
SPAN_S = 60.0
LOST_S = 90.0
END_S = 330.0


@pytest.mark.parametrize("replicas", [2, 4, 7])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("limit", "size"), [(6_000, 40), (400, 40), (30, 1)])
def test_the_bound_holds_when_all_lose_sight(replicas: int, seed: int, limit: int, size: int) -> None:
    """Traffic far above the limit that moves from gateway to gateway, before, during and long after the loss."""
    granted = _play(replicas, Random(seed), limit, size)
    bound = limit + replicas * max(limit / (8 * replicas), size)
    for end_s in {at_s for at_s, _ in granted}:
        within = sum(amount for at_s, amount in granted if end_s - SPAN_S < at_s <= end_s)
        assert within <= (limit if end_s < APART_S + LOST_S else bound)
    later = [(at_s, amount) for at_s, amount in granted if at_s > APART_S + LOST_S + 160]
    assert sum(amount for _, amount in later) > 0.4 * limit


class Play:
    """Some gateways, a lender that is there until `LOST_S`, and what was granted when."""

    def __init__(self, replicas: int, limit: int) -> None:
        account = Account("a", Quota(tokens_per_min=limit))
        self.books = [UsageStore().of([account], APART_S)[0] for _ in range(replicas)]
        self.slices = AccountLeases()
        self.since_s = 0.0
        for book in self.books:
            book.limit_usages[LimitKind.TOKENS].cap = 0.0

    @property
    def now_s(self) -> float:
        return APART_S + self.since_s

    @property
    def is_lost(self) -> bool:
        return self.since_s >= LOST_S

    def beat(self) -> None:
        """What keepers do once a second."""
        for book in self.books:
            if not self.is_lost:
                self.relieve(book, {})
                continue
            for meter in book.limit_usages.values():
                meter.cap = partitioned_cap(meter, len(self.books), self.since_s - LOST_S)

    def relieve(self, book: AccountUsage, needs: LimitNeeds) -> None:
        if self.is_lost:
            allow_first_request(book, needs)
            return
        who, replicas = str(self.books.index(book)), len(self.books)
        asks = lease_requests(book, self.now_s, replicas=replicas, is_gathering=False, needs=needs)
        apply_grants(book, asks, self.slices.grant(who, asks, self.now_s))

    def serves(self, book: AccountUsage, size: int) -> bool:
        found = reserve([book], RequestUsage(1, size), self.now_s)
        if not isinstance(found, Reservation):
            self.relieve(book, {lack.kind: lack.amount for lack in found})
            found = reserve([book], RequestUsage(1, size), self.now_s)
        if isinstance(found, Reservation):
            found.close(self.now_s)
        return isinstance(found, Reservation)


def _play(replicas: int, random: Random, limit: int, size: int) -> list[tuple[float, int]]:
    play, granted = Play(replicas, limit), []
    busy = play.books[:1]
    for tick in range(int(END_S * 10)):
        play.since_s = tick / 10
        if tick % 200 == 0:
            busy = random.sample(play.books, random.randint(1, replicas))
        if tick % 10 == 0:
            play.beat()
        granted += [(play.now_s, size) for book in busy if play.serves(book, size)]
    return granted


def test_a_gateway_alone_goes_by_all_of_the_limit() -> None:
    """One that never had others has lost nobody."""
    [book] = UsageStore().of([Account("a", Quota(tokens_per_min=100))], APART_S)
    [meter] = book.limit_usages.values()
    assert partitioned_cap(meter, 1, float("inf")) == 100


NOW_S = 86_400.0 * 20_000 + 3_600


def a_book(cap: float, quota: Quota | None = None) -> AccountUsage:
    [book] = UsageStore().of([Account("a", quota or Quota(tokens_per_min=3_200))], NOW_S)
    for meter in book.limit_usages.values():
        meter.cap = cap
    return book


def use(book: AccountUsage, tokens: int) -> Reservation:
    """Whatever the slice is by now."""
    for meter in book.limit_usages.values():
        meter.cap = max(meter.cap, 1_000)
    found = reserve([book], RequestUsage(1, tokens, 0, 0, TokenPrices(1.0, 1.0, 1.0)), NOW_S)
    assert isinstance(found, Reservation)
    return found


def test_what_is_not_used_is_given_back() -> None:
    """From then on the gateway goes by the less, before the lender knows."""
    book = a_book(cap=1_000)
    use(book, 300)
    book.limit_usages[LimitKind.TOKENS].demand = 0.0
    [ask] = lease_requests(book, NOW_S, replicas=4, is_gathering=False, needs={})
    assert (ask.held, ask.wanted, ask.minimum) == (300, 300, 0)
    assert book.limit_usages[LimitKind.TOKENS].cap == 300


def test_what_was_used_lately_is_wanted_again() -> None:
    """Up to a step, so that few requests have to wait for an answer."""
    book = a_book(cap=1_000)
    use(book, 20)
    [ask] = lease_requests(book, NOW_S, replicas=4, is_gathering=False, needs={})
    assert ask.wanted == 20 + 2 * 20
    use(book, 35)
    [ask] = lease_requests(book, NOW_S, replicas=4, is_gathering=False, needs={})
    assert ask.wanted == 55 + 70
    use(book, 70)
    [ask] = lease_requests(book, NOW_S, replicas=4, is_gathering=False, needs={})
    assert ask.wanted == 125 + 100


def test_a_request_that_waits_says_what_it_needs() -> None:
    """Who has used nothing yet is to get as much even where that is not fair."""
    book = a_book(cap=0)
    [ask] = lease_requests(book, NOW_S, replicas=4, is_gathering=False, needs={LimitKind.TOKENS: 500.0})
    assert (ask.held, ask.wanted, ask.minimum) == (0, 500, 500)
    [ask] = lease_requests(book, NOW_S, replicas=4, is_gathering=True, needs={LimitKind.TOKENS: 1_500.0})
    assert (ask.wanted, ask.minimum) == (800, 0)


def test_a_request_that_needs_of_two_limits_gets_both() -> None:
    """What was granted of one stands while the other is asked for: chaos found requests refused of limits unused."""
    book, lender = a_book(cap=0, quota=Quota(requests_per_min=600, output_tokens_per_min=3_200)), AccountLeases()
    for need in ({LimitKind.REQUESTS: 1.0}, {LimitKind.OUTPUT: 150.0}):
        asks = lease_requests(book, NOW_S, replicas=3, is_gathering=False, needs=need)
        apply_grants(book, asks, lender.grant("we", asks, NOW_S))
    assert isinstance(reserve([book], RequestUsage(1, 0, 0, 150, TokenPrices(1.0, 1.0, 1.0)), NOW_S), Reservation)


def test_who_holds_more_than_is_fair_comes_down_to_it() -> None:
    """Also below what is used: nothing new then, until enough has left the window; the lender counts it until then."""
    book = a_book(cap=1_000)
    use(book, 900)
    asks = lease_requests(book, NOW_S, replicas=4, is_gathering=False, needs={})
    assert not apply_grants(book, asks, [LeaseGrant(1_000, 600, 0, 0, was_known=True)])
    assert book.limit_usages[LimitKind.TOKENS].cap == 600
    [ask] = lease_requests(book, NOW_S, replicas=4, is_gathering=False, needs={})
    assert ask.held == 900
    assert isinstance(reserve([book], RequestUsage(1, 1), NOW_S), tuple)


def test_an_answer_about_another_quota_is_of_no_use() -> None:
    """The policy has changed while the lender was asked: it is asked again."""
    book = a_book(cap=0, quota=Quota(requests_per_min=100, tokens_per_min=3_200))
    asks = lease_requests(book, NOW_S, replicas=4, is_gathering=False, needs={})
    book.change_quota(Quota(tokens_per_min=6_400, parallel_requests=5), NOW_S)
    book.limit_usages[LimitKind.PARALLEL].cap = 0.0
    assert not apply_grants(
        book, asks, [LeaseGrant(50, 50, 0, 0, was_known=True), LeaseGrant(800, 800, 0, 0, was_known=True)]
    )
    assert book.limit_usages[LimitKind.PARALLEL].cap == 0
    assert book.limit_usages[LimitKind.TOKENS].lease is None


def test_a_smaller_limit_leaves_what_is_used() -> None:
    """What was lent beyond that was lent of another limit: the rest of the new one may be used up elsewhere."""
    books = UsageStore()
    [book] = books.of([Account("a", Quota(tokens_per_min=3_200))], NOW_S)
    meter = book.limit_usages[LimitKind.TOKENS]
    meter.lease, meter.cap = LeaseGrant(1_000, 1_000, 2_200, 0, was_known=True), 1_000
    use(book, 300)
    books.apply_quotas(lambda _: Quota(tokens_per_min=2_000), NOW_S)
    assert (meter.limit, meter.cap) == (2_000, 300)
    assert isinstance(reserve([book], RequestUsage(1, 1), NOW_S), tuple)


def test_what_is_owed_is_told_and_gives_no_right() -> None:
    """The lender counts it for as long as it takes to pay; the gateway grants nothing while it stands."""
    book, lender = a_book(cap=3_200), AccountLeases()
    found = use(book, 100)
    found.settle(RequestUsage(1, 9_600), NOW_S)
    found.close(NOW_S)
    [ask] = lease_requests(book, NOW_S, replicas=2, is_gathering=False, needs={})
    assert (ask.held, ask.keeps_s) == (9_600, 15 + 3 * 60)
    apply_grants(book, [ask], lender.grant("we", [ask], NOW_S))
    assert lender.grant("they", [LeaseRequest("tokens", 3_200, 0, 500, 0, 75)], NOW_S)[0].slice == 0
    for minutes, used in ((1, 6_400), (2, 3_200), (3, 0)):
        book.advance(NOW_S + minutes * 60.5)
        assert book.limit_usages[LimitKind.TOKENS].counter.used == used
        assert isinstance(reserve([book], RequestUsage(1, 1), NOW_S + minutes * 60.5), tuple) == bool(used)


def test_a_lender_that_forgot_is_found_out() -> None:
    """It had granted something and now knows nothing of it."""
    book = a_book(cap=0)
    asks = lease_requests(book, NOW_S, replicas=4, is_gathering=False, needs={})
    assert not apply_grants(book, asks, [LeaseGrant(100, 100, 0, 0, was_known=False)])
    assert apply_grants(book, asks, [LeaseGrant(100, 100, 0, 0, was_known=False)])


def test_a_budget_has_a_name_for_each_period_and_is_kept_until_its_end() -> None:
    """What was spent yesterday is no ask of today's."""
    book = a_book(1_000, Quota(budget=1_000.0, parallel_requests=1_000))
    today = {ask.name: ask for ask in lease_requests(book, NOW_S, replicas=1, is_gathering=False, needs={})}
    tomorrow = {ask.name: ask for ask in lease_requests(book, NOW_S + 86_400, replicas=1, is_gathering=False, needs={})}
    assert set(today) == {"budget/86400/20000", "parallel_requests"}
    assert set(tomorrow) == {"budget/86400/20001", "parallel_requests"}
    assert today["budget/86400/20000"].keeps_s == 23 * 3_600 + 60
    assert today["parallel_requests"].keeps_s == 15


def test_a_farewell_leaves_what_was_used() -> None:
    """Of a window until it has left it, of a budget for good; what runs at a time is free."""
    book = a_book(1_000, Quota(tokens_per_min=1_000, budget=1_000.0, parallel_requests=1_000))
    use(book, 30)
    stays, ends = final_requests(book, NOW_S)
    assert [(ask.name, ask.held, ask.wanted) for ask in stays] == [("tokens", 30, 30)]
    assert {(ask.name, ask.held, ask.lasts) for ask in ends} == {
        ("parallel_requests", 1, False),
        ("budget/86400/20000", 30, True),
    }

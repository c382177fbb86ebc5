"""Slices of a limit: whoever asks when, and whatever is lost on the way, all together are never more than the limit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tenancy.limits.account_usage import AccountUsage, Reservation, UsageStore, reserve
from tenancy.limits.leases import AccountLeases, LeaseRequest, fair_share
from tenancy.limits.shared_limits import apply_grants, final_requests, lease_requests
from tenancy.limits.usage import LimitKind, RequestUsage, TokenPrices
from tenancy.tenants import Account, Quota

NOW_S = 1.8e9
SPAN_S = 60.0


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(0, 200))
def test_fair_is_what_no_one_can_have_more_of(wants: list[int], limit: int) -> None:
    """All get what they want, or all of the limit is given and who wants more has no less than anybody."""
    given_out = [fair_share(limit, want, [*wants[:at], *wants[at + 1 :]]) for at, want in enumerate(wants)]
    assert sum(given_out) <= limit * (1 + 1e-9) + 1e-9
    if sum(wants) <= limit:
        assert given_out == wants
    else:
        assert abs(sum(given_out) - limit) < 1e-6
        for want, got in zip(wants, given_out, strict=True):
            assert got >= want or got >= max(given_out) - 1e-6


class Gateways(RuleBasedStateMachine):
    """Three gateways of one account, each telling the lender of it every four seconds, as the keeper does.

    A reload reaches each gateway at a time of its own. A grant is right where what it makes the last minute's sum is
    within the largest limit that any gateway goes by at that moment.
    """

    account = Account("a", Quota(requests_per_min=10, tokens_per_min=300, parallel_requests=4, budget=2_000.0))

    def __init__(self) -> None:
        super().__init__()
        self.now_s = NOW_S
        self.slices = AccountLeases()
        self.owners = [UsageStore(opened=self.opened) for _ in range(3)]
        self.books = [owner.of([self.account], self.now_s)[0] for owner in self.owners]
        self.open: list[tuple[int, Reservation]] = []
        self.all: list[Reservation] = []
        self.granted: list[tuple[float, int]] = []
        self.dead: set[int] = set()

    @staticmethod
    def opened(book: AccountUsage) -> None:
        """What is shared is asked for, also where a limit has just come."""
        for meter in book.limit_usages.values():
            if meter.lease is None:
                meter.cap = 0.0

    @rule(
        whose=st.one_of(st.just([0, 1, 2]), st.lists(st.integers(0, 2), min_size=1, max_size=3)),
        requests=st.sampled_from([3, 10, 14]),
        tokens=st.sampled_from([60, 300, 500]),
        parallel=st.sampled_from([None, 1, 4]),
    )
    def a_policy_is_reloaded(self, whose: list[int], requests: int, tokens: int, parallel: int | None) -> None:
        quota = Quota(requests, tokens, parallel_requests=parallel, budget=2_000.0)
        for who in {*whose} - self.dead:
            self.owners[who].apply_quotas(lambda _: quota, self.now_s)

    def check(self) -> None:
        """Something has just been granted: no limit in force may be exceeded by it."""
        living = [self.books[who].quota for who in {0, 1, 2} - self.dead]
        within = [tokens for at_s, tokens in self.granted if self.now_s - SPAN_S < at_s]
        assert len(within) <= max(quota.requests_per_min or 0 for quota in living)
        assert sum(within) <= max(quota.tokens_per_min or 0 for quota in living)
        assert len(self.open) <= max(quota.parallel_requests or 1_000 for quota in living)

    def tell(self, who: int, needs: dict[LimitKind, float], *, is_lost: bool = False) -> None:
        asks = lease_requests(self.books[who], self.now_s, replicas=3, is_gathering=False, needs=needs)
        grants = self.slices.grant(str(who), asks, self.now_s)
        if not is_lost:
            assert not apply_grants(self.books[who], asks, grants)

    @rule(pause_s=st.sampled_from([0.1, 1.0, 4.0, 30.0, 61.0]))
    def time_passes(self, pause_s: float) -> None:
        while pause_s > 0:
            self.now_s += min(4.0, pause_s)
            pause_s -= 4.0
            for who in {0, 1, 2} - self.dead:
                self.tell(who, {})

    @rule(who=st.integers(0, 2), tokens=st.integers(1, 80))
    def a_request_comes(self, who: int, tokens: int) -> None:
        if who in self.dead:
            return
        use = RequestUsage(1, tokens, 0, tokens, TokenPrices(1.0, 1.0, 1.0))
        found = reserve([self.books[who]], use, self.now_s)
        if not isinstance(found, Reservation):
            self.tell(who, {lack.kind: lack.amount for lack in found})
            found = reserve([self.books[who]], use, self.now_s)
        if isinstance(found, Reservation):
            self.open.append((who, found))
            self.all.append(found)
            self.granted.append((self.now_s, 2 * tokens))
            self.check()

    @rule(who=st.integers(0, 2))
    def an_answer_of_the_lender_is_lost(self, who: int) -> None:
        if who not in self.dead:
            self.tell(who, {LimitKind.TOKENS: 50.0, LimitKind.REQUESTS: 1.0}, is_lost=True)

    @rule(at=st.integers(0, 9))
    def a_request_ends(self, at: int) -> None:
        if at < len(self.open):
            _, reservation = self.open.pop(at)
            reservation.close(self.now_s)

    @rule(who=st.integers(0, 2), says_so=st.booleans())
    def a_gateway_ends(self, who: int, says_so: bool) -> None:
        """By a farewell, or without a word; its requests end with it."""
        if who in self.dead:
            return
        self.dead.add(who)
        for at, reservation in self.open:
            if at == who:
                reservation.close(self.now_s)
        self.open = [each for each in self.open if each[0] != who]
        if says_so:
            stays, ends = final_requests(self.books[who], self.now_s)
            self.slices.grant(str(who), stays, self.now_s)
            self.slices.release(str(who), ends, self.now_s)

    @invariant()
    def what_runs_is_held(self) -> None:
        """Also where the limit came, or was put back, while it ran."""
        for who in {0, 1, 2} - self.dead:
            meter = self.books[who].limit_usages.get(LimitKind.PARALLEL)
            assert meter is None or meter.counter.used == sum(at == who for at, _ in self.open)

    @invariant()
    def no_budget_is_spent_twice(self) -> None:
        assert sum(each.held.cost for each in self.all) <= 2_000


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def _ask(held: float, wanted: float, limit: float = 100.0, minimum: float = 0.0) -> list[LeaseRequest]:
    return [LeaseRequest("tokens", limit, held, wanted, minimum, 75.0)]


def test_who_holds_all_gives_way_to_who_wants_some() -> None:
    """It is told what is fair at its next ask, and the other one gets it once that is free."""
    slices = AccountLeases()
    assert slices.grant("a", _ask(0, 100), NOW_S)[0].slice == 100
    assert slices.grant("b", _ask(0, 30), NOW_S)[0].slice == 0
    reported = slices.grant("a", _ask(100, 100), NOW_S + 1)[0]
    assert (reported.slice, reported.fair) == (100, 70)
    assert slices.grant("a", _ask(70, 100), NOW_S + 2)[0].slice == 70
    assert slices.grant("b", _ask(0, 30), NOW_S + 2)[0].slice == 30


def test_a_limit_too_small_for_fairness_goes_to_who_comes_first() -> None:
    """Two requests a minute for five gateways: the first two get one each, not all of them four tenths of one."""
    slices = AccountLeases()
    reported = [slices.grant(name, _ask(0, 1, limit=2, minimum=1), NOW_S)[0].slice for name in "abcde"]
    assert reported == [1, 1, 0, 0, 0]


def test_what_has_gone_stays_used_for_budgets_alone() -> None:
    """A gateway that leaves has spent what it has spent; who knows of it restores it in a lender that forgot."""
    slices = AccountLeases()
    budget = LeaseRequest("budget/86400/1", 100.0, held=40.0, wanted=40.0, minimum=0.0, keeps_s=500.0, lasts=True)
    slices.grant("a", [budget], NOW_S)
    slices.release("a", [budget], NOW_S)
    slices.release("a", [budget], NOW_S)
    wants_all = LeaseRequest("budget/86400/1", 100.0, held=0.0, wanted=100.0, minimum=0.0, keeps_s=500.0, lasts=True)
    reported = slices.grant("b", [wants_all], NOW_S)[0]
    assert (reported.slice, reported.gone, reported.was_known) == (60, 40, False)
    emptied = AccountLeases()
    known = LeaseRequest("budget/86400/1", 100.0, 0.0, 100.0, 0.0, 500.0, gone=reported.gone, lasts=True)
    assert emptied.grant("b", [known], NOW_S)[0].slice == 60
    assert slices.grant("c", [wants_all], NOW_S + 501)[0].slice == 100


def test_what_is_used_while_an_answer_is_under_way_is_covered() -> None:
    """A gateway goes on using its slice while it asks, so the lender takes nothing of it before it knows."""
    slices, account = AccountLeases(), Account("a", Quota(tokens_per_min=100))
    [book], [other] = UsageStore().of([account], NOW_S), UsageStore().of([account], NOW_S)
    for each in (book, other):
        each.limit_usages[LimitKind.TOKENS].cap = 0.0
    _tell(slices, "a", book, {LimitKind.TOKENS: 100.0})
    assert isinstance(reserve([book], RequestUsage(1, 60), NOW_S), Reservation)
    asks = lease_requests(book, NOW_S, replicas=2, is_gathering=False, needs={})
    slices.grant("b", _ask(0, 90), NOW_S)
    granted = slices.grant("a", asks, NOW_S)
    assert isinstance(reserve([book], RequestUsage(1, 5), NOW_S), Reservation)
    apply_grants(book, asks, granted)
    _tell(slices, "b", other, {LimitKind.TOKENS: 100.0})
    assert isinstance(reserve([other], RequestUsage(1, 36), NOW_S), tuple)


def test_what_the_dead_have_used_counts_for_its_minute() -> None:
    """A gateway that is heard of no more is forgotten only when all it ever used has left the window."""
    slices, account = AccountLeases(), Account("a", Quota(tokens_per_min=100))
    [book], [other] = UsageStore().of([account], NOW_S), UsageStore().of([account], NOW_S)
    _tell(slices, "a", book, {LimitKind.TOKENS: 100.0})
    other.limit_usages[LimitKind.TOKENS].cap = 0.0
    asks = lease_requests(other, NOW_S + 59, replicas=2, is_gathering=False, needs={LimitKind.TOKENS: 10.0})
    assert slices.grant("b", asks, NOW_S + 59)[0].slice == 0
    assert slices.grant("b", asks, NOW_S + 76)[0].slice == 10


def _tell(slices: AccountLeases, who: str, book: AccountUsage, needs: dict[LimitKind, float]) -> None:
    asks = lease_requests(book, NOW_S, replicas=2, is_gathering=False, needs=needs)
    apply_grants(book, asks, slices.grant(who, asks, NOW_S))

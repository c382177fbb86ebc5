"""Accounts: which limits bind when, what a new quota changes, and who is forgotten."""

from __future__ import annotations

from math import inf

import pytest

from tenancy.limits.account_usage import Reservation, UsageStore, reserve
from tenancy.limits.usage import LimitKind, RequestUsage, TokenPrices
from tenancy.tenants import Account, Quota

NOW_S = 1.8e9


def test_each_limit_counts_what_it_is_for() -> None:
    """Requests, tokens in and out and together, those that were cold, those at a time, and money."""
    quota = Quota(10, 1000, 900, 500, 800, 5, 1.0)
    [book] = UsageStore().of([Account("a", quota)], NOW_S)
    use = RequestUsage(1, 100, 40, 50, TokenPrices(0.001, 0.0001, 0.002))
    assert isinstance(reserve([book], use, NOW_S), Reservation)
    used = {kind: meter.counter.used for kind, meter in book.limit_usages.items()}
    assert used.pop(LimitKind.BUDGET) == pytest.approx(0.06 + 0.004 + 0.1)
    assert used == {"requests": 1, "tokens": 150, "input_tokens": 100, "output_tokens": 50, "uncached_tokens": 60} | {
        "parallel_requests": 1
    }


@pytest.mark.parametrize(
    ("quota", "kind"),
    [
        (Quota(requests_per_min=2), LimitKind.REQUESTS),
        (Quota(tokens_per_min=300), LimitKind.TOKENS),
        (Quota(input_tokens_per_min=200), LimitKind.INPUT),
        (Quota(output_tokens_per_min=100), LimitKind.OUTPUT),
        (Quota(uncached_tokens_per_min=200), LimitKind.UNCACHED),
        (Quota(parallel_requests=2), LimitKind.PARALLEL),
        (Quota(budget=0.3), LimitKind.BUDGET),
    ],
)
def test_the_third_request_finds_no_room(quota: Quota, kind: LimitKind) -> None:
    """Each limit has room for two; the lack says which it was and how long it will last."""
    [book] = UsageStore().of([Account("a", quota)], NOW_S)
    use = RequestUsage(1, 100, 0, 50, TokenPrices(0.001, 0.001, 0.001))
    assert isinstance(reserve([book], use, NOW_S), Reservation)
    assert isinstance(reserve([book], use, NOW_S), Reservation)
    lacks = reserve([book], use, NOW_S)
    assert isinstance(lacks, tuple)
    assert [(lack.path, lack.kind) for lack in lacks] == [("a", kind)]
    assert 0 < lacks[0].wait_s <= 86_400


def test_what_is_larger_than_the_limit_will_never_pass() -> None:
    """To wait for it is hopeless, and that is said."""
    [book] = UsageStore().of([Account("a", Quota(tokens_per_min=100))], NOW_S)
    lacks = reserve([book], RequestUsage(1, 101), NOW_S)
    assert isinstance(lacks, tuple)
    assert lacks[0].wait_s == inf


def test_all_accounts_must_have_room_or_none_is_charged() -> None:
    """A user without room keeps a request from being charged to its tenant."""
    tenant, user = UsageStore().of([Account("a", Quota(requests_per_min=10)), Account("a/user/b", Quota(1))], NOW_S)
    assert isinstance(reserve([tenant, user], RequestUsage(1, 10), NOW_S), Reservation)
    lacks = reserve([tenant, user], RequestUsage(1, 10), NOW_S)
    assert isinstance(lacks, tuple)
    assert [lack.path for lack in lacks] == ["a/user/b"]
    assert tenant.limit_usages[LimitKind.REQUESTS].counter.used == 1
    assert tenant.open == 1


def test_some_limits_bind_only_when_others_wait() -> None:
    """Then what was used beyond them meanwhile counts; what is open at a time always does."""
    quota = Quota(requests_per_min=1, parallel_requests=3, binds_only_under_load=True)
    [book] = UsageStore().of([Account("a", quota)], NOW_S)
    for _ in range(3):
        assert isinstance(reserve([book], RequestUsage(), NOW_S, under_load=False), Reservation)
    assert isinstance(reserve([book], RequestUsage(), NOW_S, under_load=False), tuple)
    lacks = reserve([book], RequestUsage(), NOW_S, under_load=True)
    assert isinstance(lacks, tuple)
    assert {lack.kind for lack in lacks} == {LimitKind.REQUESTS, LimitKind.PARALLEL}


def test_a_new_quota_keeps_what_was_used() -> None:
    """A reload gives nobody a second minute's worth."""
    books = UsageStore()
    [book] = books.of([Account("a", Quota(requests_per_min=5, tokens_per_min=100))], NOW_S)
    assert isinstance(reserve([book], RequestUsage(1, 10), NOW_S), Reservation)
    [same] = books.of([Account("a", Quota(requests_per_min=1, parallel_requests=4))], NOW_S)
    assert same is book
    assert set(book.limit_usages) == {LimitKind.REQUESTS, LimitKind.PARALLEL}
    assert isinstance(reserve([book], RequestUsage(1, 10), NOW_S), tuple)


def test_idle_accounts_are_forgotten() -> None:
    """Users who have used nothing for a minute make room for others; who has something open does not."""
    dropped: list[str] = []
    books = UsageStore(dropped=lambda book: dropped.append(book.path))
    quota = Quota(requests_per_min=5)
    held = reserve(books.of([Account("busy", quota)], NOW_S), RequestUsage(), NOW_S)
    assert isinstance(held, Reservation)
    for number in range(50):
        found = reserve(books.of([Account(f"user{number}", quota)], NOW_S), RequestUsage(), NOW_S)
        assert isinstance(found, Reservation)
        found.close(NOW_S)
    assert len(books) == 51
    for number in range(60):
        books.of([Account(f"later{number}", quota)], NOW_S + 61 + number)
    assert "busy" not in dropped
    assert set(dropped) >= {f"user{number}" for number in range(50)}


def test_no_account_makes_room_for_another_of_the_same_request() -> None:
    """A tenant that nobody has asked for yet is there still when its user's account is opened."""
    books = UsageStore()
    accounts = [Account("a", Quota(5)), Account("a/group/g", Quota(5)), Account("a/user/b", Quota(5))]
    for _ in range(3):
        assert isinstance(reserve(books.of(accounts, NOW_S), RequestUsage(), NOW_S), Reservation)
    for account in accounts:
        book = books.find(account.path)
        assert book is not None
        assert book.open == 3


def test_there_are_never_more_accounts_than_may_be() -> None:
    """The one that was asked for longest ago is forgotten first, even if it has used something."""
    books = UsageStore(max_accounts=10)
    for number in range(40):
        found = reserve(books.of([Account(f"user{number}", Quota(1))], NOW_S), RequestUsage(), NOW_S)
        assert isinstance(found, Reservation)
        found.close(NOW_S)
    assert len(books) <= 10
    assert books.find("user39") is not None


def test_users_without_number_make_no_one_forget_what_a_tenant_has_spent() -> None:
    """A tenant that was quiet for a while still has used up its budget, however many users another one names."""
    books, quiet = UsageStore(max_accounts=10), Account("quiet", Quota(budget=1.0))
    spent = reserve(books.of([quiet], NOW_S), RequestUsage(1, rates=TokenPrices(1.0, 1.0, 1.0)), NOW_S)
    assert isinstance(spent, Reservation)
    spent.settle(RequestUsage(1, 1, 0, 0, TokenPrices(1.0, 1.0, 1.0)), NOW_S)
    spent.close(NOW_S)
    for number in range(100):
        accounts = [Account("odd", Quota(1000)), Account(f"odd/user/{number}", Quota(1))]
        found = reserve(books.of(accounts, NOW_S), RequestUsage(), NOW_S)
        assert isinstance(found, Reservation)
        found.close(NOW_S)
    assert len(books) <= 10
    book = books.find("quiet")
    assert book is not None
    assert book.limit_usages[LimitKind.BUDGET].counter.used == 1.0


def put(books: UsageStore, quota: Quota, now_s: float = NOW_S) -> None:
    books.apply_quotas(lambda path: quota if path == "a" else None, now_s)


def test_a_limit_that_comes_is_charged_with_what_requests_hold() -> None:
    """A second request finds that the first one runs, though it began before there was this limit."""
    books = UsageStore()
    first = reserve(books.of([Account("a", Quota(requests_per_min=9))], NOW_S), RequestUsage(1, 10, 0, 30), NOW_S)
    assert isinstance(first, Reservation)
    put(books, Quota(requests_per_min=9, parallel_requests=1, tokens_per_min=100))
    [book] = books.of([Account("a", Quota())], NOW_S)
    assert book.limit_usages[LimitKind.TOKENS].counter.used == 40
    lacks = reserve([book], RequestUsage(1, 10), NOW_S)
    assert isinstance(lacks, tuple)
    assert [lack.kind for lack in lacks] == [LimitKind.PARALLEL]
    first.settle(RequestUsage(1, 10, 0, 7), NOW_S)
    first.close(NOW_S)
    assert book.limit_usages[LimitKind.TOKENS].counter.used == 17
    assert isinstance(reserve([book], RequestUsage(1, 10), NOW_S), Reservation)


def test_a_limit_that_is_put_back_knows_what_is_held_and_was_used() -> None:
    """Taken away and put back by two reloads, it is as if it had been there all the time."""
    books, quota = UsageStore(), Quota(requests_per_min=2, parallel_requests=1)
    accounts = [Account("a", quota)]
    first = reserve(books.of(accounts, NOW_S), RequestUsage(), NOW_S)
    assert isinstance(first, Reservation)
    put(books, Quota(output_tokens_per_min=5))
    second = reserve(books.of(accounts, NOW_S), RequestUsage(), NOW_S)
    assert isinstance(second, Reservation)
    put(books, quota)
    [book] = books.of(accounts, NOW_S)
    assert book.limit_usages[LimitKind.PARALLEL].counter.used == 2
    assert book.limit_usages[LimitKind.REQUESTS].counter.used == 2
    first.close(NOW_S)
    assert isinstance(reserve([book], RequestUsage(), NOW_S), tuple)
    second.close(NOW_S)
    assert book.limit_usages[LimitKind.PARALLEL].counter.used == 0


def test_no_one_puts_an_old_limit_back() -> None:
    """Once quotas are in force, what a caller brings of its own counts no more, in accounts old and new."""
    books = UsageStore()
    old = Account("a", Quota(requests_per_min=100_000))
    books.of([old], NOW_S)
    put(books, Quota(requests_per_min=50))
    [book] = books.of([old], NOW_S)
    assert book.limit_usages[LimitKind.REQUESTS].limit == 50
    fresh = UsageStore()
    put(fresh, Quota(requests_per_min=50))
    assert fresh.of([old], NOW_S)[0].limit_usages[LimitKind.REQUESTS].limit == 50
    assert fresh.of([Account("gone", Quota(7))], NOW_S)[0].limit_usages[LimitKind.REQUESTS].limit == 7


def test_what_was_used_beyond_a_limit_is_owed_across_windows() -> None:
    """An answer of ten times the limit is paid for ten minutes; the wait that is told is the wait that it takes."""
    [book] = UsageStore().of([Account("a", Quota(output_tokens_per_min=100))], NOW_S)
    found = reserve([book], RequestUsage(1, 0, 0, 50), NOW_S)
    assert isinstance(found, Reservation)
    found.settle(RequestUsage(1, 0, 0, 1_000), NOW_S)
    found.close(NOW_S)
    lacks = reserve([book], RequestUsage(1, 0, 0, 50), NOW_S + 61)
    assert isinstance(lacks, tuple)
    wait_s = lacks[0].wait_s
    assert 8 * 60 < wait_s < 10 * 61
    assert isinstance(reserve([book], RequestUsage(1, 0, 0, 50), NOW_S + 61 + wait_s - 30), tuple)
    assert isinstance(reserve([book], RequestUsage(1, 0, 0, 50), NOW_S + 61 + wait_s + 1), Reservation)


def test_what_was_used_by_leave_is_not_owed() -> None:
    """A limit that was lower later, or did not bind as nobody waited, makes no debt of what was used before."""
    books = UsageStore()
    [book] = books.of([Account("a", Quota(output_tokens_per_min=5_000))], NOW_S)
    found = reserve([book], RequestUsage(1, 0, 0, 4_000), NOW_S)
    assert isinstance(found, Reservation)
    found.close(NOW_S)
    put(books, Quota(output_tokens_per_min=100))
    assert isinstance(reserve([book], RequestUsage(1, 0, 0, 50), NOW_S + 61), Reservation)
    [idle] = books.of([Account("b", Quota(output_tokens_per_min=100, binds_only_under_load=True))], NOW_S)
    found = reserve([idle], RequestUsage(1, 0, 0, 50), NOW_S, under_load=False)
    assert isinstance(found, Reservation)
    found.settle(RequestUsage(1, 0, 0, 900), NOW_S, under_load=False)
    assert isinstance(reserve([idle], RequestUsage(1, 0, 0, 50), NOW_S, under_load=True), tuple)
    assert isinstance(reserve([idle], RequestUsage(1, 0, 0, 50), NOW_S + 61, under_load=True), Reservation)

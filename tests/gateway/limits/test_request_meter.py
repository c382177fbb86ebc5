"""A tab tops itself up as a stream passes, says when there is no more, and settles by events as well as by usage."""

from __future__ import annotations

from gateway.limits.accounts import CHECK_EVENTS, TOP_UP_AHEAD_TOKENS, QuotaEnforcer, RequestMeter
from routing.decision.router import Router
from routing.rejection import Reason
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tenancy.limits.usage import LimitKind
from tenancy.tenants import Quota
from tests.gateway.limits.making import caller_of, quotas_of


def made(expected: float = 40.0) -> QuotaEnforcer:
    return quotas_of(Router(routings()["round-robin"]), expected=expected)


async def opened(quotas: QuotaEnforcer, quota: Quota, **fields: object) -> RequestMeter:
    request = Request(**{"id": "r", "api": Api.CHAT, "model": "tiny", "stream": True} | fields)  # type: ignore[arg-type]
    return await quotas.reserve(request, caller_of(quota))


def used(quotas: QuotaEnforcer, kind: LimitKind = LimitKind.OUTPUT) -> float:
    book = quotas.accounts.find("search")
    assert book is not None
    return book.limit_usages[kind].counter.used


async def test_a_stream_takes_more_before_it_has_used_what_it_has() -> None:
    """In steps, ahead of need; never more than the client allows itself."""
    quotas = made()
    tab = await opened(quotas, Quota(output_tokens_per_min=1000), max_tokens=120)
    for passed in range(1, 121):
        assert tab.count_events(1)
        assert used(quotas) >= min(120, passed + TOP_UP_AHEAD_TOKENS - 1) or used(quotas) == 40
    assert used(quotas) == 120


async def test_a_stream_ends_where_nothing_more_is_to_be_had() -> None:
    """At the last token that there is room for, not before and not after."""
    quotas = made()
    tab = await opened(quotas, Quota(output_tokens_per_min=100))
    ends = [tab.count_events(1) for _ in range(100)]
    assert (all(ends[:99]), ends[99], tab.cut_reason) == (True, 0, Reason.RATE_LIMITED_TOKENS)
    assert used(quotas) == 100


async def test_streams_share_what_is_left() -> None:
    """Two that outgrow what was expected of them get to the limit together."""
    quotas = made()
    tabs = [await opened(quotas, Quota(output_tokens_per_min=150)) for _ in range(2)]
    made_tokens = 0
    while any(tabs):
        for tab in list(tabs):
            made_tokens += 1
            if not tab.count_events(1):
                tabs.remove(tab)
    assert made_tokens <= 150 + 2


async def test_events_may_hold_several_tokens() -> None:
    """Learned from streams whose engine has told; then ahead of what was seen."""
    quotas = made()
    for _ in range(300):
        tab = await opened(quotas, Quota(output_tokens_per_min=10**9))
        tab.count_events(30)
        tab.settle(Usage(5, 90), "tiny")
        tab.close(was_carried=True, was_served=True)
    tab = await opened(quotas, Quota(output_tokens_per_min=10**9))
    tab.count_events(30)
    assert 85 < tab.tokens <= 90


async def test_streams_of_callers_with_accounts_are_watched() -> None:
    """Those without a limit on output only now and then: they may have one before they end. Whole answers never are."""
    quotas = made()
    tab = await opened(quotas, Quota(requests_per_min=5, parallel_requests=5))
    assert tab.is_watched
    assert tab.count_events(0) == CHECK_EVENTS
    assert not (await opened(quotas, Quota(tokens_per_min=500), stream=False)).is_watched
    assert (await opened(quotas, Quota(budget=1.0))).is_watched


async def test_what_was_reserved_is_put_right_however_it_ends() -> None:
    """By usage where the engine told it, by events where it did not, by nothing where nothing was done."""
    for reported, carried, served, tokens in (
        (Usage(7, 21), True, True, 21),
        (None, True, True, 9),
        (None, True, False, 0),
        (None, False, False, 0),
    ):
        quotas = made()
        tab = await opened(quotas, Quota(output_tokens_per_min=500))
        tab.count_events(9)
        tab.settle(reported, "tiny")
        for _ in range(2):
            tab.close(was_carried=carried, was_served=served)
        assert used(quotas) == tokens

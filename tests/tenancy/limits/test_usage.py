"""What a use takes of each limit."""

from __future__ import annotations

from tenancy.limits.usage import (
    AMOUNT,
    NO_USAGE,
    OUTPUT_KINDS,
    TOKEN_KINDS,
    LimitKind,
    RequestUsage,
    TokenPrices,
    limits_of,
)
from tenancy.tenants import UNLIMITED, Quota


def test_every_limit_has_an_amount() -> None:
    """Of a request with everything in it, and of none."""
    use = RequestUsage(1, 100, 30, 50, TokenPrices(2.0, 1.0, 4.0))
    assert {kind: AMOUNT[kind](use) for kind in LimitKind} == {
        LimitKind.REQUESTS: 1,
        LimitKind.TOKENS: 150,
        LimitKind.INPUT: 100,
        LimitKind.OUTPUT: 50,
        LimitKind.UNCACHED: 70,
        LimitKind.PARALLEL: 1,
        LimitKind.BUDGET: 140 + 30 + 200,
    }
    assert {AMOUNT[kind](NO_USAGE) for kind in LimitKind} == {0}


def test_a_quota_sets_the_limits_that_it_names() -> None:
    """And no others."""
    assert limits_of(UNLIMITED) == {}
    assert limits_of(Quota(tokens_per_min=5, parallel_requests=2)) == {LimitKind.TOKENS: 5.0, LimitKind.PARALLEL: 2.0}


def test_kinds_know_what_they_count() -> None:
    """Tokens are told in headers, output is watched while it streams."""
    assert set(OUTPUT_KINDS) == {LimitKind.TOKENS, LimitKind.OUTPUT, LimitKind.BUDGET}
    assert {LimitKind.TOKENS, LimitKind.INPUT, LimitKind.OUTPUT, LimitKind.UNCACHED} == TOKEN_KINDS

"""What a use takes of each limit."""

from __future__ import annotations

from tenancy.limits.use import AMOUNT, NOTHING, TOKEN_KINDS, Kind, Rates, Use, limits_of
from tenancy.quota import UNLIMITED, Quota


def test_every_limit_has_an_amount() -> None:
    """Of a request with everything in it, and of none."""
    use = Use(1, 100, 30, 50, Rates(2.0, 1.0, 4.0))
    assert {kind: AMOUNT[kind](use) for kind in Kind} == {
        Kind.REQUESTS: 1,
        Kind.TOKENS: 150,
        Kind.INPUT: 100,
        Kind.OUTPUT: 50,
        Kind.UNCACHED: 70,
        Kind.PARALLEL: 1,
        Kind.BUDGET: 140 + 30 + 200,
    }
    assert {AMOUNT[kind](NOTHING) for kind in Kind} == {0}


def test_a_quota_sets_the_limits_that_it_names() -> None:
    """And no others."""
    assert limits_of(UNLIMITED) == {}
    assert limits_of(Quota(tokens_per_min=5, parallel_requests=2)) == {Kind.TOKENS: 5.0, Kind.PARALLEL: 2.0}


def test_kinds_know_what_they_count() -> None:
    """Tokens are told in headers, output is watched while it streams."""
    assert {kind for kind in Kind if kind.counts_output} == {Kind.TOKENS, Kind.OUTPUT, Kind.BUDGET}
    assert {Kind.TOKENS, Kind.INPUT, Kind.OUTPUT, Kind.UNCACHED} == TOKEN_KINDS

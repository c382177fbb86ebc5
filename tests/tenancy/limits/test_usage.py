"""What a use takes of each limit."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.limits.usage import AMOUNT, NOTHING, TOKEN_KINDS, Kind, Rates, Use, fitted, limits_of, most_output
from tenancy.tenants import UNLIMITED, Quota


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


RATES = Rates(1.0, 0.5, 2.0)
TOKENS = st.integers(0, 5_000)


@given(TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, st.dictionaries(st.sampled_from(list(Kind)), st.integers(1, 4_000)))
def test_an_expectation_is_cut_to_each_limit(
    prompt: int, cached: int, output: int, surely: int, floor: int, limits: dict[Kind, int]
) -> None:
    """No amount is above its limit where the certain part is not; nothing falls below it, and nothing grows."""
    least = Use(1, min(surely, prompt), 0, min(floor, output), RATES)
    expected = Use(1, prompt, min(cached, prompt), output, RATES)
    cut = fitted(expected, least, [(kind, float(limit)) for kind, limit in limits.items()])
    assert least.input_tokens <= cut.input_tokens <= prompt
    assert least.output_tokens <= cut.output_tokens <= output
    assert cut.cached_tokens <= cut.input_tokens
    for kind, limit in limits.items():
        if AMOUNT[kind](least) <= limit and kind is not Kind.REQUESTS and kind is not Kind.PARALLEL:
            others = {other: bound for other, bound in limits.items() if AMOUNT[other](least) > bound}
            assert others or AMOUNT[kind](cut) <= limit + 1e-6


def test_what_fits_stays_as_it_is() -> None:
    """A limit that has room for all of it changes nothing."""
    expected = Use(1, 100, 50, 200, RATES)
    assert fitted(expected, Use(1, 10, 0, 1, RATES), [(Kind.TOKENS, 300.0), (Kind.BUDGET, 475.0)]) == expected


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ([], inf),
        ([(Kind.REQUESTS, 1.0)], inf),
        ([(Kind.OUTPUT, 70.0)], 70),
        ([(Kind.OUTPUT, 70.0), (Kind.TOKENS, 150.0)], 50),
        ([(Kind.TOKENS, 20.0)], 0),
        ([(Kind.BUDGET, 175.0)], 50),
    ],
)
def test_the_tightest_limit_says_how_long_an_answer_may_be(limits: list[tuple[Kind, float]], most: float) -> None:
    """Beside the request's own input, in tokens, whatever unit the limit is in."""
    assert most_output(Use(1, 100, 50, 0, RATES), limits) == most

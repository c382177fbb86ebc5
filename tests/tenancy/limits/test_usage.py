"""What a use takes of each limit."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.limits.usage import (
    AMOUNT,
    NO_USAGE,
    TOKEN_KINDS,
    LimitKind,
    RequestUsage,
    TokenPrices,
    fit_to_limits,
    limits_of,
    max_output,
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
    assert {kind for kind in LimitKind if kind.counts_output} == {LimitKind.TOKENS, LimitKind.OUTPUT, LimitKind.BUDGET}
    assert {LimitKind.TOKENS, LimitKind.INPUT, LimitKind.OUTPUT, LimitKind.UNCACHED} == TOKEN_KINDS


RATES = TokenPrices(1.0, 0.5, 2.0)
TOKENS = st.integers(0, 5_000)


@given(TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, st.dictionaries(st.sampled_from(list(LimitKind)), st.integers(1, 4_000)))
def test_an_expectation_is_cut_to_each_limit(
    prompt: int, cached: int, output: int, surely: int, floor: int, limits: dict[LimitKind, int]
) -> None:
    """No amount is above its limit where the certain part is not; nothing falls below it, and nothing grows."""
    least = RequestUsage(1, min(surely, prompt), 0, min(floor, output), RATES)
    expected = RequestUsage(1, prompt, min(cached, prompt), output, RATES)
    cut = fit_to_limits(expected, least, [(kind, float(limit)) for kind, limit in limits.items()])
    assert least.input_tokens <= cut.input_tokens <= prompt
    assert least.output_tokens <= cut.output_tokens <= output
    assert cut.cached_tokens <= cut.input_tokens
    for kind, limit in limits.items():
        if AMOUNT[kind](least) <= limit and kind is not LimitKind.REQUESTS and kind is not LimitKind.PARALLEL:
            others = {other: bound for other, bound in limits.items() if AMOUNT[other](least) > bound}
            assert others or AMOUNT[kind](cut) <= limit + 1e-6


def test_what_fits_stays_as_it_is() -> None:
    """A limit that has room for all of it changes nothing."""
    expected = RequestUsage(1, 100, 50, 200, RATES)
    assert (
        fit_to_limits(
            expected, RequestUsage(1, 10, 0, 1, RATES), [(LimitKind.TOKENS, 300.0), (LimitKind.BUDGET, 475.0)]
        )
        == expected
    )


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ([], inf),
        ([(LimitKind.REQUESTS, 1.0)], inf),
        ([(LimitKind.OUTPUT, 70.0)], 70),
        ([(LimitKind.OUTPUT, 70.0), (LimitKind.TOKENS, 150.0)], 50),
        ([(LimitKind.TOKENS, 20.0)], 0),
        ([(LimitKind.BUDGET, 175.0)], 50),
    ],
)
def test_the_tightest_limit_says_how_long_an_answer_may_be(limits: list[tuple[LimitKind, float]], most: float) -> None:
    """Beside the request's own input, in tokens, whatever unit the limit is in."""
    assert max_output(RequestUsage(1, 100, 50, 0, RATES), limits) == most

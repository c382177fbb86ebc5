"""What requests are taken to need before they are placed, and what is learned when they have ended."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.models import ModelEntry
from gateway.limits.estimate import UsageEstimator, fit_to_limits, max_output
from routing.blocks import cut_prompt
from routing.decision.router import Router
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tenancy.limits.account_usage import UsageStore
from tenancy.limits.usage import AMOUNT, LimitKind, RequestUsage, TokenPrices
from tenancy.tenants import Quota
from tests.gateway.http.rig import put_pod
from tests.gateway.limits.making import NOW_S, Told, caller_of

PROMPT = cut_prompt(b"once upon a time " * 400, 7)
CALLER = caller_of(Quota(tokens_per_min=10_000, uncached_tokens_per_min=5_000, budget=5.0))
BOOKS = UsageStore().of(CALLER.accounts, NOW_S)


def expecting(**prices: ModelEntry) -> tuple[UsageEstimator, Router, Told]:
    router, reported = Router(routings()["warm"]), Told(120.0)
    put_pod(router, "http://a")
    return UsageEstimator(router, reported, prices), router, reported


def a_request(**fields: object) -> Request:
    return Request(**{"id": "r", "api": Api.CHAT, "model": "tiny", "prompt": PROMPT} | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"stream": True}, 120),
        ({"stream": True, "max_tokens": 30}, 30),
        ({"stream": True, "max_tokens": 4000, "sequences": 2}, 240),
        ({"max_tokens": 400}, 400),
        ({"max_tokens": 400, "sequences": 3}, 1200),
        ({"max_tokens": 32_000}, 5_000),
        ({}, 120),
        ({"api": Api.EMBEDDINGS}, 0),
    ],
)
def test_answers_are_expected_as_they_can_be_counted(fields: dict[str, object], tokens: int) -> None:
    """A stream can be topped up; of an answer in one piece all that it may have is reserved, or half of the limit."""
    expect, _, _ = expecting()
    assert expect(a_request(**fields), CALLER, BOOKS).output_tokens == tokens


def test_prompts_are_taken_longer_while_the_counter_errs() -> None:
    """The margin follows the errors that were seen."""
    expect, router, reported = expecting()
    counted = router.counters["tiny"].tokens(PROMPT.size)
    assert expect(a_request(), CALLER, BOOKS).input_tokens == pytest.approx(1.3 * counted, abs=2)
    for _ in range(400):
        expect.learn(a_request(), "search", Usage(int(counted), 77))
    assert counted <= expect(a_request(), CALLER, BOOKS).input_tokens < 1.02 * counted
    assert reported.seen[-1] == ("search", "tiny", 77)


def test_what_an_engine_holds_already_is_taken_to_be_cached() -> None:
    """So that a tenant with long warm prompts is not limited as if they were cold."""
    expect, router, _ = expecting()
    assert expect(a_request(), CALLER, BOOKS).cached_tokens == 0
    placement = router.place(a_request(), avoid=frozenset(), now_s=0.0, draw=0.0)
    placement.first_token(1.0)
    assert expect(a_request(), CALLER, BOOKS).cached_tokens > 1_000


def test_prices_are_those_of_the_model() -> None:
    """Cached input costs what it says, or what all input costs; what has no price costs nothing."""
    expect, _, _ = expecting(
        plain=ModelEntry("plain", input_cost_per_token=2.0, output_cost_per_token=3.0),
        split=ModelEntry("split", input_cost_per_token=2.0, cache_read_input_token_cost=0.5),
    )
    assert expect.rates("plain") == TokenPrices(2.0, 2.0, 3.0)
    assert expect.rates("split") == TokenPrices(2.0, 0.5, 0.0)
    assert expect.rates("other") == TokenPrices()


RATES = TokenPrices(1.0, 0.5, 2.0)
TOKENS = st.integers(0, 5_000)


@given(TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, st.dictionaries(st.sampled_from(list(LimitKind)), st.integers(1, 4_000)))
def test_an_expectation_is_cut_to_each_limit(
    prompt: int, cached: int, output: int, surely: int, floor: int, limits: dict[LimitKind, int]
) -> None:
    """No amount is above its limit where the certain part is not; nothing falls below it, and nothing grows."""
    minimum = RequestUsage(1, min(surely, prompt), 0, min(floor, output), RATES)
    expected = RequestUsage(1, prompt, min(cached, prompt), output, RATES)
    cut = fit_to_limits(expected, minimum, [(kind, float(limit)) for kind, limit in limits.items()])
    assert minimum.input_tokens <= cut.input_tokens <= prompt
    assert minimum.output_tokens <= cut.output_tokens <= output
    assert cut.cached_tokens <= cut.input_tokens
    for kind, limit in limits.items():
        if AMOUNT[kind](minimum) <= limit and kind is not LimitKind.REQUESTS and kind is not LimitKind.PARALLEL:
            others = {other: bound for other, bound in limits.items() if AMOUNT[other](minimum) > bound}
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

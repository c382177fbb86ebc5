"""What requests are taken to need before they are placed, and what is learned when they have ended."""

from __future__ import annotations

import pytest

from gateway.config.models import ModelEntry
from gateway.limits.estimate import UsageEstimator
from routing.blocks import cut_prompt
from routing.decision.router import Router
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tenancy.limits.account_usage import UsageStore
from tenancy.limits.usage import TokenPrices
from tenancy.tenants import Quota
from tests.gateway.http.rig import put_pod
from tests.gateway.limits.making import NOW_S, Told, caller_of

PROMPT = cut_prompt(b"once upon a time " * 400, 7)
CALLER = caller_of(Quota(tokens_per_min=10_000, uncached_tokens_per_min=5_000, budget=5.0))
BOOKS = UsageStore().of(CALLER.accounts, NOW_S)


def expecting(**prices: ModelEntry) -> tuple[UsageEstimator, Router, Told]:
    router, told = Router(routings()["warm"]), Told(120.0)
    put_pod(router, "http://a")
    return UsageEstimator(router, told, prices), router, told


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
    expect, router, told = expecting()
    counted = router.counter("tiny").tokens(PROMPT.size)
    assert expect(a_request(), CALLER, BOOKS).input_tokens == pytest.approx(1.3 * counted, abs=2)
    for _ in range(400):
        expect.learn(a_request(), "search", Usage(int(counted), 77))
    assert counted <= expect(a_request(), CALLER, BOOKS).input_tokens < 1.02 * counted
    assert told.seen[-1] == ("search", "tiny", 77)


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

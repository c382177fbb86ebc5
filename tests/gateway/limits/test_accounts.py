"""Quotas of a policy at work: pushed to accounts and running streams, and no tenant refused for what another does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.limits.accounts import CHECK_EVENTS, TOP_UP_STEPS, QuotaEnforcer, RequestMeter
from gateway.limits.estimate import UsageEstimator
from gateway.limits.rate_limit_response import QuotaExceeded
from routing.blocks import cut_prompt
from routing.decision.router import Router
from routing.pods import EngineShape, ModelCard, Pod, PodState
from routing.rejection import Reason
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tenancy.forecast import OutputLengthForecast
from tenancy.limits.usage import LimitKind
from tenancy.tenants import Caller, Quota, Tenant
from tests.gateway.limits.making import Hand, quotas_of

CONTEXT = 8_192


def a_router() -> Router:
    router = Router(routings()["round-robin"])
    cards = (ModelCard("tiny", max_model_len=CONTEXT),)
    router.put_pod(Pod("http://a", PodState.READY, frozenset({"tiny"}), cards=cards))
    router.reshape_pod("http://a", [EngineShape(None, kv_tokens=100_000)])
    return router


def a_request(**fields: object) -> Request:
    return Request(**{"id": "r", "api": Api.CHAT, "model": "tiny"} | fields)  # type: ignore[arg-type]


class Stage:
    """Quotas, and tenants that a reload may change."""

    def __init__(self, expected: float | None = 40.0, **quotas: Quota) -> None:
        self.clock = Hand()
        if expected is None:
            expecting = UsageEstimator(a_router(), OutputLengthForecast(shares=False), {})
            self.quotas = QuotaEnforcer(expecting, clock=self.clock, draw=lambda: 0.5)
        else:
            self.quotas = quotas_of(a_router(), self.clock, expected=expected)
        self.put(**quotas)

    def put(self, **quotas: Quota) -> None:
        self.tenants: Mapping[str, Tenant] = {name: Tenant(name, quota=quota) for name, quota in quotas.items()}
        self.quotas.apply_policy(self.tenants)

    def caller(self, name: str, **words: str) -> Caller:
        return self.tenants[name].caller(**words)

    async def open(self, name: str, **fields: object) -> RequestMeter:
        return await self.quotas.reserve(a_request(**fields), self.caller(name))

    def used(self, path: str, kind: LimitKind = LimitKind.OUTPUT) -> float:
        book = self.quotas.accounts.find(path)
        assert book is not None
        return book.limit_usages[kind].counter.used


def events_until_cut(tab: RequestMeter, most: int) -> int:
    for passed in range(1, most + 1):
        if tab.count_events(1) == 0:
            return passed
    return most


# -- reloads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [40.0, 5_000.0])
async def test_a_running_stream_is_bound_within_one_look(expected: float) -> None:
    """However much it had reserved under the limit that was: nobody of its account need ask for that."""
    stage = Stage(expected, search=Quota(output_tokens_per_min=100_000))
    tab = await stage.open("search", stream=True)
    assert events_until_cut(tab, 300) == 300
    stage.put(search=Quota(output_tokens_per_min=200))
    assert events_until_cut(tab, 1_000) <= CHECK_EVENTS
    assert stage.used("search") <= 300 + CHECK_EVENTS


async def test_a_running_stream_takes_up_a_limit_that_is_higher() -> None:
    """It is not cut where the old limit was."""
    stage = Stage(search=Quota(output_tokens_per_min=100))
    tab = await stage.open("search", stream=True)
    assert events_until_cut(tab, 80) == 80
    stage.put(search=Quota(output_tokens_per_min=10_000))
    assert events_until_cut(tab, 2_000) == 2_000


async def test_a_running_stream_is_charged_to_a_new_kind_of_limit() -> None:
    """It was counted while its caller had another limit only, and is cut where the new one ends."""
    stage = Stage(search=Quota(requests_per_min=100))
    tab = await stage.open("search", stream=True)
    assert events_until_cut(tab, 500) == 500
    stage.put(search=Quota(requests_per_min=100, output_tokens_per_min=600, parallel_requests=1))
    assert stage.used("search", LimitKind.PARALLEL) == 1
    with pytest.raises(QuotaExceeded) as over:
        await stage.open("search", stream=True)
    assert over.value.reason is Reason.TOO_MANY_PARALLEL_REQUESTS
    assert 100 - TOP_UP_STEPS[0] <= events_until_cut(tab, 1_000) <= 100 + CHECK_EVENTS
    tab.close(was_carried=True, was_served=True)
    assert stage.used("search", LimitKind.PARALLEL) == 0


async def test_a_limit_that_is_put_back_remembers_who_runs() -> None:
    """One at a time stays one at a time, over two reloads and whoever asks meanwhile."""
    one = Quota(parallel_requests=1, requests_per_min=100)
    stage = Stage(search=one)
    tab = await stage.open("search", stream=True)
    stage.put(search=Quota(requests_per_min=100))
    stage.put(search=one)
    with pytest.raises(QuotaExceeded):
        await stage.open("search", stream=True)
    tab.close(was_carried=True, was_served=True)
    await stage.open("search", stream=True)


async def test_a_request_that_came_before_a_reload_does_not_bring_its_limit_back() -> None:
    """Not in the account that there is, not in one that it opens, and it is held to limits that it did not know."""
    stage = Stage(search=Quota(requests_per_min=100_000))
    old = stage.caller("search", user="ann")
    stage.put(search=Quota(requests_per_min=2))
    for _ in range(2):
        await stage.quotas.reserve(a_request(), old)
    with pytest.raises(QuotaExceeded):
        await stage.quotas.reserve(a_request(), old)
    stage.tenants = {"search": Tenant("search", quota=Quota(100), per_user=Quota(parallel_requests=1))}
    stage.quotas.apply_policy(stage.tenants)
    await stage.quotas.reserve(a_request(), old)
    with pytest.raises(QuotaExceeded) as over:
        await stage.quotas.reserve(a_request(), old)
    assert over.value.lack.path == "search/user/ann"


async def test_a_key_is_held_to_limits_of_its_own() -> None:
    """Beside its tenant's; another key is not, and a reload changes them for callers of before too."""
    stage = Stage(search=Quota(requests_per_min=4))

    def limit(**keys: Quota) -> None:
        stage.tenants = {"search": Tenant("search", quota=Quota(requests_per_min=4), keys=keys)}
        stage.quotas.apply_policy(stage.tenants)

    limit(ci=Quota(requests_per_min=1))
    ci, other = stage.caller("search", key_id="ci"), stage.caller("search", key_id="other")
    await stage.quotas.reserve(a_request(), ci)
    with pytest.raises(QuotaExceeded) as over:
        await stage.quotas.reserve(a_request(), ci)
    assert over.value.lack.path == "search/key/ci"
    await stage.quotas.reserve(a_request(), other)
    limit(ci=Quota(requests_per_min=2), other=Quota(requests_per_min=2))
    for caller in (ci, other):
        await stage.quotas.reserve(a_request(), caller)
    for caller in (ci, other):
        with pytest.raises(QuotaExceeded):
            await stage.quotas.reserve(a_request(), caller)
    limit()
    with pytest.raises(QuotaExceeded) as over:
        await stage.quotas.reserve(a_request(), ci)
    assert over.value.lack.path == "search"


# -- what others do ------------------------------------------------------------------------------------------------


async def test_no_tenant_is_rejected_for_the_answers_of_another() -> None:
    """Ten answers of 20,000 tokens of one leave the streams of another as they were."""
    stage = Stage(None, a=Quota(output_tokens_per_min=10**7), b=Quota(output_tokens_per_min=5_000))
    for _ in range(10):
        tab = await stage.open("a", stream=True)
        tab.settle(Usage(40, 20_000), "tiny")
        tab.close(was_carried=True, was_served=True)
    tabs = [await stage.open("b", stream=True) for _ in range(5)]
    assert all(tab.count_events(100) for tab in tabs)


async def test_no_tenant_is_rejected_for_the_prompts_of_another() -> None:
    """Prompts whose tokens their text does not show (templates, pictures) teach the count of their own tenant alone."""
    stage = Stage(None, a=Quota(input_tokens_per_min=10**8), b=Quota(input_tokens_per_min=5_000))
    for number in range(50):
        tab = await stage.open("a", stream=True, prompt=cut_prompt(b"hi there " * 40, number))
        tab.settle(Usage(90_000, 5), "tiny")
        tab.close(was_carried=True, was_served=True)
    for number in range(3):
        await stage.open("b", stream=True, prompt=cut_prompt(b"once upon a time " * 250, 900 + number))
    assert stage.used("b", LimitKind.INPUT) < 5_000


async def test_no_stream_is_cut_for_the_events_of_another_tenant() -> None:
    """What one tenant's events hold is its own affair, once anything is known of the other's."""
    stage = Stage(a=Quota(output_tokens_per_min=10**8), b=Quota(output_tokens_per_min=1_000))
    for tenant, tokens, count in (("b", 60, 3), ("a", 6_000, 200)):
        for _ in range(count):
            tab = await stage.open(tenant, stream=True)
            tab.count_events(60)
            tab.settle(Usage(5, tokens), "tiny")
            tab.close(was_carried=True, was_served=True)
    assert events_until_cut(await stage.open("b", stream=True), 2_000) > 700


async def test_an_expectation_above_the_limit_reserves_the_limit() -> None:
    """The stream begins, is topped up, and is cut there: it is refused only while others use the limit."""
    stage = Stage(20_000.0, search=Quota(output_tokens_per_min=5_000))
    tab = await stage.open("search", stream=True)
    assert stage.used("search") == 5_000
    with pytest.raises(QuotaExceeded) as over:
        await stage.open("search", stream=True)
    assert not over.value.is_permanent
    assert events_until_cut(tab, 9_000) == 5_000


async def test_what_a_request_needs_for_certain_may_be_too_much() -> None:
    """A prompt, a number of answers, their least length: said as what can never be served."""
    stage = Stage(search=Quota(tokens_per_min=100))
    for fields in ({"prompt": cut_prompt(b"x" * 4_000, 1)}, {"sequences": 101}, {"min_tokens": 101}):
        with pytest.raises(QuotaExceeded) as over:
            await stage.open("search", stream=True, **fields)
        assert over.value.is_permanent, fields
    await stage.open("search", stream=True, prompt=cut_prompt(b"x" * 1_200, 1))


# -- whole answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, 1_000),
        ({"max_tokens": 400}, None),
        ({"max_tokens": 4_000}, 1_000),
        ({"max_tokens": 4_000, "sequences": 3}, 333),
        ({"stream": True}, None),
        ({"stream": True, "holds_back": True}, 1_000),
        ({"api": Api.EMBEDDINGS}, None),
    ],
)
async def test_a_unary_answer_may_have_what_limits_could_still_grant(fields: dict[str, object], most: int) -> None:
    """It can be neither counted nor cut while it is made; nor can a stream whose tokens are held back."""
    stage = Stage(search=Quota(output_tokens_per_min=1_000))
    assert (await stage.open("search", **fields)).max_tokens == most


async def test_a_second_answer_may_have_what_the_first_has_left() -> None:
    """Of all limits of all its accounts the tightest counts, with its own prompt."""
    stage = Stage(search=Quota(output_tokens_per_min=1_000))
    await stage.open("search", max_tokens=300)
    assert (await stage.open("search")).max_tokens == 700


async def test_answers_that_no_engine_could_give_are_not_bounded() -> None:
    """A limit above the context bounds nothing, and an engine refuses to be asked for more than it has."""
    stage = Stage(search=Quota(output_tokens_per_min=1_000_000))
    assert (await stage.open("search")).max_tokens is None
    assert (await stage.open("search", max_tokens=6_000)).max_tokens is None


async def test_limits_that_do_not_bind_now_bound_nothing() -> None:
    """Nobody waits for an engine."""
    stage = Stage(search=Quota(output_tokens_per_min=1_000, binds_only_under_load=True))
    assert (await stage.open("search")).max_tokens is None


async def test_what_unary_answers_took_beyond_the_limit_is_owed() -> None:
    """Two at once that both took all that there was: the next minute pays for it before anybody is served again."""
    stage = Stage(search=Quota(output_tokens_per_min=1_000))
    for tab in [await stage.open("search") for _ in range(2)]:
        tab.settle(Usage(5, 1_000), "tiny")
        tab.close(was_carried=True, was_served=True)
    stage.clock.now_s += 61
    with pytest.raises(QuotaExceeded):
        await stage.open("search")
    stage.clock.now_s += 61
    await stage.open("search")

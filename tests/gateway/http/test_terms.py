"""What a tenant makes of a request on its way: names, bounds, priority, a cache and responses of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.request_context import RequestContext
from gateway.server.dispatcher import Identify
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.reading.requests import cache_salt
from routing.rejection import Reason, RequestRejected
from tenancy.objective import LatencyObjective, OverloadAction, Tier
from tenancy.tenants import Caller, Tenant
from tests.gateway.http.rig import CHAT_PATH, MODEL, Rig, a_chat, a_rig
from tests.gateway.http.wire import answer_bytes, chat_answer

GOOD = [answer_bytes(chat_answer())]
BUSY = [answer_bytes({"error": {"message": "later"}}, status=503)]
GOLD = Tenant("gold", tier=Tier("gold", priority=10))


def always(tenant: Tenant) -> Identify:
    return lambda *_: Caller(tenant)


def by_key(key: str | None, _: object) -> Caller:
    """Whose name the key is."""
    return Caller(Tenant(key))


def change(rig: Rig, url: str, **words: Any) -> None:
    pod = rig.router.fleet.pod(url)
    assert pod is not None
    rig.router.put_pod(replace(pod, **words))


async def test_a_pod_is_sent_the_tiers_priority_where_it_honours_it() -> None:
    """Higher is better here and lower is earlier there; another pod, tried next, is told what it understands."""
    async with a_rig(pods=2, identify=always(GOLD)) as rig:
        first, second = rig.pods
        first.plays(BUSY)
        second.plays(GOOD)
        change(rig, first.url, takes_priority=True)
        await rig.ask(CHAT_PATH, a_chat(priority=-1000))
        assert [question.json().get("priority") for question in first.questions] == [-10]
        assert [question.json().get("priority") for question in second.questions] == [None]


@pytest.mark.parametrize("tier", [Tier("usual"), Tier("gold", priority=10)])
async def test_no_pod_is_sent_what_it_may_reject(tier: Tier) -> None:
    """Nothing where nothing is to be said, or nobody would listen; the client's own word never."""
    async with a_rig(identify=always(Tenant("t", tier=tier))) as rig:
        rig.pod.plays(GOOD)
        change(rig, rig.pod.url, takes_priority=tier.priority == 0)
        await rig.ask(CHAT_PATH, a_chat(priority=-1000))
        assert "priority" not in rig.pod.questions[0].json()


async def test_anthropics_messages_have_their_priority_in_a_header() -> None:
    """Engines have no field for it there; and the client's own header goes nowhere."""
    async with a_rig(identify=always(GOLD)) as rig:
        rig.pod.plays(GOOD)
        change(rig, rig.pod.url, takes_priority=True)
        await rig.ask("/v1/messages", a_chat(max_tokens=5), x_vllm_priority="-1000")
        assert "priority" not in rig.pod.questions[0].json()
        assert rig.pod.questions[0].headers["x-vllm-priority"] == "-10"
        await rig.ask(CHAT_PATH, a_chat(), x_vllm_priority="-1000")
        assert "x-vllm-priority" not in rig.pod.questions[1].headers


async def test_a_body_says_what_its_tenant_may() -> None:
    """The model behind an alias, no more tokens than the cap, its own salt; and the model list knows the alias."""
    tenant = Tenant("t", frozenset({MODEL}), output_cap=7, aliases={"gpt": MODEL}, trust_domain="t's")
    async with a_rig(identify=always(tenant)) as rig:
        rig.pod.plays(GOOD)
        assert (await rig.ask(CHAT_PATH, a_chat(model="gpt", max_tokens=99, cache_salt="x"))).status == 200
        sent = rig.pod.questions[0].json()
        assert (sent["model"], sent["max_tokens"], sent["cache_salt"]) == (MODEL, 7, cache_salt("t's"))
        client = await rig.client()
        listed = (await client.ask("/v1/models")).json()["data"]
        assert [card["id"] for card in listed] == [MODEL, "gpt"]
        assert (await client.ask("/v1/models/gpt")).json()["root"] == f"org/{MODEL}"


async def test_a_tenant_sees_its_own_regions_only() -> None:
    """A model that is served elsewhere only is not in its list, and is refused before any pod is asked."""
    async with a_rig(identify=always(Tenant("t", regions=frozenset({"eu"})))) as rig:
        client = await rig.client()
        answer = await client.ask(CHAT_PATH, a_chat())
        assert (answer.status, answer.code, answer.headers["x-should-retry"]) == (403, "region_not_allowed", "false")
        assert (await client.ask("/v1/models")).json()["data"] == []
        change(rig, rig.pod.url, region="eu")
        rig.pod.plays(GOOD)
        assert (await client.ask(CHAT_PATH, a_chat())).status == 200
        assert len((await client.ask("/v1/models")).json()["data"]) == 1
    assert rig.outcomes[0].reason is Reason.REGION_NOT_ALLOWED


class FullRoom:
    """Takes in what asks for little enough."""

    def __init__(self, router: Router, most_model: str = "", least_ttft_s: float = 0.0) -> None:
        self._router, self._model, self._ttft_s = router, most_model, least_ttft_s

    async def place(
        self,
        context: RequestContext,
        promise: LatencyObjective,
        avoid: frozenset[str],
        *_: float,
        **__: object,
    ) -> Placement:
        request = context.request
        if request.model != self._model or promise.ttft_s < self._ttft_s:
            raise RequestRejected(Reason.OVERLOADED, "The promise cannot be kept.", retry_after_s=2.0)
        return self._router.place(request, avoid=avoid, now_s=asyncio.get_running_loop().time(), draw=0.0)

    def settle(self, *_: object) -> None:
        """It remembers nobody."""


def full(most_model: str = "", least_ttft_s: float = 0.0) -> Callable[[Router], AdmissionQueue]:
    return lambda router: cast("AdmissionQueue", FullRoom(router, most_model, least_ttft_s))


SMALLER = Tenant("t", tier=GOLD.tier, on_overload=OverloadAction.DOWNGRADE, downgrades={MODEL: "small"}, output_cap=9)


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/messages"])
async def test_a_smaller_model_answers_under_overload(path: str) -> None:
    """The pod is asked for it, under the tenant's terms still; the client's head, log and receipt say so."""
    async with a_rig(identify=always(SMALLER), make_room=full("small")) as rig:
        rig.pod.plays(GOOD)
        change(rig, rig.pod.url, models=frozenset({MODEL, "small"}), takes_priority=True)
        answer = await rig.ask(path, a_chat(max_tokens=99))
        assert (answer.status, answer.headers["x-hearth-downgraded-from"]) == (200, MODEL)
        sent = rig.pod.questions[0].json()
        assert (sent["model"], sent["max_tokens"]) == ("small", 9)
    outcome = rig.outcomes[0]
    assert (outcome.model, outcome.downgraded_from) == ("small", MODEL)


async def test_a_smaller_model_is_requested_once() -> None:
    """Where it is overloaded too, that is what the client hears, in words it retries on."""
    async with a_rig(identify=always(SMALLER), make_room=full()) as rig:
        change(rig, rig.pod.url, models=frozenset({MODEL, "small"}))
        answer = await rig.ask(CHAT_PATH, a_chat())
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "slow_down", "2")
        assert (await rig.ask("/v1/messages", a_chat(max_tokens=9))).status == 529
        assert not rig.pod.questions


BRONZE = Tier("bronze", priority=-10, ttft_s=15.0)


@pytest.mark.parametrize(("headers", "status"), [({}, 200), ({"x_hearth_ttft_ms": "500"}, 429)])
async def test_a_lower_tiers_objective_serves_under_overload(headers: dict[str, str], status: int) -> None:
    """Where the tenant relaxes, with that tier's priority; what the request itself asked for still binds."""
    tenant = Tenant("t", tier=Tier("gold", 10, ttft_s=1.0), on_overload=OverloadAction.RELAX, relaxed=BRONZE)
    async with a_rig(identify=always(tenant), make_room=full(MODEL, 2.0)) as rig:
        rig.pod.plays(GOOD)
        change(rig, rig.pod.url, takes_priority=True)
        assert (await rig.ask(CHAT_PATH, a_chat(), **headers)).status == status
        assert [question.json()["priority"] for question in rig.pod.questions] == [10] * (status == 200)
    assert (rig.outcomes[0].tier, rig.outcomes[0].slo_met) == ("bronze", status == 200)


async def test_who_wants_no_less_is_rejected() -> None:
    """A tenant that rejects hears of overload at once."""
    async with a_rig(identify=always(GOLD), make_room=full()) as rig:
        assert (await rig.ask(CHAT_PATH, a_chat())).headers["x-hearth-reason"] == "overloaded"


STORED = [answer_bytes({"id": "resp_1", "object": "response", "status": "completed", "output": []})]


async def test_stored_responses_are_their_tenants() -> None:
    """Whoever else fetches, cancels, deletes or continues one gets the 404 of one that does not exist."""
    async with a_rig(identify=by_key) as rig:
        rig.pod.plays(STORED)
        body = {"model": MODEL, "input": "Hi"}
        assert (await rig.ask("/v1/responses", body, authorization="Bearer a")).status == 200
        client, requested = await rig.client(), len(rig.pod.questions)
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
            answer = await client.ask(f"/v1/responses/resp_1{path}", method=method, authorization="Bearer b")
            assert (answer.status, answer.code) == (404, "response_not_found")
        follow = body | {"previous_response_id": "resp_1"}
        answer = await client.ask("/v1/responses", follow, authorization="Bearer b")
        assert (answer.status, answer.json()["error"]["param"]) == (404, "previous_response_id")
        assert len(rig.pod.questions) == requested
        assert (await client.ask("/v1/responses/resp_1", authorization="Bearer a")).status == 200
        assert (await client.ask("/v1/responses", follow, authorization="Bearer a")).status == 200
        assert rig.pod.questions[-1].json()["previous_response_id"] == "resp_1"


async def test_without_tenants_responses_are_everybodys() -> None:
    """A gateway that knows no tenants asks the pods, as it always did."""
    async with a_rig() as rig:
        rig.pod.plays(STORED)
        body = {"model": MODEL, "input": "Hi", "previous_response_id": "resp_0"}
        assert (await rig.ask("/v1/responses", body)).status == 200
        client = await rig.client()
        assert (await client.ask("/v1/responses/resp_1")).status == 200

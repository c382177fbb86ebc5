"""Tenants over real HTTP: official clients, a policy, simulated pods; the gateway in processes of its own."""

from __future__ import annotations

from pathlib import Path
from signal import SIGHUP

import aiohttp
import anthropic
import openai
import pytest

from tests.scenarios.place import CHAT, LONG, a_place, asking


async def test_clients_learn_of_limits_in_their_own_format(tmp_path: Path) -> None:
    """Openai's and anthropic's libraries raise what their users catch, with headers that say when to come back."""
    async with a_place(tmp_path, limited={"rpm": 1}) as place, place.openai("limited", max_retries=0) as client:
        assert (await client.chat.completions.create(**asking())).choices
        with pytest.raises(openai.RateLimitError) as limited:
            await client.chat.completions.create(**asking())
        assert (limited.value.code, limited.value.type) == ("rate_limit_exceeded", "requests")
        assert 0 < float(limited.value.response.headers["retry-after-ms"]) <= 90_000
        async with place.anthropic("limited", max_retries=0) as other:
            with pytest.raises(anthropic.RateLimitError) as rejected:
                await other.messages.create(**asking())
            assert rejected.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]


async def test_what_cannot_help_is_not_retried_by_clients(tmp_path: Path) -> None:
    """A model served outside the allowed regions only: one request, one refusal, and no pod has seen it."""
    async with a_place(tmp_path, far={"allowed_regions": ["mars"]}) as place, place.openai("far") as client:
        with pytest.raises(openai.PermissionDeniedError) as rejected:
            await client.chat.completions.create(**asking())
        assert rejected.value.response.headers["x-hearth-reason"] == "region_not_allowed"
        assert len(await place.receipts("far")) == 1
        assert [model.id async for model in client.models.list()] == []


async def test_requests_stay_in_their_region(tmp_path: Path) -> None:
    """However many there are at once, and also where the only pod that may compute them is gone."""
    async with a_place(tmp_path, legal={"allowed_regions": ["on-prem"]}) as place:
        async with place.openai("legal", max_retries=0) as client:
            for number in range(8):
                await client.chat.completions.create(**asking(f"{number} {LONG}"))
            await place.pods[0].stop()
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(**asking())
        pods = {attempt["engine"] for receipt in await place.receipts("legal") for attempt in receipt["attempts"]}
        assert pods == {place.pods[0].url}


async def test_the_same_prompt_is_warm_within_a_domain_only(tmp_path: Path) -> None:
    """By the engines' own count of cached tokens, in all dialects that tell it."""
    own, both = {"cache_isolation": "tenant"}, {"cache_isolation": "shared"}
    async with a_place(tmp_path, one=own, other=own, third=both, fourth=both) as place:
        cached = {}
        for turn in ("first", "second"):
            for tenant in ("one", "other", "third", "fourth"):
                async with place.openai(tenant) as client:
                    answer = await client.chat.completions.create(**asking(LONG))
                assert answer.usage is not None
                assert answer.usage.prompt_tokens_details is not None
                cached[tenant, turn] = answer.usage.prompt_tokens_details.cached_tokens
        assert cached["one", "first"] == cached["other", "first"] == cached["third", "first"] == 0
        assert all(cached[key] for key in cached if key[1] == "second")
        assert cached["fourth", "first"]


async def test_stored_responses_and_aliases_are_their_tenants(tmp_path: Path) -> None:
    """What one tenant stored another can neither fetch nor go on with; an alias is the model it stands for."""
    async with (
        a_place(tmp_path, one={"aliases": {"gpt": "small"}}, other={}) as place,
        place.openai("one", max_retries=0) as one,
        place.openai("other", max_retries=0) as other,
    ):
        stored = await one.responses.create(model="gpt", input="Hi", max_output_tokens=8)
        assert (await one.responses.create(model="gpt", input="And?", previous_response_id=stored.id)).id
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(stored.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.create(model="small", input="And?", previous_response_id=stored.id)
        with pytest.raises(openai.NotFoundError):
            await other.chat.completions.create(**asking(model="gpt"))


async def test_a_trusted_proxy_names_the_tenant_and_the_tier(tmp_path: Path) -> None:
    """By llm-d's header or ours; receipts, metrics and the pod see whose request it was."""
    async with a_place(tmp_path, one={"tier": "bronze"}) as place:
        headers = {"x-hearth-tenant": "one", "x-llm-d-inference-objective": "gold"}
        async with openai.AsyncOpenAI(base_url=place.gateway.at("traffic", "/v1"), api_key="none") as client:
            await client.chat.completions.create(**asking(), extra_headers=headers)
        (receipt,) = await place.receipts("one")
        assert (receipt["tier"], receipt["slo_met"]) == ("gold", True)
        shown = await place.metrics()
        assert 'hearth_slo_met_requests_total{pool="big",tier="gold"} 1.0' in shown
        assert 'hearth_queued_requests{pool="big",tier="gold"} 0.0' in shown


@pytest.mark.parametrize(
    "headers",
    [
        {"x-hearth-ttft-ms": "9" * 4000},
        {"x-llm-d-slo-tpot-ms": "\u00bd"},
        {"x-slo-ttft-ms": "1; drop table tenants"},
        {"x-hearth-supersedes": "\u00e9" * 100},
    ],
)
async def test_hostile_headers_are_the_clients_fault(tmp_path: Path, headers: dict[str, str]) -> None:
    """400 with the header's name, and the next request is served on the same connection."""
    async with a_place(tmp_path, one={}) as place, aiohttp.ClientSession() as session:
        url, key = place.gateway.at("traffic", CHAT), {"authorization": "Bearer sk-one"}
        async with session.post(url, json=asking(), headers=key | headers) as answer:
            assert (answer.status, (await answer.json())["error"]["param"]) == (400, next(iter(headers)))
        async with session.post(url, json=asking(), headers=key) as answer:
            assert answer.status == 200


async def test_a_new_policy_takes_hold_while_requests_run(tmp_path: Path) -> None:
    """Who is being served is served to the end; who comes after is under the new one; a wrong one changes nothing."""
    async with a_place(tmp_path, one={}) as place, place.openai("one", max_retries=0) as client:
        stream = await client.chat.completions.create(**asking(max_tokens=40), stream=True)
        events = aiter(stream)
        await anext(events)
        place.write(one={"models": ["small"]})
        place.gateway.running.send_signal(SIGHUP)
        await place.gateway.until("reload_succeeded")
        assert [event async for event in events]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(**asking())
        place.write(one={"tier": "platinum"})
        place.gateway.running.send_signal(SIGHUP)
        await place.gateway.until("reload_failed")
        assert await client.chat.completions.create(**asking(model="small"))


async def test_workers_know_tenants_alike(tmp_path: Path) -> None:
    """Two processes: keys, regions and stored responses, whichever worker a connection lands on."""
    async with a_place(tmp_path, "--processes", "2", one={"allowed_regions": ["on-prem"]}, other={}) as place:
        async with place.openai("one", max_retries=2) as one:
            for number in range(6):
                await one.with_options(http_client=None).chat.completions.create(**asking(f"{number}"))
        receipts = await place.receipts("one")
        assert len(receipts) == 6
        assert {receipt["attempts"][0]["engine"] for receipt in receipts} == {place.pods[0].url}
        async with place.openai("nobody", max_retries=0) as nobody:
            with pytest.raises(openai.AuthenticationError):
                await nobody.chat.completions.create(**asking())

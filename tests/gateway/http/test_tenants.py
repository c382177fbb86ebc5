"""Whose request it is: keys, the models a tenant may use, and what tenants must not share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.server.dispatcher import Identify
from routing.rejection import Reason, RequestRejected
from tenancy.tenants import Caller, Tenant
from tests.gateway.http.rig import CHAT_PATH, MODEL, a_chat, a_rig, request_bytes
from tests.gateway.http.wire import answer_bytes, chat_answer

GOOD = [answer_bytes(chat_answer())]


def gold(key: str | None, spoken: Mapping[bytes, bytes] | None = None) -> Caller:
    if key != "sesame":
        raise RequestRejected(Reason.INVALID_KEY, "Invalid API key.")
    return Caller(Tenant("gold", frozenset({MODEL})))


def by_key(**tenants: Tenant) -> Identify:
    """Whose name the key is; any other key is the tenant of that name."""
    return lambda key, _: Caller(tenants.get(f"{key}", Tenant(key)))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic sesame"}, 401),
        ({"authorization": "bearer sesame"}, 200),
        ({"x_api_key": "sesame"}, 200),
    ],
)
async def test_keys_are_requested(headers: dict[str, str], status: int) -> None:
    """As OpenAI's clients send them and as Anthropic's do; health needs none."""
    async with a_rig(identify=gold) as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        assert (await client.ask(CHAT_PATH, a_chat(), **headers)).status == status
        assert (await client.ask("/v1/models", **headers)).status == status
        assert (await client.ask("/health")).status == 200
        assert (await client.ask("/ready")).status == 200


async def test_a_stranger_cannot_make_us_hold_a_body() -> None:
    """Who may not ask is refused by the head alone, and the rest is not waited for."""
    async with a_rig(identify=gold) as rig:
        client = await rig.client()
        raw = request_bytes(CHAT_PATH, a_chat(user="x" * 1_000_000))
        await client.send(raw[:1000])
        answer = await client.answer()
        assert answer.status == 401
        assert rig.front.body_budget.held_bytes == 0
        await client.send(raw[1000:])
        assert await client.is_closed()


async def test_a_tenant_sees_and_uses_its_own_models_only() -> None:
    """A model that may not be used does not exist, in the list, by name, and when asked."""
    async with a_rig(identify=lambda *_: Caller(Tenant("lead", frozenset({"other"})))) as rig:
        client = await rig.client()
        assert (await client.ask("/v1/models")).json()["data"] == []
        for answer in (await client.ask(f"/v1/models/{MODEL}"), await client.ask(CHAT_PATH, a_chat())):
            assert (answer.status, answer.code) == (404, "model_not_found")
        assert not rig.pod.questions


async def test_sessions_of_tenants_are_kept_separate() -> None:
    """Two tenants that name their conversation alike do not share it."""
    async with a_rig(identify=by_key()) as rig:
        rig.pod.plays(GOOD)
        for key, name in (("a", "x_session_id"), ("b", "session_id"), ("a", "x_claude_code_session_id")):
            await rig.ask(CHAT_PATH, a_chat(), authorization=f"Bearer {key}", **{name: "s1"})
    assert [outcome.session for outcome in rig.outcomes] == ["a/s1", "b/s1", "a/s1"]

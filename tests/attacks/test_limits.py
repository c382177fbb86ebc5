"""Tenants that try to get past their limits, or to have another tenant refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.limits.accounts import CHECK_EVENTS, QuotaEnforcer, make_quota_enforcer
from gateway.pipeline.admission_queue import AdmissionQueue
from routing.decision.router import Router
from tenancy.tenants import Caller, Quota, Tenant
from tests.gateway.http.rig import CHAT_PATH, MODEL, RawClient, Rig, a_chat, a_rig
from tests.gateway.http.scripted import until
from tests.gateway.http.wire import STREAM_HEAD, answer_bytes, chat_answer, chat_event, chat_stream, chunk, chunked

RESPONSES_PATH = "/v1/responses"

LIMIT = 1_000
"""Tokens of output a minute."""


class Stage:
    """A front with real quotas over a scripted pod, a clock that is set by hand, and tenants by their keys."""

    def __init__(self, **quotas: Quota) -> None:
        self.now_s = 1_000.0
        self.tenants = {name: Tenant(name, quota=quota) for name, quota in quotas.items()}
        self.quotas: QuotaEnforcer

    def make(self, router: Router) -> QuotaEnforcer:
        room = AdmissionQueue(router, clock=lambda: self.now_s, draw=lambda: 0.0)
        self.quotas = make_quota_enforcer(router, {}, room.has_waiters, clock=lambda: self.now_s, draw=lambda: 0.0)
        return self.quotas

    def identify(self, key: str | None, *_: object) -> Caller:
        return self.tenants[key or ""].caller()

    @asynccontextmanager
    async def rig(self) -> AsyncIterator[Rig]:
        async with a_rig(identify=self.identify, make_quotas=self.make) as rig:
            yield rig


def key(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {tenant}"}


def complete(tokens: int) -> list[bytes]:
    usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}
    return [answer_bytes(chat_answer() | {"usage": usage})]


def requested(rig: Rig) -> dict[str, Any]:
    reported: dict[str, Any] = json.loads(rig.pod.questions[-1].body)
    return reported


def seen(client: RawClient) -> bytes:
    return bytes(client.reader._buffer)  # type: ignore[attr-defined]


async def test_the_interval_of_events_is_not_the_clients_to_set() -> None:
    """An event of 500 tokens would count as one."""
    stage = Stage(a=Quota(output_tokens_per_min=LIMIT))
    async with stage.rig() as rig:
        rig.pod.plays([STREAM_HEAD, chunked(chat_stream("a", "b"))])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True, stream_interval=500), **key("a"))
        assert answer.status == 200
        assert "stream_interval" not in requested(rig)


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_runs_in_the_background_of_a_limit(stream: bool) -> None:
    """Its slot and its reserve would be free while the engine goes on; the client learns what to do instead."""
    stage = Stage(a=Quota(parallel_requests=1))
    async with stage.rig() as rig:
        rig.pod.plays([answer_bytes({"id": "resp_1", "status": "queued"})])
        body = {"model": MODEL, "input": "hi", "background": True, "stream": stream}
        answer = await rig.ask(RESPONSES_PATH, body, **key("a"))
        assert (answer.status, answer.json()["error"]["param"]) == (400, "background")
        assert rig.pod.questions == []


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, {"max_completion_tokens": LIMIT}),
        ({"max_tokens": 3_900}, {"max_tokens": LIMIT}),
        ({"max_completion_tokens": 3_900, "n": 4}, {"max_completion_tokens": LIMIT // 4}),
        ({"stream": True, "include_reasoning": False}, {"max_completion_tokens": LIMIT}),
    ],
)
async def test_what_cannot_be_cut_is_bounded_by_what_is_left(fields: dict[str, Any], sent: dict[str, int]) -> None:
    """Whole answers, and streams whose engine thinks without a word; a header says what they were lowered to."""
    stage = Stage(a=Quota(output_tokens_per_min=LIMIT))
    async with stage.rig() as rig:
        rig.pod.plays([STREAM_HEAD, chunked(chat_stream("a"))] if fields.get("stream") else complete(20))
        answer = await rig.ask(CHAT_PATH, a_chat() | fields, **key("a"))
        assert answer.status == 200
        assert {name: requested(rig)[name] for name in sent} == sent
        assert answer.headers["x-hearth-max-tokens"] == str(next(iter(sent.values())))


async def test_what_fits_is_sent_as_it_came() -> None:
    """No field is added and no header where the limits allow what the client does, or there is none on output."""
    stage = Stage(a=Quota(output_tokens_per_min=LIMIT), b=Quota(requests_per_min=100))
    async with stage.rig() as rig:
        rig.pod.plays(complete(20))
        for tenant, fields in (("a", {"max_tokens": 400}), ("b", {}), ("b", {"max_tokens": 90_000})):
            answer = await rig.ask(CHAT_PATH, a_chat() | fields, **key(tenant))
            assert answer.status == 200
            assert "x-hearth-max-tokens" not in answer.headers
            assert requested(rig) == a_chat() | fields


async def test_overshoot_is_owed_until_it_is_paid() -> None:
    """An engine that gave five times the limit: the tenant waits for as long as five windows last, and no longer."""
    stage = Stage(a=Quota(output_tokens_per_min=LIMIT))
    async with stage.rig() as rig:
        rig.pod.plays(complete(5 * LIMIT), complete(20))
        assert (await rig.ask(CHAT_PATH, a_chat(), **key("a"))).status == 200
        for _ in range(4):
            stage.now_s += 61
            answer = await rig.ask(CHAT_PATH, a_chat(), **key("a"))
            assert answer.status == 429
        assert int(answer.headers["retry-after-ms"]) <= 66_500
        stage.now_s += 61
        assert (await rig.ask(CHAT_PATH, a_chat(), **key("a"))).status == 200


async def test_no_tenant_has_another_rejected() -> None:
    """Ten long answers of one: the streams of another begin as ever."""
    stage = Stage(a=Quota(output_tokens_per_min=10**9), b=Quota(output_tokens_per_min=5_000))
    async with stage.rig() as rig:
        rig.pod.plays(complete(20_000))
        for _ in range(10):
            assert (await rig.ask(CHAT_PATH, a_chat(max_tokens=32_000), **key("a"))).status == 200
        rig.pod.plays([STREAM_HEAD, chunked(chat_stream("a", "b"))])
        for _ in range(3):
            assert (await rig.ask(CHAT_PATH, a_chat(stream=True), **key("b"))).status == 200


async def test_a_running_stream_is_bound_by_a_reload() -> None:
    """Without any further request of its account, by the first look after it, and whatever it had reserved."""
    stage = Stage(a=Quota(output_tokens_per_min=10**6, requests_per_min=100))
    async with stage.rig() as rig:
        stage.quotas.apply_policy(stage.tenants)
        goes_on = asyncio.Event()
        first, rest = ([chunk(chat_event("w")) for _ in range(count)] for count in (100, 2 * CHECK_EVENTS))
        rig.pod.plays([STREAM_HEAD, *first, goes_on, *rest, asyncio.Event()])
        client = await rig.client()
        asking = asyncio.create_task(client.ask(CHAT_PATH, a_chat(stream=True), **key("a")))
        await until(lambda: seen(client).count(b'"content":"w"') >= 100 or asking.done())
        stage.quotas.apply_policy({"a": Tenant("a", quota=Quota(output_tokens_per_min=50, requests_per_min=100))})
        goes_on.set()
        answer = await asking
        # The pod has no more to say and does not end: only the limit can have ended it, two looks later.
        assert answer.is_whole
        assert b'"hearth_reason":"rate_limited_tokens"' in answer.body

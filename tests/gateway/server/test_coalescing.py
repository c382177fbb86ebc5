"""Clients that ask the same share one answer where they may; who names a key ends what went before under it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.server import coalescing
from gateway.server.dispatcher import Identify
from routing.rejection import Reason
from tenancy.tenants import Account, Caller, Quota, Tenant
from tests.gateway.http.rig import CHAT_PATH, Rig, a_chat, a_rig, request_bytes
from tests.gateway.http.scripted import until
from tests.gateway.http.wire import STREAM_HEAD, answer_bytes, chat_answer, chat_stream, chunk, chunked

GOOD = answer_bytes(chat_answer())


def by_key(key: str | None, _: object) -> Caller:
    """Whose name the key is, and who shares answers."""
    return Caller(Tenant(key, coalesces=True))


def alone(key: str | None, _: object) -> Caller:
    return Caller(Tenant(key))


def by_user(key: str | None, _: object) -> Caller:
    """One tenant, and an account for each of its users."""
    return Caller(Tenant("t", coalesces=True), user=key, accounts=(Account(f"t/user/{key}", Quota(1)),))


def a_draw(**more: Any) -> dict[str, Any]:
    """A chat that is answered alike whenever it is asked."""
    return a_chat(temperature=0) | more


async def asked_at_once(rig: Rig, *requests: tuple[dict[str, Any], dict[str, str]], path: str = CHAT_PATH) -> list[Any]:
    """Clients that have all asked, in this order, each with its connection."""
    clients: list[Any] = []
    crowds = rig.front.dispatcher._coalescer
    for body, headers in requests:
        client = await rig.client()
        await client.send(request_bytes(path, body, **headers))
        clients.append(client)
        # It waits in a crowd by now, or for the pod: nobody finds that the answer has come and gone.
        await until(lambda: max(crowds._members.total(), len(rig.pod.questions)) >= len(clients))
    return clients


async def test_one_generation_answers_all_who_ask_the_same() -> None:
    """The pod is asked once; each client has its own ids, and its receipt names whose answer it was."""
    answer_now = asyncio.Event()
    async with a_rig(identify=by_key) as rig:
        rig.pod.plays([answer_now, GOOD])
        clients = await asked_at_once(rig, *[(a_draw(), {"x_request_id": f"c{n}"}) for n in range(3)])
        answer_now.set()
        answers = [await client.answer() for client in clients]
        assert {answer.body for answer in answers} == {GOOD.partition(b"\r\n\r\n")[2]}
        assert [answer.headers["x-request-id"] for answer in answers] == ["c0", "c1", "c2"]
        first = answers[0].headers["x-hearth-request-id"]
        assert [answer.headers.get("x-hearth-coalesced-with") for answer in answers] == [None, first, first]
        assert len({answer.headers["x-hearth-request-id"] for answer in answers}) == 3
        assert len(rig.pod.questions) == 1
        await until(lambda: len(rig.outcomes) == 3)
        rig.pod.plays([GOOD])
        assert (await rig.ask(CHAT_PATH, a_draw())).status == 200
        assert len(rig.pod.questions) == 2
    assert sorted((outcome.coalesced_with or "", outcome.status) for outcome in rig.outcomes[:3]) == [
        ("", 200),
        (first, 200),
        (first, 200),
    ]


@pytest.mark.parametrize(
    ("one", "other", "headers", "identify"),
    [
        (a_draw(), a_draw(), {}, alone),
        (a_chat(), a_chat(), {}, by_key),
        (a_chat(temperature=1), a_chat(temperature=1), {}, by_key),
        (a_draw(stream=True), a_draw(stream=True), {}, by_key),
        (a_draw(), a_draw(user="x"), {}, by_key),
        (a_draw(), a_draw(), {"authorization": "Bearer other"}, by_key),
        (a_draw(), a_draw(), {"x_hearth_ttft_ms": "100"}, by_key),
        (a_draw(), a_draw(), {"x_hearth_cascade_min_model": "large"}, by_key),
        (a_draw(), a_draw(), {"authorization": "Bearer ann"}, by_user),
    ],
)
async def test_what_is_not_surely_the_same_is_called_again(
    one: Any, other: Any, headers: dict[str, str], identify: Identify
) -> None:
    """Not allowed, drawn at random, streamed, asked otherwise, by another tenant, wanted sooner or of a larger model,
    paid by another.
    """
    answer_now = asyncio.Event()
    async with a_rig(identify=identify) as rig:
        rig.pod.plays([answer_now, STREAM_HEAD + chunked(chat_stream("Hi")) if one.get("stream") else GOOD])
        clients = await asked_at_once(rig, (one, {}), (other, headers))
        await until(lambda: len(rig.pod.questions) == 2)
        answer_now.set()
        for client in clients:
            assert (await client.answer()).status == 200


async def test_a_response_without_end_is_not_held_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both who share it are told why, the pod is left, and that it sends so much is not counted against it."""
    monkeypatch.setattr(coalescing, "MAX_BUFFERED_BYTES", 1 << 20)
    answer_now, never = asyncio.Event(), asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    async with a_rig(identify=by_key) as rig:
        rig.pod.plays([answer_now, head, *[chunk(b"x" * (1 << 16))] * 40, never])
        clients = await asked_at_once(rig, (a_draw(), {}), (a_draw(), {}))
        answer_now.set()
        for client in clients:
            answer = await client.answer()
            assert (answer.status, answer.code) == (502, "pod_invalid_response")
            assert "1048576 bytes" in answer.json()["error"]["message"]
        await until(lambda: not rig.pod.writers)
        assert not any(end.is_pod_failure for _, end in rig.ends)


async def test_embeddings_are_the_same_for_all_who_ask() -> None:
    """Nothing is drawn there."""
    answer_now = asyncio.Event()
    async with a_rig(identify=by_key) as rig:
        rig.pod.plays([answer_now, answer_bytes({"data": []})])
        body = {"model": "tiny", "input": "Hi"}
        clients = await asked_at_once(rig, (body, {}), (body, {}), path="/v1/embeddings")
        answer_now.set()
        assert [(await client.answer()).status for client in clients] == [200, 200]
        assert len(rig.pod.questions) == 1


@pytest.mark.parametrize("leaving", [0, 1])
async def test_who_leaves_takes_the_answer_from_no_one(leaving: int) -> None:
    """Also who asked first; and the pod goes on for the others."""
    answer_now = asyncio.Event()
    async with a_rig(identify=by_key) as rig:
        rig.pod.plays([answer_now, GOOD])
        clients = await asked_at_once(rig, (a_draw(), {}), (a_draw(), {}))
        gone = clients.pop(leaving)
        gone.leave()
        await until(lambda: rig.front.open_connections == 1)
        answer_now.set()
        assert (await clients[0].answer()).status == 200
        assert len(rig.pod.questions) == 1


async def test_when_all_have_left_the_pod_is_notified() -> None:
    """Nobody waits, so nothing is generated; who asks then has it generated anew."""
    answer_now = asyncio.Event()
    async with a_rig(identify=by_key) as rig:
        rig.pod.plays([answer_now, GOOD])
        clients = await asked_at_once(rig, (a_draw(), {}), (a_draw(), {}))
        await until(lambda: rig.pod.questions)
        for client in clients:
            client.leave()
        await until(lambda: not rig.front.open_requests and not rig.pod.writers)
        rig.pod.plays([GOOD])
        assert (await rig.ask(CHAT_PATH, a_draw())).status == 200
    assert [outcome.status for outcome in rig.outcomes] == [499, 499, 200]


@pytest.mark.parametrize("script", [[answer_bytes({"error": {"message": "broken"}}, status=500)], [GOOD[:-5]]])
async def test_a_failure_is_sent_to_all(script: list[bytes]) -> None:
    """Whole and with its reason, also where the pod was lost in the middle of its answer."""
    answer_now = asyncio.Event()
    async with a_rig(identify=by_key) as rig:
        rig.pod.plays([answer_now, *script, lambda writer: writer.close()])
        clients = await asked_at_once(rig, (a_draw(), {}), (a_draw(), {}))
        answer_now.set()
        answers = [await client.answer() for client in clients]
        assert {answer.status for answer in answers} == {502}
        assert len({answer.headers["x-hearth-reason"] for answer in answers}) == 1
        await until(lambda: len(rig.outcomes) == 2)
    assert [outcome.status for outcome in rig.outcomes] == [502, 502]


async def test_a_key_ends_what_went_before_under_it() -> None:
    """The older client is told so and need not come again, and the newer one is served."""
    answer_now = asyncio.Event()
    async with a_rig(identify=alone) as rig:
        rig.pod.plays([answer_now, GOOD])
        headers = {"x_hearth_supersedes": "draft-1", "authorization": "Bearer a"}
        older, other_key, other_tenant = await asked_at_once(
            rig,
            (a_chat(), headers),
            (a_chat(), headers | {"x_hearth_supersedes": "draft-2"}),
            (a_chat(), headers | {"authorization": "Bearer b"}),
        )
        newer = await rig.client()
        await newer.send(request_bytes(CHAT_PATH, a_chat(), **headers))
        rejected = await older.answer()
        assert (rejected.status, rejected.code, rejected.headers["x-should-retry"]) == (409, "superseded", "false")
        answer_now.set()
        for client in (newer, other_key, other_tenant):
            assert (await client.answer()).status == 200
        await until(lambda: len(rig.outcomes) == 4)
        assert not len(rig.front.dispatcher.supersedes)
    assert [outcome.reason for outcome in rig.outcomes].count(Reason.SUPERSEDED) == 1


@pytest.mark.parametrize("value", ["", "x" * 129, "a b", "\u00fc"])
async def test_a_key_must_be_one(value: str) -> None:
    """400 with the header's name."""
    async with a_rig() as rig:
        answer = await rig.ask(CHAT_PATH, a_chat(), x_hearth_supersedes=value)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "x-hearth-supersedes")

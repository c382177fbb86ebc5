"""A request's whole way: client, front, spine, pod and back."""

from __future__ import annotations

import asyncio
import gc

from gateway.http.client_connection import ClientConnection
from routing.request import Usage
from tests.gateway.http.rig import CHAT_PATH, MODEL, a_chat, a_rig
from tests.gateway.http.scripted import until
from tests.gateway.http.wire import DONE, STREAM_HEAD, answer_bytes, chat_answer, chat_stream, chunk, chunked


async def test_a_unary_answer_goes_through() -> None:
    """A chat without streaming: body, status and type as the pod sent them, our headers and nobody else's."""
    async with a_rig() as rig:
        rig.pod.plays([answer_bytes(chat_answer(), server="uvicorn", x_secret="1")])
        answer = await rig.ask(CHAT_PATH, a_chat(), x_request_id="mine-1")
        assert answer.status == 200
        assert answer.json() == chat_answer()
        assert set(answer.headers) == {"content-type", "content-length", "x-request-id", "x-hearth-request-id"}
        assert answer.headers["x-request-id"] == "mine-1"
        question = rig.pod.questions[0]
        assert question.line == f"POST {CHAT_PATH} HTTP/1.1"
        assert question.headers["x-request-id"] == answer.headers["x-hearth-request-id"]
        assert question.json() == a_chat()
    (outcome,) = rig.outcomes
    assert (outcome.status, outcome.finish_reason, outcome.usage) == (200, "stop", Usage(42, 3, 32))
    assert outcome.id == answer.headers["x-hearth-request-id"]


async def test_a_stream_goes_through() -> None:
    """A chat stream: each event as it came, less the usage event that only we asked for."""
    async with a_rig() as rig:
        events = chat_stream("Hi", " there", ".")
        rig.pod.plays([STREAM_HEAD, *map(chunk, events), b"0\r\n\r\n"])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.status == 200
        assert answer.is_whole
        assert answer.body == b"".join([*events[:3], DONE])
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert rig.pod.questions[0].json()["stream_options"] == {"include_usage": True}
    (outcome,) = rig.outcomes
    assert (outcome.status, outcome.finish_reason, outcome.usage) == (200, "stop", Usage(42, 3, 32))
    assert outcome.ttft_s is not None


async def test_a_connection_serves_many_requests_and_so_does_the_pods() -> None:
    """Keep-alive on both sides, streams and whole answers mixed."""
    async with a_rig() as rig:
        stream = STREAM_HEAD + chunked(chat_stream("Hi", "."))
        rig.pod.plays(*[[answer_bytes(chat_answer())], [stream]] * 3)
        client = await rig.client()
        for turn in range(6):
            answer = await client.ask(CHAT_PATH, a_chat(stream=bool(turn % 2)))
            assert answer.status == 200
        assert rig.pod.connections == 1
        assert rig.front.pool.idle_count == 1
        assert rig.front.open_connections == 1


async def test_health_and_models_are_answered_here() -> None:
    """No pod is asked for what the gateway knows."""
    async with a_rig() as rig:
        client = await rig.client()
        assert (await client.ask("/health")).status == 200
        assert (await client.ask("/ready")).status == 200
        models = (await client.ask("/v1/models")).json()
        assert [card["id"] for card in models["data"]] == [MODEL]
        assert not rig.pod.questions


async def test_no_two_ids_are_the_same() -> None:
    """Not of one gateway, and not of two that started in the same moment."""
    async with a_rig() as rig, a_rig() as other:
        ids = [desk.new_id() for desk in (rig.front.dispatcher, other.front.dispatcher) for _ in range(100)]
    assert len(set(ids)) == 200
    assert {len(one) for one in ids} == {32}
    assert ids[0][:24] != ids[100][:24]


async def test_a_connection_that_has_ended_leaves_nothing_to_collect() -> None:
    """Nothing of it goes round in a circle: collections are rare, and memory would grow until the next."""
    gc.collect()
    gc.disable()
    try:
        async with a_rig() as rig:
            rig.pod.plays([answer_bytes(chat_answer())])
            client = await rig.client()
            assert (await client.ask(CHAT_PATH, a_chat())).status == 200
            client.leave()
            await until(lambda: not rig.front.open_connections)
            await asyncio.sleep(0)
            assert not any(isinstance(each, ClientConnection) for each in gc.get_objects())
    finally:
        gc.enable()

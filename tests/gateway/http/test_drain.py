"""The gateway goes: what is under way is finished, nothing new is begun, and what does not end is cut with a word."""

from __future__ import annotations

import asyncio

import pytest

from gateway.server.http_server import HttpServer
from routing.rejection import Reason
from tests.gateway.http.rig import CHAT_PATH, Rig, a_chat, a_rig, request_bytes
from tests.gateway.http.scripted import until
from tests.gateway.http.wire import DONE, LAST_CHUNK, STREAM_HEAD, answer_bytes, chat_answer, chat_event, chunk

GOOD = [answer_bytes(chat_answer())]


async def test_what_is_under_way_is_finished() -> None:
    """A stream that has begun goes on to its end, an idle connection is closed, and then the drain is over."""
    go_on = asyncio.Event()
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + chunk(chat_event("Hi")), go_on, chunk(DONE) + LAST_CHUNK])
        idle, busy = await rig.client(), await rig.client()
        assert (await idle.ask("/health")).status == 200
        await busy.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        assert (await busy.head())[0] == 200
        draining = asyncio.create_task(rig.front.drain(60.0))
        assert await idle.is_closed()
        assert not draining.done()
        go_on.set()
        assert [await busy.chunk() for _ in range(3)] == [chat_event("Hi"), DONE, b""]
        assert await busy.is_closed()
        busy.leave()
        await draining
        assert rig.front.pool.open_count == rig.front.pool.idle_count


async def test_what_comes_on_an_open_connection_is_served_and_the_connection_closed() -> None:
    """A client could not know: its request is not held against it, nor is the one it sent behind."""
    go_on = asyncio.Event()
    async with a_rig() as rig:
        rig.pod.plays([go_on, *GOOD], GOOD)
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat()))
        await until(lambda: rig.pod.questions)
        draining = asyncio.create_task(rig.front.drain(60.0))
        await until(lambda: rig.front.is_draining)
        await client.send(request_bytes(CHAT_PATH, a_chat()))
        go_on.set()
        assert "connection" not in (await client.answer()).headers
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.is_closed()
        client.leave()
        await draining


async def test_who_has_called_before_the_end_could_be_observed_is_served() -> None:
    """An idle connection at the drain: a request on its way is answered, and told that it was the last."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        assert (await client.ask("/health")).headers.get("connection") is None
        draining = asyncio.create_task(rig.front.drain(60.0))
        await until(lambda: rig.front.is_draining)
        answer = await client.ask(CHAT_PATH, a_chat())
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        client.leave()
        await draining


async def test_a_client_with_a_kept_connection_may_send_another_request() -> None:
    """The stream's head had said nothing of an end: what is asked right behind it is answered."""
    go_on = asyncio.Event()
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + chunk(chat_event("Hi")), go_on, chunk(DONE) + LAST_CHUNK], GOOD)
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        assert (await client.head())[0] == 200
        draining = asyncio.create_task(rig.front.drain(60.0))
        await until(lambda: rig.front.is_draining)
        go_on.set()
        assert [await client.chunk() for _ in range(3)] == [chat_event("Hi"), DONE, b""]
        assert (await client.ask(CHAT_PATH, a_chat())).headers["connection"] == "close"
        client.leave()
        await draining


async def test_a_draining_gateway_is_not_ready() -> None:
    """Whoever spreads the load over gateways is told so; the process is still healthy."""
    async with a_rig() as rig:
        rig.pod.plays([asyncio.Event()])
        busy = await rig.client()
        await busy.send(request_bytes(CHAT_PATH, a_chat()))
        await until(lambda: rig.pod.questions)
        draining = asyncio.create_task(rig.front.drain(60.0))
        await until(lambda: rig.front.is_draining)
        assert (await rig.ask("/ready")).status == 503
        assert (await rig.ask("/health")).status == 200
        busy.leave()
        await draining


async def test_what_does_not_end_in_time_is_cut_with_a_reason() -> None:
    """A stream is left without its end, like a lost connection; a request without an answer gets a whole error."""
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + chunk(chat_event("Hi")), asyncio.Event()], [asyncio.Event()])
        streaming, waiting = await rig.client(), await rig.client()
        await streaming.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        assert (await streaming.head())[0] == 200
        await waiting.send(request_bytes(CHAT_PATH, a_chat()) * 3)
        await until(lambda: len(rig.pod.questions) == 2)
        await rig.front.drain(0.0)
        assert await streaming.chunk() == chat_event("Hi")
        with pytest.raises(asyncio.IncompleteReadError):
            await streaming.chunk()
        answer = await waiting.answer()
        assert (answer.status, answer.code) == (503, "server_is_overloaded")
        assert await waiting.is_closed()
        assert left(rig.front) == (0, 0, 0)
        await until(lambda: not rig.pod.writers)
    assert [outcome.reason for outcome in rig.outcomes] == [Reason.GATEWAY_DRAINING] * 2


async def test_a_client_that_does_not_read_cannot_hold_up_the_end() -> None:
    """What is cut and not taken is dropped."""
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD, *[chunk(chat_event("x" * 10_000))] * 2000, asyncio.Event()])
        client = await rig.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.pod.questions)
        await rig.front.drain(0.0)
        assert left(rig.front) == (0, 0, 0)


async def test_a_drain_of_nothing_ends_at_once() -> None:
    """Nobody there, nothing to wait for; closing again does no harm."""
    async with a_rig() as rig:
        await rig.front.drain(60.0)
        rig.front.close()
        assert left(rig.front) == (0, 0, 0)


def left(front: HttpServer) -> tuple[int, int, int]:
    return front.open_connections, front.open_requests, front.pool.open_count


async def test_a_readiness_of_others_is_reported() -> None:
    """Whether the fleet can serve is for others to know."""
    is_ready = True
    rig: Rig
    async with a_rig(readiness=lambda: is_ready) as rig:
        assert (await rig.ask("/ready")).status == 200
        is_ready = False
        answer = await rig.ask("/ready")
        assert (answer.status, answer.code) == (503, "server_is_overloaded")

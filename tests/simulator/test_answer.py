"""A client's view of a stream: whole, cut, failed inside, refused, or not there at all."""

import time

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from simulator.answer import TAIL_BYTES, Answer, ask, keep_end

TOKEN = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"warm"}}]}\n\n'
COUNTS = b'{"prompt_tokens":42,"total_tokens":45,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":32}}'
USAGE = b'data: {"id":"x","choices":[],"usage":' + COUNTS + b"}\n\n"
DONE = b"data: [DONE]\n\n"


async def take(*pieces: bytes, status: int = 200, drops: bool = False) -> Answer:
    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=status, headers={"X-Hearth-Request-Id": "r-1"})
        await answer.prepare(request)
        for piece in pieces:
            await answer.write(piece)
        if drops and request.transport:
            request.transport.close()
        return answer

    app = web.Application()
    app.router.add_post("/", serve)
    async with TestServer(app) as server, aiohttp.ClientSession() as client:
        return await ask(client, str(server.make_url("/")), b"{}", time.monotonic)


@pytest.mark.parametrize("pieces", [(TOKEN * 500, USAGE, DONE), (TOKEN + USAGE[:50], USAGE[50:] + DONE)])
async def test_a_unary_answer_has_its_usage(pieces: tuple[bytes, ...]) -> None:
    """However the network cuts it, and however long it is."""
    answer = await take(*pieces)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (42, 3, 32)
    assert (answer.failure, answer.receipt) == ("", "r-1")
    assert answer.first_token_at is not None
    assert answer.first_token_at <= answer.ended_at


def test_the_end_of_a_stream_is_kept_however_it_is_cut() -> None:
    """Byte for byte or at once: as much of its end as is looked at, and no more."""
    stream, tail = TOKEN * 100 + USAGE + DONE, b""
    for at in range(len(stream)):
        tail = keep_end(tail, stream[at : at + 1])
    assert tail == stream[-TAIL_BYTES:] == keep_end(b"", stream)


async def test_an_answer_without_usage_is_complete_too() -> None:
    """Not every pod tells."""
    answer = await take(TOKEN, DONE)
    assert (answer.failure, answer.usage) == ("", None)


@pytest.mark.parametrize(
    ("pieces", "failure"),
    [
        ((TOKEN, USAGE), "ended without its end mark"),
        ((), "ended without its end mark"),
        ((TOKEN, b'data: {"error":{"message":"gone","code":"pod_lost"}}\n\n', DONE), "error in the stream: pod_lost"),
        ((TOKEN, b'data: {"error":{"message":"gone"}}\n\n'), "error in the stream: gone"),
        ((TOKEN, b"data: {broken\n\n", DONE), "error in the stream: unreadable"),
    ],
)
async def test_an_end_that_is_none_is_a_failure(pieces: tuple[bytes, ...], failure: str) -> None:
    """A stream that stops, or that says so, was not answered in full."""
    assert (await take(*pieces)).failure == failure


async def test_a_rejection_is_reported_by_status_and_code() -> None:
    """There was no first token, only a no."""
    rejection = await take(b'{"error":{"message":"not now","type":"x","code":"slow_down"}}', status=429)
    assert (rejection.first_token_at, rejection.failure) == (None, "429 slow_down")
    assert (await take(b'{"error":"Unauthorized"}', status=401)).failure == "401 Unauthorized"
    assert (await take(b"<html>", status=502)).failure == "502 unreadable"


async def test_a_connection_that_breaks_is_a_failure() -> None:
    """Inside an answer, or before there was one."""
    assert (await take(TOKEN, drops=True)).failure == "ClientPayloadError"
    async with aiohttp.ClientSession() as client:
        answer = await ask(client, "http://127.0.0.1:9/", b"{}", time.monotonic)
    assert answer.failure == "ClientConnectorError"
    assert answer.first_token_at is None


async def test_a_comment_is_no_first_token() -> None:
    """Some routers send comments while nothing comes, so that nobody gives up."""
    assert (await take(b": keep-alive\n\n", b":\n\n")).first_token_at is None
    assert (await take(b": keep-alive\n\n", TOKEN, DONE)).first_token_at is not None

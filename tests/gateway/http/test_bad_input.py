"""Bad input of every kind gets a clear 4xx or a closed connection: never a 5xx that blames a pod, never a leak."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.config.limits import Limits
from routing.rejection import Reason
from tests.gateway.http.rig import CHAT_PATH, MODEL, QUICK, a_chat, a_rig, request_bytes
from tests.gateway.http.wire import answer_bytes, chat_answer, chunk

GOOD = [answer_bytes(chat_answer())]

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
BODY = json.dumps(a_chat()).encode()
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"

UNFRAMED = {
    "two lengths": POST + b"content-length: 5\r\ncontent-length: 5\r\n\r\nabcde",
    "two different lengths": POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
    "a list of lengths": POST + b"content-length: 5, 5\r\n\r\nabcde",
    "a signed length": POST + b"content-length: +5\r\n\r\nabcde",
    "a negative length": POST + b"content-length: -5\r\n\r\nabcde",
    "a hexadecimal length": POST + b"content-length: 0x5\r\n\r\nabcde",
    "an endless length": POST + b"content-length: 99999999999999999999999\r\n\r\nabcde",
    "length and chunks": POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunks and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunked twice": POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked, then not": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "zipped chunks": POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "hidden coding": POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "space before colon": POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad chunk size": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "endless chunk size": POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\nabc",
    "chunk longer than told": POST + b"transfer-encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "bare line feeds": b"GET /health HTTP/1.1\nhost: a\n\n",
    "bare line feeds in chunks": POST + b"transfer-encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "folded header": POST + b"x: a\r\n b\r\ncontent-length: 0\r\n\r\n",
    "header before its name": b"GET /health HTTP/1.1\r\n host: a\r\n\r\n",
    "header without name": POST + b": x\r\n\r\n",
    "carriage return in header": POST + b"x: a\rb\r\n\r\n",
    "nul in header": POST + b"x: a\x00b\r\n\r\n",
    "space in url": b"GET /health now HTTP/1.1\r\nhost: a\r\n\r\n",
    "raw bytes in url": b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n",
    "two spaces before the url": b"GET  /health HTTP/1.1\r\nhost: a\r\n\r\n",
    "two spaces behind the url": b"GET /health  HTTP/1.1\r\nhost: a\r\n\r\n",
    "two spaces, then a good line in a header": b"GET  /health HTTP/1.1\r\nx: GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
    "two spaces in a post": POST.replace(b" ", b"   ", 1) + b"content-length: 2\r\n\r\n{}",
    "unknown method": b"BREW /health HTTP/1.1\r\nhost: a\r\n\r\n",
    "no method": b"/health HTTP/1.1\r\nhost: a\r\n\r\n",
    "unknown version": b"GET /health HTTP/1.2\r\nhost: a\r\n\r\n",
    "version 2": b"GET /health HTTP/2.0\r\nhost: a\r\n\r\n",
    "version 0.9": b"GET /health HTTP/0.9\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100f4010000f00303") + b"x" * 200,
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "empty host": b"GET /health HTTP/1.1\r\nhost: \r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
}


@pytest.mark.parametrize("raw", UNFRAMED.values(), ids=UNFRAMED)
async def test_what_cannot_be_framed_is_rejected_and_closed(raw: bytes) -> None:
    """One 400, then nothing: what follows could be read in two ways, and is read in none."""
    async with a_rig() as rig:
        client = await rig.client()
        await client.send(raw + SMUGGLED)
        answer = await client.answer()
        assert answer.status == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-hearth-fault"] == "client"
        assert await client.is_closed()
        assert not rig.pod.questions
        noted = [rejection.reason for rejection in rig.refusals] + [outcome.reason for outcome in rig.outcomes]
        assert noted == [Reason.BAD_REQUEST]


FLOODS = {
    "many headers": (b"GET /health HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431),
    "a long header": (b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    "a header without end": (b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 1_000_000, 431),
    "a name without end": (b"GET /health HTTP/1.1\r\nhost: a\r\n" + b"y" * 1_000_000, 431),
    "a long url": (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", 414),
    "a url without end": (b"GET /" + b"a" * 1_000_000, 414),
    "a large body": (POST + b"content-length: 104857600\r\n\r\n", 413),
    "large chunks": (POST + b"transfer-encoding: chunked\r\n\r\n" + chunk(b" " * (33 << 20)), 413),
    "an unmet expectation": (POST + b"content-length: 5\r\nexpect: a-miracle\r\n\r\n", 417),
    "a tunnel": (b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n" + b"\x16\x03\x01", 404),
}


@pytest.mark.parametrize(("raw", "status"), FLOODS.values(), ids=FLOODS)
async def test_floods_are_stemmed_before_they_are_held(raw: bytes, status: int) -> None:
    """What is too much is refused as soon as that is known; the client reads it though it is still sending."""
    async with a_rig() as rig:
        client = await rig.client()
        sending = asyncio.create_task(client.send(raw))
        answer = await client.answer()
        assert answer.status == status
        assert await client.is_closed()
        await asyncio.gather(sending, return_exceptions=True)
        assert rig.front.body_budget.held_bytes == 0


async def test_a_hundred_megabytes_are_rejected_by_their_length() -> None:
    """At once, while the client sends on undisturbed and then reads why."""
    async with a_rig() as rig:
        client = await rig.client()
        total = 100 << 20
        await client.send(POST + b"content-length: %d\r\n\r\n" % total)
        for _ in range(0, total, 1 << 20):
            await client.send(bytes(1 << 20))
        answer = await client.answer()
        assert (answer.status, answer.code) == (413, "request_too_large")
        assert not rig.pod.questions


BAD_BODIES = {
    "not JSON": (b"hello", 400, None),
    "nothing": (b"", 400, None),
    "null": (b"null", 400, None),
    "a list": (b"[]", 400, None),
    "half an object": (BODY[:-1], 400, None),
    "more than an object": (BODY + b"x", 400, None),
    "bad UTF-8": (BODY.replace(b"Say hi.", b"Say \xff\xfe"), 400, None),
    "UTF-16": (BODY.decode().encode("utf-16"), 400, None),
    "deep nesting": (b'{"model":"tiny","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, None),
    "deep nesting in an unknown field": (BODY[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, None),
    "no model": (json.dumps({"messages": []}).encode(), 400, "model"),
    "a number for a model": (json.dumps(a_chat() | {"model": 7}).encode(), 400, "model"),
    "an unknown model": (json.dumps(a_chat() | {"model": "nope"}).encode(), 404, "model"),
    "a string for messages": (json.dumps({"model": MODEL, "messages": "hi"}).encode(), 400, "messages"),
    "a word for stream": (json.dumps(a_chat() | {"stream": "yes"}).encode(), 400, "stream"),
}


@pytest.mark.parametrize(("body", "status", "param"), BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_bad_body_is_reported_by_field_and_the_connection_kept(
    body: bytes, status: int, param: str | None
) -> None:
    """The framing was right: the next request on the connection is served."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        answer = await client.ask(CHAT_PATH, body)
        assert answer.status == status
        if param is not None:
            assert answer.json()["error"]["param"] == param
        assert answer.headers["x-hearth-fault"] == "client"
        assert not rig.pod.questions
        assert (await client.ask(CHAT_PATH, a_chat())).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_type": ""}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "application/json; charset=utf-8"}, 200),
        ({"content_encoding": "gzip"}, 415),
        ({"content_encoding": "identity"}, 200),
    ],
)
async def test_only_plain_json_is_taken(headers: dict[str, str], status: int) -> None:
    """Engines do not look at a Content-Encoding and would take the compressed bytes for the body."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        assert (await client.ask(CHAT_PATH, a_chat(), **headers)).status == status
        assert (await client.ask("/health")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", CHAT_PATH, 405, "POST"),
        ("DELETE", CHAT_PATH, 405, "POST"),
        ("OPTIONS", CHAT_PATH, 405, "POST"),
        ("TRACE", "/health", 405, "GET, HEAD"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("GET", "/", 404, None),
        ("GET", "/metrics", 404, None),
        ("GET", "/docs", 404, None),
        ("POST", "/v1/chat/completions/", 404, None),
        ("POST", "/v1/load_lora_adapter", 404, None),
        ("POST", "/v1/../v1/chat/completions", 404, None),
        ("POST", "/v1/chat%2fcompletions", 404, None),
        ("POST", "//v1/chat/completions", 404, None),
        ("POST", "//elsewhere/v1/chat/completions", 404, None),
        ("POST", "/v1/./chat/completions", 404, None),
        ("POST", "/v1/chat/completions#part", 404, None),
        ("POST", "/v1/%63hat/completions", 404, None),
        ("POST", "ftp://elsewhere.example/v1/chat/completions", 404, None),
        ("POST", "http://elsewhere.example//v1/chat/completions", 404, None),
        ("POST", "/sleep", 404, None),
        ("OPTIONS", "*", 404, None),
    ],
)
async def test_only_known_paths_are_served(method: str, path: str, status: int, allow: str | None) -> None:
    """Nothing is forwarded by its looks; a wrong method is told the right ones."""
    async with a_rig() as rig:
        client = await rig.client()
        body = a_chat() if method == "POST" else None
        answer = await client.ask(path, body, method=method)
        assert (answer.status, answer.headers.get("allow")) == (status, allow)
        assert not rig.pod.questions
        assert (await client.ask("/health")).status == 200


async def test_absolute_targets_are_understood() -> None:
    """A client that takes us for a proxy in front of ourselves is served all the same; the host it names is ignored."""
    async with a_rig() as rig:
        assert (await rig.ask("http://elsewhere.example/health")).status == 200


@pytest.mark.parametrize(
    "raw",
    [
        POST + b"content-length: 1000\r\n\r\n" + BODY,
        POST + b"transfer-encoding: chunked\r\n\r\n" + chunk(BODY),
        POST + b"transfer-encoding: chunked\r\n\r\n" + chunk(BODY)[:10],
        POST[:30],
    ],
)
async def test_a_request_cut_short_is_reported(raw: bytes) -> None:
    """The client has closed its side in the middle: nothing of it is served, and it can read why."""
    async with a_rig() as rig:
        client = await rig.client()
        await client.send(raw)
        client.writer.write_eof()
        assert (await client.answer()).status == 400
        assert await client.is_closed()
        assert not rig.pod.questions


async def test_what_follows_a_closing_request_is_ignored() -> None:
    """After `Connection: close` there is no further request, whatever the client sends."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(), connection="close") + request_bytes(CHAT_PATH, a_chat()))
        assert (await client.answer()).status == 200
        assert await client.is_closed()
        assert len(rig.pod.questions) == 1


async def test_a_rejected_client_that_goes_on_sending_is_not_listened_to_for_ever() -> None:
    """Lingering ends: with the client's end, or with its time."""
    async with a_rig(timeouts=QUICK) as rig:
        client = await rig.client()
        await client.send(b"nonsense\r\n\r\n")
        assert (await client.answer()).status == 400
        await client.send(b"x" * 10_000)
        client.leave()


async def test_errors_of_the_messages_path_speak_its_dialect() -> None:
    """Whatever is wrong, Anthropic's clients get Anthropic's shape."""
    async with a_rig(limits=Limits(max_body_bytes=1000)) as rig:
        client = await rig.client()
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            for body, kind in ((b"x", "invalid_request_error"), ({"model": "nope", "messages": []}, "not_found_error")):
                reported = (await client.ask(path, body)).json()
                assert (reported["type"], reported["error"]["type"]) == ("error", kind)
                assert reported["request_id"]
        reported = (await client.ask("/v1/messages", b"x" * 2000)).json()
        assert reported["error"]["type"] == "request_too_large"


@pytest.mark.parametrize("size", [1, 3, 7, 20, 1000])
async def test_request_lines_are_checked_however_they_are_cut(size: int) -> None:
    """Good requests, behind empty lines and each other, are served in any pieces; the first with two spaces is not."""
    raw = b"\r\n" + SMUGGLED + POST + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY) + b"\r\n" + SMUGGLED
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        bad = b"GET  /health HTTP/1.1\r\nhost: a\r\n\r\n"
        for start in range(0, len(raw + bad), size):
            await client.send((raw + bad)[start : start + size])
            await asyncio.sleep(0)
        assert [(await client.answer()).status for _ in range(4)] == [200, 200, 200, 400]


async def test_ordinary_trailers_and_tiny_chunks_are_taken() -> None:
    """What stands behind a head is bounded, not forbidden: the body is what its chunks say."""
    tiny = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in BODY)
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        for trailers in (b"", b"x-checksum: 1\r\nx-other: 2\r\n"):
            await client.send(POST + b"transfer-encoding: chunked\r\n\r\n" + tiny + b"0\r\n" + trailers + b"\r\n")
            assert (await client.answer()).status == 200
        assert [question.body for question in rig.pod.questions] == [BODY, BODY]


async def test_long_trailers_are_rejected_by_name() -> None:
    """With 431, and the connection is closed: what follows is not read."""
    async with a_rig() as rig:
        client = await rig.client()
        await client.send(POST + b"transfer-encoding: chunked\r\n\r\n0\r\nx-long: " + b"x" * 40_000)
        answer = await client.answer()
        assert answer.status == 431
        assert "trailers" in answer.json()["error"]["message"]
        assert await client.is_closed()

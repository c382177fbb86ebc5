"""Web pages of other origins: a browser is told which may ask, and without configuration none may."""

from __future__ import annotations

import pytest

from gateway.config.cors import CorsPolicy, parse_origin
from tenancy.document import InvalidValue
from tests.gateway.http.rig import CHAT_PATH, a_chat, a_rig
from tests.gateway.http.test_tenants import gold
from tests.gateway.http.wire import DONE, STREAM_HEAD, answer_bytes, chat_answer, chat_stream, chunked

PAGE = "https://app.example.com"
ASKED = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,x-custom"}


async def test_without_configuration_no_page_may_ask() -> None:
    """OPTIONS is a method like any other that a path does not take, and no answer names an origin."""
    async with a_rig() as rig:
        rig.pod.plays([answer_bytes(chat_answer())])
        client = await rig.client()
        answer = await client.ask(CHAT_PATH, method="OPTIONS", origin=PAGE, **ASKED)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        answer = await client.ask(CHAT_PATH, a_chat(), origin=PAGE)
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_preflight_is_answered_without_a_key() -> None:
    """With what the path takes and the headers that the page wants to send; nothing is asked of a pod."""
    async with a_rig(cors=CorsPolicy(frozenset({PAGE}), 60), identify=gold) as rig:
        client = await rig.client()
        for path, methods in (
            (CHAT_PATH, "POST"),
            ("/v1/models", "GET, HEAD"),
            ("/v1/responses/resp_1", "GET, DELETE"),
        ):
            answer = await client.ask(path, method="OPTIONS", origin=PAGE, **ASKED)
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["access-control-allow-methods"] == methods
            assert answer.headers["access-control-allow-headers"] == "authorization,x-custom"
            assert answer.headers["access-control-max-age"] == "60"
            assert answer.headers["vary"] == "origin"
        assert not rig.pod.questions
        assert not rig.outcomes


async def test_every_answer_to_a_page_says_that_it_may_be_read() -> None:
    """Whole answers, streams and errors alike."""
    async with a_rig(cors=CorsPolicy(frozenset({PAGE}))) as rig:
        rig.pod.plays([answer_bytes(chat_answer())], [STREAM_HEAD + chunked(chat_stream("Hi"))])
        client = await rig.client()
        for body, status in ((a_chat(), 200), (a_chat(stream=True), 200), (b"{", 400)):
            answer = await client.ask(CHAT_PATH, body, origin=PAGE)
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["access-control-expose-headers"] == "*"
        assert answer.body != DONE


@pytest.mark.parametrize("page", ["https://evil.example.com", "null", "https://app.example.com.evil.com", PAGE.upper()])
async def test_other_pages_may_not_ask(page: str) -> None:
    """Their preflight is a 405, and their answers name no origin, but that it depends on it."""
    async with a_rig(cors=CorsPolicy(frozenset({PAGE}))) as rig:
        client = await rig.client()
        assert (await client.ask(CHAT_PATH, method="OPTIONS", origin=page, **ASKED)).status == 405
        answer = await client.ask("/health", origin=page)
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "origin"
        assert (await client.ask(CHAT_PATH, method="OPTIONS", **ASKED)).status == 405


async def test_all_pages_may_ask_where_that_is_configured() -> None:
    """By a star; what a page wants to send is echoed only where it is names of headers."""
    async with a_rig(cors=CorsPolicy(frozenset({"*"}))) as rig:
        client = await rig.client()
        answer = await client.ask(
            CHAT_PATH, method="OPTIONS", origin="null", access_control_request_headers="x: y, <script>"
        )
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-headers"] == "authorization, content-type, x-api-key"
        assert "vary" not in answer.headers


@pytest.mark.parametrize("words", ["*", "https://a.example", "http://localhost:3000", "https://[::1]:8000"])
def test_origins_are_read(words: str) -> None:
    """As browsers send them."""
    assert parse_origin(words) == words


@pytest.mark.parametrize("words", ["app.example.com", "https://a.example/", "https://A.example", "https://a b", 7, ""])
def test_what_is_no_origin_is_rejected(words: object) -> None:
    """With a message that shows one."""
    with pytest.raises(InvalidValue):
        parse_origin(words)

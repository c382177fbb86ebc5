"""Targets that a client reaches: HTTP, bodies of every API, what its headers say."""

from __future__ import annotations

import contextlib
import json

from gateway.config.limits import Limits
from gateway.http.client_request import Asked, Budget
from gateway.http.request_headers import promised, retries
from gateway.http.request_reader import RequestReader
from gateway.pipeline.rejections import SAYINGS
from routing.reading import Reading, read_request
from routing.rejection import Fault, Refused
from routing.request import Api
from tenancy.objective import USUAL
from tests.fuzz.target import Target, cut, split

APIS = tuple(Api)

ROOM = 1 << 20


class Listening:
    """Takes what is read as the proxy does, and gives back the room that bodies took."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.open = 0

    def request_begins(self) -> None:
        self.open += 1

    def head_is_read(self, asked: Asked) -> None:
        assert asked.method

    def request_is_read(self, asked: Asked) -> None:
        if asked.refusal is not None:
            assert SAYINGS[asked.refusal.reason].fault is not Fault.POD
        asked.drop_body(self.budget)


def feed_http(raw: bytes) -> None:
    """A client's bytes in any pieces: each request is whole or refused, and no room stays taken."""
    steer, raw = split(raw)
    budget = Budget(ROOM)
    reader = RequestReader(Listening(budget), budget, Limits())
    for piece in cut(raw, steer):
        reader.feed(piece)
    reader.close()
    assert budget.held == 0


def feed_body(raw: bytes) -> None:
    """A body: read, or refused by the client's fault; what goes on to the pod is JSON where it was changed."""
    steer, raw = split(raw)
    api = APIS[steer % len(APIS)]
    reading: Reading | Refused
    try:
        reading = read_request(api, raw, request_id="r")
    except Refused as refusal:
        reading = refusal
    if isinstance(reading, Refused):
        assert SAYINGS[reading.reason].fault is Fault.CLIENT
        return
    assert reading.request.prompt.size >= 0
    assert reading.request.sequences >= 1
    if reading.body != raw:
        json.loads(reading.body)


def feed_spoken(raw: bytes) -> None:
    """Header values about deadlines and retries."""
    headers = {b"x-slo-ttft-ms": raw[:40], b"x-hearth-tpot-ms": raw[40:], b"x-stainless-retry-count": raw[:8]}
    assert 0 <= retries(headers) < 1000
    with contextlib.suppress(Refused):
        promise = promised(USUAL, headers)
        assert promise is not None


TARGETS = (
    Target(
        "http",
        feed_http,
        (b"\r\n", b"\r\n\r\n", b"content-length: 4\r\n", b"transfer-encoding: chunked\r\n", b"0\r\n\r\n", b"HTTP/1.1"),
    ),
    Target(
        "body",
        feed_body,
        (b'"messages":', b'"stream":true', b'"model":"m"', b'"content":', b"[{", b"}]", b"null", b"\\ud800", b"1e999"),
    ),
    Target("spoken", feed_spoken, (b"1", b".", b"e", b"-", b"inf", b"nan")),
)

"""Targets that a client reaches: HTTP, bodies of every API, what its headers say."""

from __future__ import annotations

import contextlib
import json

from gateway.config.limits import Limits
from gateway.http.client_request import BodyBudget, IncomingRequest
from gateway.http.request_headers import requested_slo, retry_count
from gateway.http.request_reader import RequestReader
from gateway.pipeline.rejections import RESPONSES
from routing.reading import ParsedRequest, read_request
from routing.rejection import ErrorOwner, RequestRejected
from routing.request import Api
from tenancy.objective import DEFAULT_TIER
from tests.fuzz.target import Target, cut, split

APIS = tuple(Api)

ROOM = 1 << 20


class Listening:
    """Takes what is read as the proxy does, and gives back the room that bodies took."""

    def __init__(self, budget: BodyBudget) -> None:
        self.budget = budget
        self.open = 0

    def on_request_begin(self) -> None:
        self.open += 1

    def on_head(self, incoming: IncomingRequest) -> None:
        assert incoming.method

    def on_request(self, incoming: IncomingRequest) -> None:
        if incoming.rejection is not None:
            assert RESPONSES[incoming.rejection.reason].fault is not ErrorOwner.POD
        incoming.drop_body(self.budget)


def feed_http(raw: bytes) -> None:
    """A client's bytes in any pieces: each request is whole or refused, and no room stays taken."""
    steer, raw = split(raw)
    budget = BodyBudget(ROOM)
    reader = RequestReader(Listening(budget), budget, Limits())
    for piece in cut(raw, steer):
        reader.feed(piece)
    reader.close()
    assert budget.held_bytes == 0


def feed_body(raw: bytes) -> None:
    """A body: read, or refused by the client's fault; what goes on to the pod is JSON where it was changed."""
    steer, raw = split(raw)
    api = APIS[steer % len(APIS)]
    reading: ParsedRequest | RequestRejected
    try:
        reading = read_request(api, raw, request_id="r")
    except RequestRejected as rejection:
        reading = rejection
    if isinstance(reading, RequestRejected):
        assert RESPONSES[reading.reason].fault is ErrorOwner.CLIENT
        return
    assert reading.request.prompt.size >= 0
    assert reading.request.sequences >= 1
    if reading.body != raw:
        json.loads(reading.body)


def feed_spoken(raw: bytes) -> None:
    """Header values about deadlines and retries."""
    headers = {b"x-slo-ttft-ms": raw[:40], b"x-hearth-tpot-ms": raw[40:], b"x-stainless-retry-count": raw[:8]}
    assert 0 <= retry_count(headers) < 1000
    with contextlib.suppress(RequestRejected):
        promise = requested_slo(DEFAULT_TIER, headers)
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

"""Unary calls to a pod: small requests of the gateway itself; it reads the complete response and sends none of it to a
client. One of them is the prefill attempt of a pair, which hands KV over to the decode engine.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

from gateway.http.response_writer import ResponseSource
from gateway.pipeline.attempt import AttemptStatus, PrefillResult
from gateway.relay.fast_path import ParsingConnection
from gateway.relay.pod_errors import read_error
from gateway.relay.relay import BUSY_STATUSES, KEY_REJECTED_STATUSES
from gateway.relay.upstream_connection import ResponseBodyHandler, ResponseHead
from gateway.relay.upstream_pool import PoolIsFull, UpstreamPool, no_connection
from routing.reading.responses import ReportedUsage, usage_of
from routing.request import Api

MAX_RESPONSE_BYTES = 4 << 20
"""Bytes of a response at most: one token, and where some ten thousand blocks lie, or a prompt's token ids."""


class UnaryResult(Struct, frozen=True):
    """Result of a unary call. `ANSWERED` with a status from 400 up: the pod has rejected the request."""

    end: AttemptStatus
    status: int = 0
    body: bytes = b""
    detail: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the pod has answered with success."""
        return self.end is AttemptStatus.OK and self.status < 400


async def call_unary(pool: UpstreamPool, url: str, question: list[bytes], by_s: float) -> UnaryResult:
    """Send a request, head and body, and return its result by the loop time `by_s`.

    Raises only `asyncio.CancelledError`.
    """
    try:
        call = await _send(pool, url, question, by_s, fresh=False)
        if call.was_stale:
            call = await _send(pool, url, question, by_s, fresh=True)
    except (PoolIsFull, OSError) as error:
        end, detail = no_connection(url, error)
        return UnaryResult(end, detail=detail)
    return call.result()


async def _send(pool: UpstreamPool, url: str, question: list[bytes], by_s: float, *, fresh: bool) -> UnaryCall:
    connection = (None if fresh else pool.lease_idle(url)) or await pool.connect(url)
    call = UnaryCall(pool.loop)
    connection.send_request(call, question, by_s)
    try:
        await call.ended
    except BaseException:
        connection.abort()  # The result is not needed any more: the engine stops.
        raise
    return call


class NullResponseWriter:
    """Stands in for a client's response writer: holds the connection, and writes nothing."""

    __slots__ = ("source",)

    def __init__(self) -> None:
        self.source: ResponseSource | None = None


class UnaryCall:
    """One unary call on a connection, and the handler of its body."""

    has_started = False

    __slots__ = ("_body", "_detail", "_end", "_status", "ended", "reply", "was_stale")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reply = NullResponseWriter()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.was_stale = False
        self._status = 0
        self._body = bytearray()
        self._end = AttemptStatus.OK
        self._detail = ""

    def finish_if_delivered(self) -> bool:
        """Return False: a body is complete at its end."""
        return False

    def open_response(self, head: ResponseHead) -> ResponseBodyHandler | None:
        """Return this call: all of the body is read, whatever its status."""
        self._status = head.status
        if head.is_encoded:
            self.fail(AttemptStatus.INVALID_RESPONSE, "The pod sent an unrequested Content-Encoding.")
            return None
        return self

    def take(self, payload: bytes) -> None:
        """Keep these bytes; end the call where the body is too large."""
        if len(self._body) + len(payload) > MAX_RESPONSE_BYTES:
            if self.reply.source is not None:
                self.reply.source.abort()
            self.fail(AttemptStatus.INVALID_RESPONSE, "The pod's response to the gateway is too large.")
            return
        self._body += payload

    def fast_path(self, line: ParsingConnection) -> None:
        """Return None: a body is few reads."""

    def end(self) -> None:
        """End the call: all of the body has come."""
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, end: AttemptStatus, detail: str) -> None:
        """End the call without a result."""
        if not self.ended.done():
            self._end, self._detail = end, detail
            self.ended.set_result(None)

    def result(self) -> UnaryResult:
        """Return the result of a call that has ended."""
        if self._end is not AttemptStatus.OK:
            return UnaryResult(self._end, detail=self._detail)
        body = bytes(self._body)
        return (
            UnaryResult(AttemptStatus.OK, self._status, body) if self._status < 400 else _rejected(self._status, body)
        )


def _rejected(status: int, body: bytes) -> UnaryResult:
    error = read_error(status, body)
    end = AttemptStatus.OK
    if error.status in BUSY_STATUSES:
        end = AttemptStatus.UPSTREAM_BUSY
    elif error.status in KEY_REJECTED_STATUSES or error.status >= 500:
        end = AttemptStatus.UPSTREAM_5XX
    return UnaryResult(end, error.status, detail=error.message)


# -- the prefill attempt of a pair -------------------------------------------------------------------------------------


class _PrefillResponse(msgspec.Struct):
    usage: ReportedUsage | None = None
    kv_transfer_params: Any = None


_DECODER = msgspec.json.Decoder(_PrefillResponse)


async def call_prefill(pool: UpstreamPool, url: str, question: list[bytes], by_s: float, api: Api) -> PrefillResult:
    """Send a prefill request, head and body, and return its usage and transfer parameters by the loop time `by_s`.

    `api`: whose format the response has. Raises only `asyncio.CancelledError`.
    """
    unary_result = await call_unary(pool, url, question, by_s)
    if not unary_result.is_success:
        return PrefillResult(unary_result.end, unary_result.status, detail=unary_result.detail)
    try:
        response = _DECODER.decode(unary_result.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return PrefillResult(
            AttemptStatus.INVALID_RESPONSE, unary_result.status, detail="The pod's prefill response is not JSON."
        )
    return PrefillResult(
        AttemptStatus.OK, unary_result.status, response.kv_transfer_params, usage_of(api, response.usage)
    )

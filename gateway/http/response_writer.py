"""The client's side of one answer: its head, its framing, its end. Everything a client is sent goes through here.

A body is framed in one of three ways: by its length, in chunks, or, for HTTP/1.0, by the end of the connection. Each
`send` leaves the body at a chunk's end, so that an error event, a withheld event or the end can always come next.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from enum import Enum
from http import HTTPStatus
from typing import Protocol

from gateway.http.client_request import Asked
from gateway.pipeline.outcome import HTTP
from gateway.pipeline.rejections import refusal_body, refusal_event, refusal_headers, status_of
from gateway.relay.downstream_transport import MakeCarrier
from routing.rejection import Refused
from routing.request import Api

JSON = "application/json"

SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
"""A client's request id that is fit to be echoed and logged."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

PHRASES = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}
"""The words after the number; Anthropic's 529 is in no registry."""

ENDED_BY_DONE = frozenset({Api.CHAT, Api.COMPLETIONS})
DONE_EVENT = b"data: [DONE]\n\n"

FAR = 1 << 29
"""Events; no stream has as many."""

UNBUFFERED = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
"""Said of a stream, so that proxies between us and the client pass every event on at once."""


class Framing(Enum):
    LENGTH = "length"
    CHUNKS = "chunks"
    UNTIL_CLOSE = "until close"


CHUNKS = Framing.CHUNKS


class Source(Protocol):
    """Where a streamed answer comes from: the pod's connection."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def abort(self) -> None: ...
    def leave(self) -> bool:
        """Abort, as the client has gone. Returns whether it had been sent the last words of its answer."""
        ...


class Reply:
    """The answer to one request. `answered` is called once, when its last byte is written."""

    __slots__ = (
        "_answered",
        "_echoed_id",
        "_framing",
        "_is_http_1_0",
        "_transport",
        "_wants_body",
        "_write",
        "api",
        "begun",
        "ended",
        "fields",
        "is_anthropic",
        "is_stream",
        "keep_alive",
        "make_carrier",
        "passed",
        "request_id",
        "shell",
        "source",
        "task",
        "write_chunk",
    )

    def __init__(
        self,
        asked: Asked,
        request_id: str,
        transport: asyncio.Transport,
        *,
        keep_alive: bool,
        answered: Callable[[], None],
    ) -> None:
        client_id = asked.headers.get(b"x-request-id", b"")
        self._echoed_id = client_id.decode("ascii") if SANE_ID.fullmatch(client_id) else request_id
        self._transport = transport
        self._write: Callable[[bytes], None] = transport.write
        self.write_chunk: Callable[[bytes], None] = transport.write
        self.passed: Callable[[int], int] = nobody_counts
        """Is told how many events have gone by `write_chunk`; says after how many more it wants to be told again."""
        self._answered = answered
        self._is_http_1_0 = asked.version == "1.0"
        self._wants_body = asked.method != "HEAD"
        self._framing = Framing.LENGTH
        self.request_id = request_id
        self.keep_alive = keep_alive
        self.api: Api | None = None
        self.is_anthropic = False
        """In whose dialect errors are told."""
        self.begun = False
        self.ended = False
        self.is_stream = False
        self.fields: tuple[tuple[str, str], ...] = ()
        """What the head says besides."""
        self.source: Source | None = None
        self.task: asyncio.Task[None] | None = None
        self.shell = HTTP
        self.make_carrier: MakeCarrier | None = None
        """How a request is carried, where not over a connection of ours."""

    def __repr__(self) -> str:
        return f"<Reply to {self.request_id}{', begun' * self.begun}{', ended' * self.ended}>"

    def answer(
        self, status: int, body: bytes, *, content_type: str = JSON, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Write a whole answer."""
        head = self._head(status, content_type, len(body), fields)
        self._write(head + body if self._wants_body else head)
        self._end()

    def begin(self, status: int, content_type: str, first: bytes, *, length: int | None, is_stream: bool) -> None:
        """Write the head and the first bytes of a body. `length` is that of the whole body, where it is known."""
        self.is_stream = is_stream
        if length is None:
            self._framing = Framing.UNTIL_CLOSE if self._is_http_1_0 else CHUNKS
            self.keep_alive = self.keep_alive and not self._is_http_1_0
        head = self._head(status, content_type, length, UNBUFFERED if is_stream else ())
        if self._framing is CHUNKS and first:
            first = b"%x\r\n%b\r\n" % (len(first), first)
        self._write(head + first)

    @property
    def is_chunked(self) -> bool:
        """Whether a body was begun that is framed in chunks, as `write_chunk` takes them."""
        return self.begun and self._framing is CHUNKS

    def send(self, payload: bytes) -> None:
        """Write a piece of body. Not empty: an empty chunk would be the last one."""
        if self._framing is CHUNKS:
            self._write(b"%x\r\n%b\r\n" % (len(payload), payload))
        else:
            self._write(payload)

    def write_by(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Have all but `write_chunk` write by something else from here on; returns what wrote it so far."""
        before, self._write = self._write, write
        return before

    def end(self) -> None:
        """Write the end of a body that was begun."""
        if self._framing is CHUNKS:
            self._write(LAST_CHUNK)
        self._end()

    def refuse(self, refusal: Refused, *, fields: Iterable[tuple[str, str]] = ()) -> None:
        """Say no: as a whole answer, as an event in a stream that has begun, or by cutting a body that has no room."""
        if self.ended:
            return
        if not self.begun:
            body = refusal_body(refusal, anthropic=self.is_anthropic, request_id=self.request_id)
            headers = (*refusal_headers(refusal, anthropic=self.is_anthropic).items(), *fields)
            self.answer(status_of(refusal.reason, anthropic=self.is_anthropic), body, fields=headers)
        elif self.is_stream:
            self.send(refusal_event(refusal, anthropic=self.is_anthropic, request_id=self.request_id))
            if self.api in ENDED_BY_DONE:
                self.send(DONE_EVENT)
            self.end()
        else:
            self.cut()

    def cut(self) -> None:
        """End the connection: the only honest way to end a body short of its length."""
        self._stop()
        self._transport.abort()

    def leave_off(self) -> None:
        """Write no more, though the body has not ended; what was written may still reach the client."""
        self._stop()

    def abandon(self) -> None:
        """The client has gone: nothing is written any more, and the pod is told at once."""
        if self.ended:
            return
        self.ended = True
        source, self.source = self.source, None
        has_all = source is not None and source.leave()
        if self.task is not None and not has_all:
            self.task.cancel()

    def _stop(self) -> None:
        self.ended = True
        if self.source is not None:
            self.source.abort()
            self.source = None

    def _end(self) -> None:
        self.ended = True
        self.source = None
        self._answered()

    def _head(self, status: int, content_type: str, length: int | None, fields: Iterable[tuple[str, str]]) -> bytes:
        self.begun = True
        head = f"HTTP/1.1 {status} {phrase_of(status)}\r\ncontent-type: {content_type}\r\n"
        head += f"x-request-id: {self._echoed_id}\r\n"
        if self.api is not None:
            head += f"x-hearth-receipt: {self.request_id}\r\n"
        if length is not None:
            head += f"content-length: {length}\r\n"
        elif self._framing is CHUNKS:
            head += "transfer-encoding: chunked\r\n"
        for name, value in fields:
            head += f"{name}: {value}\r\n"
        if self.fields:
            head += "".join([f"{name}: {value}\r\n" for name, value in self.fields])
        if not self.keep_alive:
            head += "connection: close\r\n"
        elif self._is_http_1_0:
            head += "connection: keep-alive\r\n"
        return f"{head}\r\n".encode("latin-1")


def nobody_counts(_events: int) -> int:
    """Who counts nothing wants to be told as seldom as counting down allows."""
    return FAR


def phrase_of(status: int) -> str:
    return PHRASES.get(status, "Unknown")

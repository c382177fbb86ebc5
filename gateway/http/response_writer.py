"""Writes one downstream response: head, framing, body and end. Everything sent to a client goes through it.

A body is framed by its length, in chunks, or, for HTTP/1.0, by the end of the connection. Each `send` ends at a chunk
boundary, so that an error event, a withheld event or the end can always follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from http import HTTPStatus
from typing import Protocol

from gateway.http.client_request import IncomingRequest
from gateway.http.request_headers import client_request_id_of
from gateway.pipeline.rejections import rejection_body, rejection_event, rejection_headers, status_of
from routing.rejection import RequestRejected
from routing.request import Api

JSON = "application/json"

NO_CONTENT = HTTPStatus.NO_CONTENT.value


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

PHRASES = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}
"""Reason phrases by status; Anthropic's 529 is not registered."""

APIS_ENDED_BY_DONE = frozenset({Api.CHAT, Api.COMPLETIONS})
DONE_EVENT = b"data: [DONE]\n\n"

UNBUFFERED_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
"""Headers of a stream that keep proxies from buffering its events."""


class Framing(Enum):
    """How the end of a body is marked."""

    LENGTH = "length"
    CHUNKS = "chunks"
    UNTIL_CLOSE = "until close"


CHUNKS = Framing.CHUNKS


class ResponseSource(Protocol):
    """The upstream connection that a response comes from."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def abort(self) -> None: ...
    def leave(self) -> bool:
        """Abort because the client has gone. Returns whether the end of the response had been sent to it."""
        ...


class ResponseWriter:
    """The response to one request. `answered` is called once, when its last byte is written."""

    __slots__ = (
        "_answered",
        "_echoed_id",
        "_framing",
        "_is_http_1_0",
        "_transport",
        "_wants_body",
        "_write",
        "api",
        "has_ended",
        "has_started",
        "headers",
        "is_anthropic",
        "is_stream",
        "keep_alive",
        "request_id",
        "source",
        "task",
        "was_paused",
        "write_chunk",
    )

    def __init__(
        self,
        incoming: IncomingRequest,
        request_id: str,
        transport: asyncio.Transport,
        *,
        keep_alive: bool,
        answered: Callable[[], None],
    ) -> None:
        self._echoed_id = client_request_id_of(incoming.headers) or request_id
        self._transport = transport
        self._write: Callable[[bytes], None] = transport.write
        self.write_chunk: Callable[[bytes], None] = transport.write
        self._answered = answered
        self._is_http_1_0 = incoming.version == "1.0"
        self._wants_body = incoming.method != "HEAD"
        self._framing = Framing.LENGTH
        self.request_id = request_id
        self.keep_alive = keep_alive
        self.api: Api | None = None
        self.is_anthropic = False
        """Whether errors have the format of Anthropic's API."""
        self.has_started = False
        self.has_ended = False
        self.was_paused = False
        """The client has read so slowly that the pod was paused."""
        self.is_stream = False
        self.headers: tuple[tuple[str, str], ...] = ()
        """Additional headers of the response."""
        self.source: ResponseSource | None = None
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ResponseWriter of {self.request_id}{', started' * self.has_started}{', ended' * self.has_ended}>"

    def answer(
        self, status: int, body: bytes, *, content_type: str = JSON, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Write a complete response."""
        head = self._head(status, content_type, len(body), fields)
        self._write(head + body if self._wants_body else head)
        self._end()

    def begin(self, status: int, content_type: str, first: bytes, *, length: int | None, is_stream: bool) -> None:
        """Write the head and the first bytes of a body. `length`: of the whole body in bytes, None if unknown."""
        self.is_stream = is_stream
        if status == NO_CONTENT:  # It has no body, so a length or a last chunk would be read as the next response.
            length, first = None, b""
        elif length is None:
            self._framing = Framing.UNTIL_CLOSE if self._is_http_1_0 else CHUNKS
            self.keep_alive = self.keep_alive and not self._is_http_1_0
        head = self._head(status, content_type, length, UNBUFFERED_HEADERS if is_stream else ())
        if self._framing is CHUNKS and first:
            first = b"%x\r\n%b\r\n" % (len(first), first)
        self._write(head + first)

    @property
    def is_chunked(self) -> bool:
        """Whether the response has begun with chunked framing, which `write_chunk` requires."""
        return self.has_started and self._framing is CHUNKS

    def send(self, payload: bytes) -> None:
        """Write a piece of body. `payload` is not empty: an empty chunk would end the body."""
        if self._framing is CHUNKS:
            self._write(b"%x\r\n%b\r\n" % (len(payload), payload))
        else:
            self._write(payload)

    def end(self) -> None:
        """End a body that has begun."""
        if self._framing is CHUNKS:
            self._write(LAST_CHUNK)
        self._end()

    def reject(self, rejection: RequestRejected, *, fields: Iterable[tuple[str, str]] = ()) -> None:
        """Reject: by a complete response, by an error event in a stream that has begun, else by closing the connection.

        Does nothing once the response has ended. `fields`: additional headers of a complete response.
        """
        if self.has_ended:
            return
        if not self.has_started:
            body = rejection_body(rejection, anthropic=self.is_anthropic, request_id=self.request_id)
            headers = (*rejection_headers(rejection, anthropic=self.is_anthropic).items(), *fields)
            self.answer(status_of(rejection.reason, anthropic=self.is_anthropic), body, fields=headers)
        elif self.is_stream:
            self.send(rejection_event(rejection, anthropic=self.is_anthropic, request_id=self.request_id))
            if self.api in APIS_ENDED_BY_DONE:
                self.send(DONE_EVENT)
            self.end()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection: the only valid way to end a body before its length."""
        self._stop()
        self._transport.abort()

    def stop_writing(self) -> None:
        """Stop writing without ending the body; what is in the write buffer is still sent."""
        self._stop()

    def abandon(self) -> None:
        """Stop because the client has gone: abort the upstream request and cancel the task."""
        if self.has_ended:
            return
        self.has_ended = True
        source, self.source = self.source, None
        has_all = source is not None and source.leave()
        if self.task is not None and not has_all:
            self.task.cancel()

    def _stop(self) -> None:
        self.has_ended = True
        if self.source is not None:
            self.source.abort()
            self.source = None

    def _end(self) -> None:
        self.has_ended = True
        self.source = None
        self._answered()

    def _head(self, status: int, content_type: str, length: int | None, fields: Iterable[tuple[str, str]]) -> bytes:
        self.has_started = True
        head = f"HTTP/1.1 {status} {phrase_of(status)}\r\ncontent-type: {content_type}\r\n"
        head += f"x-request-id: {self._echoed_id}\r\n"
        if self.api is not None:
            head += f"x-hearth-request-id: {self.request_id}\r\n"
        if length is not None:
            head += f"content-length: {length}\r\n"
        elif self._framing is CHUNKS:
            head += "transfer-encoding: chunked\r\n"
        for name, value in fields:
            head += f"{name}: {value}\r\n"
        if self.headers:
            head += "".join([f"{name}: {value}\r\n" for name, value in self.headers])
        if not self.keep_alive:
            head += "connection: close\r\n"
        elif self._is_http_1_0:
            head += "connection: keep-alive\r\n"
        return f"{head}\r\n".encode("latin-1", "replace")  # Names of models may be of any script.


def phrase_of(status: int) -> str:
    """Return the reason phrase of a status."""
    return PHRASES.get(status, "Unknown")

"""The response of one exchange: what Envoy shows of a pod's response goes into the relay, what comes out goes to Envoy.

How much can be seen and changed depends on the mode (`ResponseVisibility`); what the response means is the relay's
business, as for clients of our own port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import cast

from gateway.ext_proc import messages
from gateway.ext_proc.http2.stream import GrpcStream
from gateway.ext_proc.messages_pb2 import HeaderMap
from gateway.ext_proc.protocol import ResponseVisibility
from gateway.http.client_request import IncomingRequest
from gateway.http.response_writer import JSON, UNBUFFERED_HEADERS, ResponseWriter
from gateway.relay.fast_path import EVENT_END
from gateway.relay.relay import BUSY_STATUSES, EVENT_STREAM, KEY_REJECTED_STATUSES, Relay
from gateway.relay.upstream_connection import ResponseBodyHandler, ResponseHead

Fields = list[tuple[str, str]]


class ResponseSide:
    """The response side of one exchange; also what its reply writes to."""

    __slots__ = (
        *(
            "_answer",
            "_has_sent",
            "_has_begun_sending",
            "_is_over",
            "_sent_all",
            "_samples",
            "_stream",
            "_trailers_end",
        ),
        *("events", "has_received_head", "is_returned", "relay", "reply", "visible"),
    )

    def __init__(self, stream: GrpcStream, samples: Callable[[], bool], sent_all: Callable[[], None]) -> None:
        """`samples`: draws whether to observe a response that is not shown. `sent_all`: called after the last one."""
        self._stream = stream
        self._sent_all = sent_all
        self._samples = samples
        self.visible = ResponseVisibility.FULL
        self.reply: ExtProcResponseWriter | None = None
        self.relay: Relay | None = None
        self.events = 0
        """Events of a stream, as far as they were seen."""
        self.has_received_head = False
        self.is_returned = False
        """It comes from our own return listener: it was made there, and goes to the client as it is."""
        self._answer: ResponseBodyHandler | None = None
        self._has_begun_sending = False
        self._has_sent = False
        self._is_over = False
        self._trailers_end = False

    def close(self) -> None:
        """Stop sending: the stream is over."""
        self._is_over = True

    def detach(self) -> None:
        """Drop references after settlement: they form a cycle (see `http2.stream.NOBODY`)."""
        self.reply = self.relay = self._answer = None
        self._sent_all = _nothing

    @property
    def is_seen(self) -> bool:
        """Whether the response body is shown to us, so that its end will be."""
        return self._answer is not None

    @property
    def is_under_way(self) -> bool:
        return self.relay is not None and not self.relay.ended.done()

    # -- from Envoy ------------------------------------------------------------------------------------------

    def on_headers(self, head: ResponseHead, *, ends: bool) -> None:
        """Handle the pod's status and headers. They are answered now, or once the body has shown more."""
        self.has_received_head = True
        relay, reply = self.relay, self.reply
        if relay is None or reply is None or relay.ended.done():
            if not self._has_sent:
                self._stream.send(messages.RESPONSE_HEADERS_CONTINUE)
            return
        if self.visible is ResponseVisibility.FULL:
            self._answer = relay.open_response(head)
            if ends:
                self.on_end()
        elif is_upstream_error(head.status):
            rejection = relay.open_response(head)
            if rejection is not None:
                rejection.end()  # The client is told by whoever leads the request.
        else:
            self._let_pass(relay, reply, head, ends=ends)

    def _let_pass(self, relay: Relay, reply: ExtProcResponseWriter, head: ResponseHead, *, ends: bool) -> None:
        relay.status = head.status
        is_sample = False
        if head.status < 400 and not self.is_seen:
            if self.visible is ResponseVisibility.READ_ONLY:
                self._answer = relay.open_response(head)
            else:
                is_sample = not ends and self._samples()
                self._begin_blind(relay, head)
        self._has_begun_sending = True
        if not self.is_seen:  # Else it begins with its first token, as in every shell.
            reply.has_started = True
        self._stream.send(messages.response_head(reply.head_fields(), shows_body=is_sample))
        if ends:
            self.on_end()

    def _begin_blind(self, relay: Relay, head: ResponseHead) -> None:
        relay.is_stream = head.content_type.startswith(EVENT_STREAM)
        relay.recorder.is_whole = False
        relay.begin(head, b"", is_stream=relay.is_stream)

    def observe(self, head: ResponseHead) -> None:
        """Observe a response that a second filter shows; it cannot be changed."""
        if (
            self.relay is not None
            and self.is_under_way
            and self.visible is ResponseVisibility.HEADERS_ONLY
            and head.status < 400
        ):
            self._answer = self.relay.open_response(head)

    def on_body(self, piece: bytes, *, ends: bool) -> None:
        """Handle a piece of the body, and answer it as the mode demands."""
        if self.is_returned:
            self._echo(piece, ends=ends)
            return
        if self.visible is ResponseVisibility.FULL:
            self.feed(piece, ends=ends)
            return
        if self._answer is None and self.is_under_way and self.relay is not None and self.relay.status < 400:
            self._see_sample(self.relay)
        self.feed(piece, ends=ends)
        self._stream.send(messages.RESPONSE_BODY_CONTINUE)

    def _echo(self, piece: bytes, *, ends: bool) -> None:
        """Answer a piece of a body that passes unchanged."""
        if self.visible is not ResponseVisibility.FULL:
            self._stream.send(messages.RESPONSE_BODY_CONTINUE)
            return
        for chunk in messages.response_chunks(piece):
            self._stream.send(chunk)
        if ends:
            self._stream.send(messages.RESPONSE_END)

    def _see_sample(self, relay: Relay) -> None:
        """Start to observe a sampled response."""
        relay.recorder.is_whole = True
        kind = EVENT_STREAM if relay.is_stream else ""
        self._answer = relay.open_response(ResponseHead(relay.status, kind, None))

    def feed(self, piece: bytes, *, ends: bool) -> None:
        """Feed a piece of the response to the relay."""
        if self._answer is None or not self.is_under_way:
            return
        if piece:
            self.events += piece.count(EVENT_END)
            self._answer.take(piece)
        if ends:
            self.on_end()

    def on_trailers(self) -> None:
        """Handle trailers, which end the response."""
        self._trailers_end = True
        self.on_end()
        self._stream.send(messages.RESPONSE_TRAILERS_CONTINUE)

    def on_end(self) -> None:
        """Handle the end of the response."""
        if self.relay is None or self.relay.ended.done():
            return
        if self._answer is not None:
            self._answer.end()
        elif self.visible is not ResponseVisibility.FULL:
            self.relay.succeed()

    # -- from the reply ---------------------------------------------------------------------------------------

    def send_immediate(self, status: int, fields: Fields, body: bytes) -> None:
        if self._is_over or self._has_begun_sending:
            return
        self._has_begun_sending = self._has_sent = True
        self._stream.send(messages.immediate_response(status, fields, body, "hearth"))
        self._stream.finish()
        self._sent_all()

    def begin(self, fields: Fields) -> None:
        if self.visible is ResponseVisibility.FULL and not self._is_over:
            self._has_begun_sending = True
            self._stream.send(messages.response_head(fields))

    def write(self, piece: bytes) -> None:
        if self.visible is ResponseVisibility.FULL and not self._is_over:
            for chunk in messages.response_chunks(piece):
                self._stream.send(chunk)

    def end(self) -> None:
        if self.visible is ResponseVisibility.FULL and not self._is_over and not self._trailers_end:
            self._stream.send(messages.RESPONSE_END)

    def abort(self) -> None:
        """Reset a response that cannot be completed: the client sees its connection end."""
        if (
            self.visible is ResponseVisibility.FULL
            and self._has_begun_sending
            and not self._is_over
            and not self._has_sent
        ):
            self._is_over = True
            self._stream.reset()
            self._sent_all()


class ExtProcResponseWriter(ResponseWriter):
    """The response to one request behind Envoy: a `ResponseWriter` that writes to the response side instead of a
    socket.
    """

    __slots__ = ("_answer_side",)

    def __init__(self, asked: IncomingRequest, request_id: str, answer_side: ResponseSide) -> None:
        # Of a transport a reply wants to write, and to abort; without chunks it writes what it is given.
        transport = cast("asyncio.Transport", answer_side)
        super().__init__(asked, request_id, transport, keep_alive=True, answered=_nothing)
        self._answer_side = answer_side

    def answer(
        self, status: int, body: bytes, *, content_type: str = JSON, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.has_started = True
        chunk = [("content-type", content_type), *self.head_fields(), *fields]
        self._end()
        self._answer_side.send_immediate(status, chunk, body if self._wants_body else b"")

    def begin(self, status: int, content_type: str, first: bytes, *, length: int | None, is_stream: bool) -> None:
        self.has_started = True
        self.is_stream = is_stream
        self._answer_side.begin([*self.head_fields(), *(UNBUFFERED_HEADERS if is_stream else ())])
        if first:
            self._write(first)

    def end(self) -> None:
        self._answer_side.end()
        self._end()

    def head_fields(self) -> Fields:
        """Return the headers that the gateway adds to every response."""
        chunk = [("x-request-id", self._echoed_id)]
        if self.api is not None:
            chunk.append(("x-hearth-request-id", self.request_id))
        return [*chunk, *self.headers]


def head_of(headers: HeaderMap) -> ResponseHead:
    """Return what matters of a pod's response headers."""
    status, kind, length, encoded = 0, "", None, False
    for header in headers.headers:
        name = header.key
        if name == ":status":
            status = int(header.raw_value or header.value)
        elif name == "content-type":
            kind = (header.raw_value or header.value.encode()).decode("latin-1").lower()
        elif name == "content-length":
            length = int(header.raw_value or header.value)
        elif name == "content-encoding":
            encoded = (header.raw_value or header.value.encode()) != b"identity"
    return ResponseHead(status, kind, length, encoded)


def is_upstream_error(status: int) -> bool:
    """Return whether a status is an upstream error, which is reported to the client in the gateway's form."""
    return status >= 500 or status in BUSY_STATUSES or status in KEY_REJECTED_STATUSES


def _nothing() -> None:
    """Envoy ends the stream; no other request follows on it."""

"""One connection to a pod: one request at a time; its response is parsed by llhttp.

Theory of operation. The connection is in one of five states; `check` is called several times per timeout.

    state        is                                bytes go to      left by
    -----------  --------------------------------  ---------------  ---------------------------------------------------
    idle         `_exchange` None, in the pool     -> closed        `ask` -> head; `upstream_idle_s` passed -> closed
    head         `_exchange` set, `_body` None     parser           response head -> body; time-out, error -> closed
    body         `_body` set                       parser           a read that ends with its chunk -> passthrough; end
                                                                    of message -> idle, or closed if not reusable
    passthrough  `_fast_path` has the transport    `fast_path.py`   a read it does not pass on -> body (`take_back`)
    closed       transport closing                 dropped          final; the pool forgets the connection

Bytes flow in one direction: loop -> parser -> `on_body` -> body handler; nothing is queued and no task is woken. A pod
that goes silent is found by `check` from marks that reads leave (`_has_read`), so a read costs one store. However
the exchange ends, it is reported exactly once: to `end` of its body handler, or to `fail` of the exchange. `pause` and
`resume` are called by the client's side: back pressure reaches the pod through TCP, and paused time is not silence.

Independent of what requests and responses mean: it handles heads and bytes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct

from gateway.config.limits import Timeouts
from gateway.http.response_writer import ResponseSource
from gateway.pipeline.attempt import AttemptStatus
from gateway.relay.fast_path import ParsingConnection, PassthroughStream
from routing.stall_detection import StallVerdict, StreamWatch

MAX_HEAD_BYTES = 64 << 10
MAX_HEADER_FIELDS = 256
"""Header fields of a response at most. vLLM sends a handful."""

MAX_FRAMING_BYTES = 16 << 10
"""Consecutive bytes behind the head that are not body: trailers, chunk sizes and extensions. The parser adds up the
pieces of a trailer by copying, so its cost would grow with the square of the length."""

NEVER = float("inf")

CRLF = b"\r\n"
HEAD_END = b"\r\n\r\n"

POD_GONE = "The pod shut down before the response was complete."

STALL_ENDS = {
    StallVerdict.ENGINE: (AttemptStatus.ENGINE_HUNG, "The pod's engine is hung: no output on any stream."),
    StallVerdict.STREAM: (AttemptStatus.TIMEOUT, "The pod's stream stalled."),
}
"""Verdict of the stall timer to how the attempt ends, and the detail that is logged."""


class ResponseHead(Struct, frozen=True, gc=False):
    """The head of a response, as far as it matters. `length` is None where only the end of the body tells it."""

    status: int
    content_type: str
    length: int | None
    is_encoded: bool = False
    """It has a content coding, which was not requested."""
    retry_after: str = ""
    """The header as sent; empty without one."""


class ResponseBodyHandler(Protocol):
    """Handles the body of one response."""

    def take(self, payload: bytes) -> None:
        """Handle the next bytes of the body, never empty."""
        ...

    def fast_path(self, line: ParsingConnection) -> PassthroughStream | None:
        """Return the fast path for the chunks that follow, None where the body has to be parsed."""
        ...

    def end(self) -> None:
        """Handle the end of the body."""
        ...


class ResponseReceiver(Protocol):
    """Receives a response: a client's response writer, or the collector of a unary call."""

    source: ResponseSource | None
    """The connection that the response comes from, None where there is none (any more)."""


LET_GO_S = 10.0
"""Seconds of pause in all after which an engine is taken to have completed the answer."""


class UpstreamExchange(Protocol):
    """One request and its response on a connection."""

    was_stale: bool
    """Set by the connection: the pod closed it, perhaps before the request arrived."""

    @property
    def ended(self) -> asyncio.Future[None]:
        """Done once its response has ended."""
        ...

    @property
    def reply(self) -> ResponseReceiver: ...
    @property
    def has_started(self) -> bool:
        """Whether this pod's own output has begun to reach the receiver."""
        ...

    def finish_if_delivered(self) -> bool:
        """End it as answered if its last event has been passed on; return whether that is so."""
        ...

    def open_response(self, head: ResponseHead) -> ResponseBodyHandler | None:
        """Return the handler of the body; None if the response is rejected, and the exchange has failed."""
        ...

    def fail(self, end: AttemptStatus, detail: str) -> None:
        """End it without a response."""
        ...


class ConnectionOwner(Protocol):
    """The pool, as its connections use it."""

    timeouts: Timeouts

    def release(self, line: UpstreamConnection) -> None:
        """Take a connection that is idle again."""
        ...

    def forget(self, line: UpstreamConnection) -> None:
        """Forget a connection that is closed."""
        ...

    def knows(self, url: str) -> bool:
        """Whether the fleet still has a pod at this URL."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """A keep-alive connection to one pod. See the table of its states at the top of the module."""

    def __init__(self, owner: ConnectionOwner, url: str) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._exchange: UpstreamExchange | None = None
        self._body: ResponseBodyHandler | None = None
        self._fast_path: PassthroughStream | None = None
        """The fast path of this response; the protocol of the transport while in state passthrough."""
        # Callbacks of the parser that are C functions: no chunk and no header costs a Python call.
        self._pieces: list[bytes] = []
        self._chunk_ends: list[None] = []
        """One item between two chunks, none within a chunk."""
        self._headers: dict[bytes, bytes] = {}
        self._head: ResponseHead | None = None
        self.on_body: Callable[[bytes], None] = self._pieces.append
        self.on_chunk_header: Callable[[], None] = self._chunk_ends.clear
        self.on_chunk_complete: Callable[[], None] = partial(self._chunk_ends.append, None)
        self.on_header: Callable[[bytes, bytes], None] = self._headers.__setitem__
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._is_abandoned = False
        self._is_paused = False
        self._has_read = False
        self._last_read_s = self._sent_s = self._loop.time()
        self._due_s = NEVER
        self._stall_timer: StreamWatch | None = None
        self._let_go: Callable[[float], None] | None = None
        self._paused_s = 0.0
        """For how long the response in flight was paused."""
        self._reset_message()
        self.url = url
        self.was_used = False
        """It has carried a response before: a pod may close it between two requests without a fault."""

    def __repr__(self) -> str:
        state = "closed" if not self.is_open else "busy" if self._exchange else "idle"
        return f"<{type(self).__name__} to {self.url}, {state}>"

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send_request(
        self,
        exchange: UpstreamExchange,
        question: list[bytes],
        first_byte_by_s: float,
        timer: StreamWatch | None = None,
        let_go: Callable[[float], None] | None = None,
    ) -> None:
        """Send a request, head and body in `question`; the response goes to `exchange`, and so does how it ends.

        `first_byte_by_s` is in loop time. `timer` says whether the engine has been silent for too long; without it only
        time-outs end the wait. `let_go` is called with the loop time when the pod was paused for `LET_GO_S` in all.
        """
        assert self._transport is not None  # noqa: S101 - a connection is leased only when it is open
        self._reset_message()
        self._exchange = exchange
        self._stall_timer = timer
        self._let_go, self._paused_s = let_go, 0.0
        exchange.reply.source = self
        self._has_read = False
        self._last_read_s = self._sent_s = self._loop.time()
        self._due_s = first_byte_by_s
        self._transport.writelines(question)

    def set_unacknowledged_timeout(self, seconds: float) -> None:
        """Have the system end the connection if what is sent stays unacknowledged for so long, where it can."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        held = None if self._transport is None else self._transport.get_extra_info("socket")
        if option is not None and held is not None:
            with suppress(OSError):
                held.setsockopt(socket.IPPROTO_TCP, option, max(1, int(seconds * 1000)))

    # -- called from the downstream side ---------------------------------------------------------------------------

    def pause(self) -> None:
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            self._has_read = True
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once: the engine stops with its next step."""
        self._is_abandoned = True
        if self._fast_path is not None:
            self._fast_path.report_count()
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> bool:
        has_all = self._exchange is not None and self._exchange.finish_if_delivered()
        self.abort()
        return has_all

    # -- called by the event loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._is_abandoned:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._has_read = True
        self._parse(data)

    def resume_parsing(self, left: bytes) -> None:
        """Parse what the fast path did not pass on, and what comes behind it."""
        if self._fast_path is not None and self._transport is not None:
            self._transport.set_protocol(self)
        self._fast_path = None
        self._has_read = True
        self._parse(left)

    def _parse(self, data: bytes) -> None:
        if self._exchange is None:  # Bytes without a request.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._is_reusable = False
            if not self._is_complete:
                self._fail(AttemptStatus.INVALID_RESPONSE, "The pod's response is not valid HTTP/1.1.")
                return
        body = self._body or self._open_response(data)
        if body is None:
            return
        pieces = self._pieces
        if pieces:
            payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._framing_bytes = 0
            body.take(payload)
        elif not self._is_complete and not self._bounds_framing(len(data)):
            return
        if self._is_complete:
            self._complete(body)
        elif self._chunk_ends and data.endswith(CRLF) and self._transport is not None:
            self._fast_path = body.fast_path(self)
            if self._fast_path is not None:
                self._transport.set_protocol(self._fast_path)

    def _bounds_framing(self, count: int) -> bool:
        """Count bytes that are not body, and fail the exchange where they are too many. Returns whether it goes on."""
        self._framing_bytes += count
        if self._framing_bytes <= MAX_FRAMING_BYTES:
            return True
        self._fail(
            AttemptStatus.INVALID_RESPONSE, "The trailers or chunk extensions of the pod's response are too large."
        )
        return False

    def eof_received(self) -> None:
        if self._exchange is not None and self._body is not None and self._ends_with_connection:
            self._is_reusable = False
            self._complete(self._body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(
            AttemptStatus.CONNECTION_RESET,
            "The pod closed the connection." if exc is None else f"The connection to the pod broke: {exc}",
        )
        del self._parser  # It holds our methods: without it there is no cycle to collect.
        self._owner.forget(self)

    # -- called by the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise ValueError("a second answer to one question")

    def on_headers_complete(self) -> None:
        """Read the head at once: trailers are put among the headers as well, perhaps in the same read."""
        self._status = status = self._parser.get_status_code()
        headers = self._headers
        if status >= 200:
            length = content_type = coding = None
            is_encoded, retry_after = False, b""
            for name, value in headers.items():
                match name.lower():
                    case b"content-type":
                        content_type = value
                    case b"content-length":
                        length = int(value)
                    case b"transfer-encoding":
                        coding = value
                    case b"content-encoding":
                        is_encoded = True
                    case b"retry-after":
                        retry_after = value
            self._ends_with_connection = length is None and coding is None
            self._head = ResponseHead(
                status,
                (content_type or b"application/octet-stream").decode("latin-1"),
                length,
                is_encoded or coding not in {None, b"chunked"},
                retry_after.decode("latin-1"),
            )
        headers.clear()

    def on_message_complete(self) -> None:
        if self._head is None:  # An interim response.
            return
        self._is_complete = True
        self._is_reusable = self._parser.should_keep_alive()

    # -- one response ----------------------------------------------------------------------------------------------

    def _open_response(self, data: bytes) -> ResponseBodyHandler | None:
        """Read more of the head. Returns the handler of the body; None until the head is complete, or if it fails."""
        exchange, head = self._exchange, self._head
        if exchange is None:
            return None
        self._head_bytes += len(data)
        end = data.find(HEAD_END)
        # The parser reports a repeated field once. A read that ends a head begun in another is not counted.
        if end >= 0 or head is None:
            self._header_count += data.count(b"\n", 0, end if end >= 0 else len(data))
        if self._header_count > MAX_HEADER_FIELDS or (head is None and self._head_bytes > MAX_HEAD_BYTES):
            self._fail(AttemptStatus.INVALID_RESPONSE, "The headers of the pod's response are too large.")
        elif head is not None:
            self._body = exchange.open_response(head)
            if self._body is None:
                self.abort()
        return self._body

    def _complete(self, body: ResponseBodyHandler) -> None:
        exchange, self._exchange, self._body, self._fast_path = self._exchange, None, None, None
        # An error response of the server is no sign of life of its engine.
        self._end_stall_timer(lives=self._status < 400)
        if exchange is not None:
            exchange.reply.source = None
        self._due_s = self._loop.time() + self._owner.timeouts.upstream_idle_s
        self.was_used = True
        # The connection first, then the end: what the end sets off may lease a connection at once.
        if self._is_reusable and self._transport is not None and not self._transport.is_closing():
            if self._is_paused:
                self.resume()
            self._owner.release(self)
        else:
            self.abort()
        if exchange is not None and not exchange.ended.done():
            body.end()

    def _fail(self, end: AttemptStatus, detail: str) -> None:
        has_read = self._has_read
        if self._fast_path is not None:
            has_read |= self._fast_path.has_read
            self._fast_path.report_count()
        exchange, self._exchange, self._body, self._fast_path = self._exchange, None, None, None
        self._end_stall_timer(lives=has_read and exchange is not None and exchange.has_started)
        self.abort()
        if exchange is not None:
            if exchange.reply.source is self:  # Another pod may be answering already.
                exchange.reply.source = None
            exchange.was_stale = end is AttemptStatus.CONNECTION_RESET and self.was_used and not self._head_bytes
            exchange.fail(end, detail)

    def _reset_message(self) -> None:
        self._body = None
        self._fast_path = None
        self._chunk_ends.clear()
        self._headers.clear()
        self._head = None
        self._header_count = 0
        self._head_bytes = 0
        self._framing_bytes = 0
        self._status = 0
        self._is_complete = False
        self._is_reusable = False
        self._ends_with_connection = False

    # -- waiting ---------------------------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """End what is overdue at this loop time: a response, its next bytes, or the idle connection itself."""
        late = self._note_silence(now_s)
        if self._exchange is None:
            if now_s >= self._due_s or not self._owner.knows(self.url):
                self.abort()
        elif late is not None:
            end, what = STALL_ENDS[late]
            self._fail(end, what)
        elif now_s >= self._due_s:
            self._fail(AttemptStatus.TIMEOUT, "Timeout while waiting for the pod's response.")

    def last_heard_s(self) -> float:
        """Return the loop time, as of now, at which the last byte of its last response came; -inf without one."""
        self._note_silence(self._loop.time())
        return self._last_read_s if self._last_read_s > self._sent_s else -NEVER

    @property
    def waiting_since_s(self) -> float | None:
        """Loop time at which the request in flight was sent; None without one."""
        return None if self._exchange is None else self._sent_s

    def fail_if_silent(self, silent_s: float, detail: str = POD_GONE) -> bool:
        """Fail the request in flight if no byte has come for so long; close an idle connection.

        `detail` is logged. Returns whether a request was failed.
        """
        now_s = self._loop.time()
        self._note_silence(now_s)
        if self._exchange is None:
            self.abort()
        elif now_s - self._last_read_s >= silent_s:
            self._fail(AttemptStatus.CONNECTION_RESET, detail)
            return True
        return False

    def _note_silence(self, now_s: float) -> StallVerdict | None:
        """Note whether bytes have come since the last call; return the stall verdict if they have not for too long."""
        flow, timer = self._fast_path, self._stall_timer
        has_read = self._has_read or (flow is not None and flow.has_read)
        self._has_read = False
        if flow is not None:
            flow.has_read = False
        exchange = self._exchange
        if has_read or self._is_paused:  # Paused is not silent.
            if self._is_paused:
                self._note_pause(now_s)
            self._last_read_s = now_s
            if exchange is not None and exchange.has_started:
                self._due_s = now_s + self._owner.timeouts.upstream_read_s
        if timer is None or exchange is None:
            return None
        if self._is_paused:
            timer.paused(now_s)
        elif has_read:
            timer.data_received(now_s, has_started=exchange.has_started)
        else:
            return timer.check_silence(now_s)
        return None

    def _note_pause(self, now_s: float) -> None:
        """Count time for which the pod was paused. Engines do not wait for clients: the answer is complete in time, and
        loads its engine no longer, however long its client reads it.
        """
        self._paused_s += now_s - self._last_read_s
        if self._let_go is not None and self._paused_s >= LET_GO_S:
            let_go, self._let_go = self._let_go, None
            let_go(now_s)

    def _end_stall_timer(self, *, lives: bool) -> None:
        """End the stall timer. `lives`: the engine has answered since the last look."""
        timer, self._stall_timer = self._stall_timer, None
        if timer is None:
            return
        if lives:
            timer.finished(self._loop.time())
        else:
            timer.stop()

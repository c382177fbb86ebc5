"""A connection to a pod: one question at a time, and its answer read by llhttp.

Knows nothing of what is asked or answered: heads and payloads go to a `Relay`, say. Whole chunks of a stream
that flows go on as they came (`flow.py`): llhttp, which waits for the next chunk's size, need not see them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.config.port_limits import Timeouts
from gateway.http.response_writer import Source
from gateway.pipeline.attempt import LegEnd
from gateway.relay.bodies import Answer, PodHead
from gateway.relay.fast_path import Flow
from routing.stall_detection import Late, Vigil

HEAD_BYTES = 64 << 10
HEADERS = 256
"""Of a pod's answer. vLLM sends a handful."""

FRAMING_BYTES = 16 << 10
"""Behind the head of a pod's answer that are not body and follow each other: trailers, chunk sizes and extensions. The
parser adds up the pieces of a trailer by copying, so its cost would grow with the square of the length."""

NEVER = float("inf")

CRLF = b"\r\n"

SILENCES = {
    Late.ENGINE: (LegEnd.HUNG, "The pod's engine has fallen silent."),
    Late.STREAM: (LegEnd.TIMEOUT, "The pod has gone silent inside its answer."),
}
"""What a silence that lasts too long is the end of an attempt as, and in what words."""


class Telling(Protocol):
    """Who is told of an answer as it comes: a client's reply, or nobody."""

    source: Source | None

    @property
    def begun(self) -> bool: ...


class Carried(Protocol):
    """What a line carries: somebody's question, and what is done with its answer."""

    was_stale: bool
    ended: asyncio.Future[None]

    @property
    def reply(self) -> Telling: ...
    @property
    def has_begun(self) -> bool:
        """Whether this pod's own answer has begun to reach whoever it is for."""
        ...

    def has_told_all(self) -> bool:
        """End it as answered where its last words have been passed on, and say whether that is so."""
        ...

    def open_answer(self, head: PodHead) -> Answer | None: ...
    def fail(self, end: LegEnd, detail: str) -> None: ...


class Owner(Protocol):
    """Where a connection goes when it is free, and who forgets it when it is closed."""

    timeouts: Timeouts

    def give_back(self, line: Line) -> None: ...
    def forget(self, line: Line) -> None: ...
    def knows(self, url: str) -> bool: ...


class Line(asyncio.Protocol):
    """Idle in the pool, or carrying one relay."""

    def __init__(self, owner: Owner, url: str) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._relay: Carried | None = None
        self._answer: Answer | None = None
        self._flow: Flow | None = None
        """Has the connection while the answer flows and all reads have ended where a chunk ends."""
        self._pieces: list[bytes] = []
        self.on_body: Callable[[bytes], None] = self._pieces.append  # Called by the parser, without a frame between.
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._is_abandoned = False
        self._is_paused = False
        self._has_stirred = False
        self._heard_s = self._loop.time()
        self._due_s = NEVER
        self._vigil: Vigil | None = None
        self._forget_message()
        self.url = url
        self.was_used = False
        """It has carried an answer before: that the pod closes it meanwhile is nobody's fault."""

    def __repr__(self) -> str:
        state = "closed" if not self.is_open else "busy" if self._relay else "idle"
        return f"<Line to {self.url}, {state}>"

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, relay: Carried, question: list[bytes], first_byte_by_s: float, vigil: Vigil | None = None) -> None:
        """Send a request. Its answer goes to `relay`, which is told the end in any case.

        `vigil` says whether the engine has been silent for too long; without it only time-outs do.
        """
        assert self._transport is not None  # noqa: S101 - a line is handed out only when it is connected
        self._forget_message()
        self._relay = relay
        self._vigil = vigil
        relay.reply.source = self
        self._has_stirred = False
        self._heard_s = self._loop.time()
        self._due_s = first_byte_by_s
        self._transport.writelines(question)

    # -- what the client's side asks for ---------------------------------------------------------------------------

    def pause(self) -> None:
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            self._has_stirred = True
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once: the pod's engine stops with its next step."""
        self._is_abandoned = True
        if self._flow is not None:
            self._flow.count()
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> bool:
        has_all = self._relay is not None and self._relay.has_told_all()
        self.abort()
        return has_all

    # -- what the loop tells ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._is_abandoned:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._has_stirred = True
        self._parse(data)

    def take_back(self, left: bytes) -> None:
        """Read what the flow did not pass on, and what comes behind it."""
        self._leave_flow()
        self.data_received(left)

    def _parse(self, data: bytes) -> None:
        if self._relay is None:  # Nobody asked.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._is_reusable = False
            if not self._is_complete:
                self._fail(LegEnd.MALFORMED, "The pod's answer is not valid HTTP/1.1.")
                return
        answer = self._answer or self._open_answer(len(data))
        if answer is None:
            return
        pieces = self._pieces
        if pieces:
            payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._framing_bytes = 0
            answer.take(payload)
        elif not self._is_complete:
            self._framing_bytes += len(data)
            if self._framing_bytes > FRAMING_BYTES:
                self._fail(LegEnd.MALFORMED, "The trailers or chunk extensions of the pod's answer are too large.")
                return
        if self._is_complete:
            self._complete(answer)
        elif self._is_between_chunks and data.endswith(CRLF):
            self._enter_flow(answer)

    def eof_received(self) -> None:
        if self._relay is not None and self._answer is not None and self._ends_with_connection:
            self._is_reusable = False
            self._complete(self._answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(
            LegEnd.LOST, "The pod closed the connection." if exc is None else f"The connection to the pod broke: {exc}"
        )
        del self._parser  # It holds our methods: without it there is no cycle to collect.
        self._owner.forget(self)

    # -- what the parser tells -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise ValueError("a second answer to one question")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return
        self._header_count += 1
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._has_head = True
            self._status = status
        self._is_interim = status < 200

    def on_chunk_header(self) -> None:
        self._is_between_chunks = False

    def on_chunk_complete(self) -> None:
        self._is_between_chunks = True

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._headers.clear()
            return
        self._is_complete = True
        self._is_reusable = self._parser.should_keep_alive()

    # -- one answer ------------------------------------------------------------------------------------------------

    def _open_answer(self, count: int) -> Answer | None:
        relay = self._relay
        self._head_bytes += count
        if relay is None:
            return None
        if self._header_count > HEADERS or (not self._has_head and self._head_bytes > HEAD_BYTES):
            self._fail(LegEnd.MALFORMED, "The head of the pod's answer is too large.")
        elif self._has_head:
            self._answer = relay.open_answer(self._head())
            if self._answer is None:
                self.abort()
        return self._answer

    def _head(self) -> PodHead:
        headers = self._headers
        length = headers.get(b"content-length")
        coding = headers.get(b"transfer-encoding")
        self._ends_with_connection = length is None and coding is None
        return PodHead(
            status=self._status,
            content_type=headers.get(b"content-type", b"application/octet-stream").decode("latin-1"),
            length=None if length is None else int(length),
            is_encoded=b"content-encoding" in headers or coding not in {None, b"chunked"},
        )

    def _complete(self, answer: Answer) -> None:
        relay, self._relay, self._answer, self._flow = self._relay, None, None, None
        # What a server says no with is no sign of its engine.
        self._end_vigil(lives=self._status < 400)
        if relay is not None:
            relay.reply.source = None
        self._due_s = self._loop.time() + self._owner.timeouts.pod_idle_s
        self.was_used = True
        # First the line, then the end: what the end sets off may want a line at once.
        if self._is_reusable:
            self.resume()
            self._owner.give_back(self)
        else:
            self.abort()
        if relay is not None and not relay.ended.done():
            answer.end()

    def _fail(self, end: LegEnd, detail: str) -> None:
        has_stirred = self._has_stirred
        if self._flow is not None:
            has_stirred |= self._flow.has_stirred
            self._flow.count()
        relay, self._relay, self._answer, self._flow = self._relay, None, None, None
        self._end_vigil(lives=has_stirred and relay is not None and relay.has_begun)
        self.abort()
        if relay is not None:
            if relay.reply.source is self:  # Another pod may be answering already.
                relay.reply.source = None
            relay.was_stale = end is LegEnd.LOST and self.was_used and not self._head_bytes
            relay.fail(end, detail)

    def _forget_message(self) -> None:
        self._answer = None
        self._flow = None
        self._is_between_chunks = False
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._head_bytes = 0
        self._framing_bytes = 0
        self._status = 0
        self._has_head = False
        self._is_interim = False
        self._is_complete = False
        self._is_reusable = False
        self._ends_with_connection = False

    def _enter_flow(self, answer: Answer) -> None:
        self._flow = answer.flow(self)
        if self._flow is not None and self._transport is not None:
            self._transport.set_protocol(self._flow)

    def _leave_flow(self) -> None:
        if self._flow is not None and self._transport is not None:
            self._transport.set_protocol(self)
        self._flow = None

    # -- waiting ---------------------------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """End what has waited too long: for an answer, for its next bytes, for a next question."""
        late = self._hear(now_s)
        if self._relay is None:
            if now_s >= self._due_s or not self._owner.knows(self.url):
                self.abort()
        elif late is not None:
            end, what = SILENCES[late]
            self._fail(end, what)
        elif self._relay.has_begun and self._heard_s == now_s:
            self._due_s = now_s + self._owner.timeouts.stall_s
        elif now_s >= self._due_s:
            self._fail(LegEnd.TIMEOUT, "The pod has been silent for too long.")

    def cut_silent(self, silent_s: float) -> bool:
        """Take the pod for gone where it has said nothing for so long. Returns whether somebody was waiting for it."""
        now_s = self._loop.time()
        self._hear(now_s)
        if self._relay is None:
            self.abort()
        elif now_s - self._heard_s >= silent_s:
            self._fail(LegEnd.LOST, "The pod has shut down without ending its answer.")
            return True
        return False

    def _hear(self, now_s: float) -> Late | None:
        """Note whether anything has come since this was asked last; where not, whether that is too long by now."""
        flow, vigil = self._flow, self._vigil
        has_stirred = self._has_stirred or (flow is not None and flow.has_stirred)
        self._has_stirred = False
        if flow is not None:
            flow.has_stirred = False
        if has_stirred or self._is_paused:  # Who is paused is not silent.
            self._heard_s = now_s
        if vigil is None or self._relay is None:
            return None
        if self._is_paused:
            vigil.paused(now_s)
        elif has_stirred:
            vigil.heard(now_s, has_begun=self._relay.has_begun)
        else:
            return vigil.silent(now_s)
        return None

    def _end_vigil(self, *, lives: bool) -> None:
        """`lives`: its engine has answered since the last look."""
        vigil, self._vigil = self._vigil, None
        if vigil is None:
            return
        if lives:
            vigil.answered(self._loop.time())
        else:
            vigil.over()

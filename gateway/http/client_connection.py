"""One client's connection: requests in the order they are asked, answers in the same order, and how long each may take.

A client that closes its side has gone, also one that might still read: nobody can tell the two apart before an answer
is written, and an engine would go on working for nobody (nginx decides alike).
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Protocol, cast

from gateway.config.port_limits import Limits, Timeouts
from gateway.http.client_request import Asked, Budget
from gateway.http.request_reader import RequestReader
from gateway.http.response_writer import CONTINUE, Reply
from gateway.runtime.closing import has_unread
from routing.rejection import Reason, Refused

SLICE_BYTES = 8 << 10
"""Given to the parser at a time, so that one read full of tiny requests cannot run far ahead of the answers."""

HEAD_END = b"\r\n\r\n"

LINGER_S = 5.0
LINGER_IN_ALL_S = 30.0
"""A client that was refused while it was still sending is listened to a little longer: closing at once would reset the
connection, and the refusal would be lost before it is read (nginx's lingering_close)."""

FAREWELL_S = 1.0
"""So long a client may take to close after its last answer: what it has sent behind its request, or sends before it has
read that nothing more is answered, would reset the connection under that answer."""

LAST_CALL_S = 1.0
"""How long a gateway that goes keeps a connection between two requests: one that is used at all is mostly used by
then, and that request's answer says `Connection: close`. To close at once would meet requests that are on their way."""

NEVER = float("inf")


class Wait(Enum):
    """What the client is waited for."""

    NOTHING = "nothing"
    REQUEST = "request"
    HEAD = "head"
    BODY = "body"
    LEAVING = "leaving"


class Host(Protocol):
    """What a connection needs of the front it belongs to."""

    limits: Limits
    timeouts: Timeouts
    budget: Budget
    kept_headers: set[bytes]

    @property
    def is_draining(self) -> bool: ...

    def admit(self, connection: ClientConnection) -> bool:
        """Whether there is room for one more connection."""
        ...

    def forget(self, connection: ClientConnection) -> None: ...

    def route(self, asked: Asked, transport: asyncio.Transport) -> None:
        """Look at a head, and at where it comes from, before its body is read. Raises `Refused`."""
        ...

    def serve(self, asked: Asked, reply: Reply) -> None:
        """Answer a request, now or later. Raises nothing."""
        ...

    def new_id(self) -> str: ...


class ClientConnection(asyncio.Protocol):
    """Reads ahead while an answer is on its way, within bounds; serves one request at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(self, host.budget, host.limits, host.kept_headers)
        self._unread = b""
        self._waiting: deque[Asked] = deque()
        self._serving: Asked | None = None
        self._reply: Reply | None = None
        self._is_advancing = False
        self._is_closing = False
        self._linger_s = 0.0
        self._is_stalled = False
        self._wait = Wait.NOTHING
        self._wait_until_s: float | None = None
        """None where its reason is new: the patrol's next look sets it, so that no request pays for reading a clock."""
        self._linger_until_s = NEVER
        self._stalled_until_s = NEVER
        self._stalled_bytes = 0
        self.transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"<ClientConnection waiting for {self._wait.value}, {len(self._waiting)} ahead, {self._reply}>"

    @property
    def is_idle(self) -> bool:
        """Between requests."""
        return self._reply is None and self._reader.reading is None and not self._waiting

    # -- what the loop tells ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self._host.limits.high_water_bytes)
        self._await(Wait.REQUEST)
        if not self._host.admit(self):
            self._reader.refuse(Refused(Reason.GATEWAY_BUSY, "There are too many connections.", retry_after_s=1.0))
            self._advance()

    def data_received(self, data: bytes) -> None:
        if self._reader.is_deaf:
            self._linger()
        elif self._unread:
            self._unread += data
        elif len(data) <= SLICE_BYTES and not self._waiting:
            self._reader.feed(data)
            self._advance()
        else:
            self._read(data)

    def eof_received(self) -> None:
        if self._is_closing:
            return  # The transport closes, once it has written what there is.
        if self._reader.reading is not None and self._reply is None:
            self._reader.refuse(Refused(Reason.BAD_REQUEST, "The connection ended inside the request."))
            self._advance()
        elif not self.is_idle:
            self._leave()
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._host.forget(self)

    def pause_writing(self) -> None:
        self._is_stalled = True
        self._expect_reading()
        if self._reply is not None and self._reply.source is not None:
            self._reply.source.pause()

    def resume_writing(self) -> None:
        self._is_stalled = False
        if self._is_closing:
            return
        self._stalled_until_s = NEVER
        if self._reply is not None and self._reply.source is not None:
            self._reply.source.resume()
        self._go_on()

    # -- reading ---------------------------------------------------------------------------------------------------

    def request_begins(self) -> None:
        self._await(Wait.HEAD)

    def head_is_read(self, asked: Asked) -> None:
        self._await(Wait.BODY)
        self._host.route(asked, self.transport)
        asked.check_share(self._host.budget)
        # Behind an unanswered request it cannot be said yet; that client may wait or send, as it likes.
        if asked.expects_continue and self._reply is None and not self._waiting:
            self.transport.write(CONTINUE)

    def request_is_read(self, asked: Asked) -> None:
        self._await(Wait.NOTHING)
        self._linger_s = LINGER_S if asked.is_cut_off else 0.0
        self._waiting.append(asked)

    def _read(self, unread: bytes) -> None:
        start = 0
        while start < len(unread) and not self._reader.is_deaf:
            if len(self._waiting) >= self._host.limits.max_pipelined:
                self._unread = unread[start:]
                self.transport.pause_reading()
                self._await(Wait.NOTHING)
                return
            end = self._slice_end(unread, start)
            self._reader.feed(unread if not start and end >= len(unread) else memoryview(unread)[start:end])
            self._advance()
            start = end

    def _slice_end(self, unread: bytes, start: int) -> int:
        """How far to read now. No request can hide in a body, so what is missing of one is read in one go; a large one
        from its very beginning, so that its bytes need not be put together.
        """
        missing = self._reader.missing_bytes
        if missing:
            return start + max(SLICE_BYTES, missing)
        end = start + SLICE_BYTES
        if end < len(unread) and (head_end := unread.find(HEAD_END, start, end)) >= 0:
            return head_end + len(HEAD_END)
        return end

    def _read_on(self) -> None:
        unread, self._unread = self._unread, b""
        self.transport.resume_reading()
        reading = self._reader.reading
        if reading is not None:
            self._await(Wait.BODY if reading.has_head else Wait.HEAD)
        self._read(unread)

    # -- answering -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Serve what waits, while answers come at once and the client takes them."""
        if self._is_advancing:
            return
        self._is_advancing = True
        while self._waiting and self._reply is None and not self._is_stalled and not self._is_closing:
            self._serving = asked = self._waiting.popleft()
            self._reply = reply = Reply(
                asked,
                self._host.new_id(),
                self.transport,
                keep_alive=asked.keep_alive and not self._host.is_draining,
                answered=self._answered,
            )
            self._host.serve(asked, reply)
        self._is_advancing = False

    def _answered(self) -> None:
        """The last byte of the answer is written."""
        reply, self._reply = self._reply, None
        self._drop_serving()
        if reply is None or not reply.keep_alive:
            if self.transport.can_write_eof():
                self._linger_s = max(self._linger_s, FAREWELL_S)
            self._close()
            return
        if self.is_idle:
            self._await(Wait.REQUEST)
            if self._host.is_draining:
                self.say_last_call()
        if not self._is_advancing and (self._waiting or self._unread):
            self._go_on()

    def _go_on(self) -> None:
        self._advance()
        if self._unread and len(self._waiting) < self._host.limits.max_pipelined and not self._is_closing:
            self._read_on()

    # -- ending ----------------------------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """End what has waited too long."""
        if now_s >= self._stalled_until_s:
            self._check_progress()
        if self._wait_until_s is None:
            self._wait_until_s = now_s + self._limit_s()
        if now_s < self._wait_until_s:
            return
        match self._wait:
            case Wait.HEAD | Wait.BODY:
                part = self._wait.value
                self._reader.refuse(Refused(Reason.REQUEST_TOO_SLOW, f"The {part} of the request took too long."))
                self._advance()
            case Wait.REQUEST:
                self._close_when_idle()
            case Wait.LEAVING if self.transport.get_write_buffer_size():
                self._linger()  # It still reads: how fast it must is `_check_progress`' affair.
            case _:
                self.transport.abort()

    def say_last_call(self) -> None:
        """The gateway is going: a request that comes in the next moment is served, for its client could not know."""
        self._loop.call_later(LAST_CALL_S, self._close_when_idle)

    def _close_when_idle(self) -> None:
        """The answer of who is not idle says that it is the last, or is followed by a last call of its own."""
        if self._is_closing or not self.is_idle:
            return
        if has_unread(self.transport):
            self.say_last_call()
        else:
            self._close()

    def cut(self, refusal: Refused) -> None:
        """End now, with a word where nothing was said yet.

        A stream that has begun stays without its end: clients take that for a lost connection, and many come again
        by themselves; an error told inside it they would take for the answer.
        """
        self._drop_waiting()
        if self._reply is not None:
            task = self._reply.task
            if self._reply.is_stream and self._reply.is_chunked:
                self._reply.leave_off()
            else:
                self._reply.refuse(refusal)
            if task is not None:
                task.cancel(refusal)
        if not self._is_closing:
            self._close()

    def _check_progress(self) -> None:
        """A client that reads slowly is waited for; one that does not read is not."""
        if self.transport.get_write_buffer_size() < self._stalled_bytes:
            self._expect_reading()
        else:
            self.transport.abort()

    def _expect_reading(self) -> None:
        self._stalled_bytes = self.transport.get_write_buffer_size()
        self._stalled_until_s = self._loop.time() + self._host.timeouts.client_stall_s

    def _close(self) -> None:
        self._is_closing = self._reader.is_deaf = True
        self._await(Wait.NOTHING)
        self._expect_reading()
        if not self._linger_s:
            self.transport.close()
            return
        self._linger_until_s = self._loop.time() + LINGER_IN_ALL_S
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._unread:
            self._unread = b""
            self.transport.resume_reading()
        self._drop_waiting()
        self._linger()

    def _linger(self) -> None:
        """Drop what still comes, for a while."""
        if self._is_closing and self._linger_s:
            self._wait = Wait.LEAVING
            self._wait_until_s = min(self._loop.time() + self._linger_s, self._linger_until_s)

    def _leave(self) -> None:
        """The client has gone, or is taken to have."""
        self._is_closing = True
        if self._reply is not None:
            self._reply.abandon()
        self._drop_serving()
        self._drop_waiting()

    def _drop_serving(self) -> None:
        if self._serving is not None:
            self._serving.drop_body(self._host.budget)
            self._serving = None

    def _drop_waiting(self) -> None:
        """Forget what was read and is not served."""
        self._reader.close()
        for asked in self._waiting:
            asked.drop_body(self._host.budget)
        self._waiting.clear()

    def _await(self, wait: Wait) -> None:
        self._wait = wait
        self._wait_until_s = None

    def _limit_s(self) -> float:
        timeouts = self._host.timeouts
        match self._wait:
            case Wait.REQUEST:
                return timeouts.idle_s
            case Wait.HEAD:
                return timeouts.header_s
            case Wait.BODY:
                return timeouts.body_s
            case _:
                return NEVER

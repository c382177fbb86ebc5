"""One downstream connection: pipelined requests and their responses in order, timeouts, backpressure, closing.

A client that half-closes its connection counts as gone, although it might still read: the two cannot be told apart
before a response is written, and the engine would work in vain (nginx decides alike).
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Protocol, cast

from gateway.config.limits import Limits, Timeouts
from gateway.http.client_request import BodyBudget, IncomingRequest
from gateway.http.request_headers import TrustedProxies
from gateway.http.request_reader import RequestReader
from gateway.http.response_writer import CONTINUE, ResponseWriter
from gateway.http.timeout_sweeper import TimeoutSweeper
from gateway.runtime.closing import has_unread
from gateway.runtime.descriptors import DescriptorShares
from routing.rejection import Reason, RequestRejected

SLICE_BYTES = 8 << 10
"""Bytes parsed at a time, so that one read full of tiny requests cannot run far ahead of the responses."""

HEAD_END = b"\r\n\r\n"

LINGER_S = 5.0
MAX_LINGER_S = 30.0
"""After a rejection of a request that is still being sent, input is read and dropped for this long after the last byte,
and in all: closing at once would reset the connection before the response is read (nginx's lingering_close)."""

CLOSE_LINGER_S = 1.0
"""How long a client may take to close after its last response: input that was left unread, or arrives once the socket
is closed, would reset the connection before that response is read."""

IDLE_CLOSE_DELAY_S = 1.0
"""How long a draining gateway keeps an idle connection open: a request that was on its way is served, and its response
says `Connection: close`."""

NEVER = float("inf")


class ConnectionWait(Enum):
    """What the connection waits for."""

    NOTHING = "nothing"
    REQUEST = "request"
    HEAD = "head"
    BODY = "body"
    LINGERING = "leaving"


class RequestHandler(Protocol):
    """Routes and serves the requests of all connections."""

    kept_headers: set[bytes]
    """Lower-case names of the headers that it reads."""

    @property
    def is_draining(self) -> bool:
        """Whether each response closes its connection."""
        ...

    def new_id(self) -> str:
        """Return a request id that no other gateway makes."""
        ...

    def route(self, incoming: IncomingRequest, *, is_trusted: bool) -> None:
        """Find endpoint and caller of a request by its head, before its body is read. Raises `RequestRejected`."""
        ...

    def serve(self, incoming: IncomingRequest, reply: ResponseWriter) -> None:
        """Answer a request, now or later. Raises nothing."""
        ...


class ClientConnections:
    """The open client connections of one listener, and what they share."""

    def __init__(
        self,
        handler: RequestHandler,
        budget: BodyBudget,
        limits: Limits,
        timeouts: Timeouts,
        shares: DescriptorShares,
        trusts: TrustedProxies,
    ) -> None:
        self.handler = handler
        self.budget = budget
        self.limits = limits
        self.timeouts = timeouts
        self.shares = shares
        self.trusted_proxies = trusts
        self.sweeper = TimeoutSweeper[ClientConnection](
            timeouts.request_header_s, timeouts.request_body_s, timeouts.downstream_idle_s, timeouts.downstream_write_s
        )
        self.open = self.sweeper.connections
        self.connection_ended = asyncio.Event()
        """Set when a connection has ended; cleared by whatever waits for it."""

    def admit(self, connection: ClientConnection) -> bool:
        """Register a new connection. Returns False if it is one too many.

        So many more are accepted and sent a rejection; beyond these it is aborted.
        """
        open_now, max_clients = len(self.open), self.shares.clients
        is_room = open_now < max_clients
        if not is_room and open_now >= max_clients + self.shares.overflow:
            connection.transport.abort()
        self.open.add(connection)
        if self.sweeper.ticker.timer is None:
            self.sweeper.ticker.start()
        return is_room

    def remove(self, connection: ClientConnection) -> None:
        """Remove a connection that has ended."""
        self.open.discard(connection)
        self.connection_ended.set()


class ClientConnection(asyncio.Protocol):
    """Serves one request at a time; reads ahead meanwhile, up to `max_pipelined_requests`."""

    def __init__(self, shared: ClientConnections) -> None:
        self._shared = shared
        self._handler = shared.handler
        self._budget = shared.budget
        self._limits = shared.limits
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(self, shared.budget, shared.limits, shared.handler.kept_headers)
        self._is_trusted = False
        self._unread = b""
        self._waiting: deque[IncomingRequest] = deque()
        self._serving: IncomingRequest | None = None
        self._reply: ResponseWriter | None = None
        self._is_advancing = False
        self._is_closing = False
        self._linger_s = 0.0
        self._is_stalled = False
        self._wait = ConnectionWait.NOTHING
        self._wait_until_s: float | None = None
        """Loop time; None until the next sweep sets it, so that no request pays for reading a clock."""
        self._linger_until_s = NEVER
        self._stalled_until_s = NEVER
        self._stalled_bytes = 0
        self.transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"<ClientConnection waiting for {self._wait.value}, {len(self._waiting)} ahead, {self._reply}>"

    @property
    def is_idle(self) -> bool:
        """Whether no request is being read, queued or served."""
        return self._reply is None and self._reader.reading is None and not self._waiting

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self._limits.high_water_bytes)
        proxies = self._shared.trusted_proxies
        self._is_trusted = bool(proxies.networks) and proxies(self.transport)
        self._await(ConnectionWait.REQUEST)
        if not self._shared.admit(self):
            self._reader.reject(
                RequestRejected(
                    Reason.TOO_MANY_CONNECTIONS,
                    "Connection limit of the gateway reached; retry later.",
                    retry_after_s=1.0,
                )
            )
            self._advance()

    def data_received(self, data: bytes) -> None:
        if self._reader.ignores_input:
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
            return  # The transport closes once its buffer is written.
        if self._reader.reading is not None and self._reply is None:
            self._reader.reject(
                RequestRejected(Reason.BAD_REQUEST, "The connection closed before the request was complete.")
            )
            self._advance()
        elif not self.is_idle:
            self._leave()
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._shared.remove(self)

    def pause_writing(self) -> None:
        self._is_stalled = True
        self._expect_reading()
        if self._reply is not None and self._reply.source is not None:
            self._reply.was_paused = True
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

    def on_request_begin(self) -> None:
        self._wait, self._wait_until_s = ConnectionWait.HEAD, None

    def on_head(self, incoming: IncomingRequest) -> None:
        self._wait, self._wait_until_s = ConnectionWait.BODY, None
        self._handler.route(incoming, is_trusted=self._is_trusted)
        if incoming.declared_bytes:
            incoming.check_tenant_share(self._budget)
        # Behind an unanswered request `100 Continue` cannot be written yet; the client may wait for it or send anyway.
        if b"expect" in incoming.headers and incoming.expects_continue and self._reply is None and not self._waiting:
            self.transport.write(CONTINUE)

    def on_request(self, incoming: IncomingRequest) -> None:
        self._wait, self._wait_until_s = ConnectionWait.NOTHING, None
        self._linger_s = LINGER_S if incoming.is_incomplete else 0.0
        self._waiting.append(incoming)

    def _read(self, unread: bytes) -> None:
        start = 0
        while start < len(unread) and not self._reader.ignores_input:
            if len(self._waiting) >= self._limits.max_pipelined_requests:
                self._unread = unread[start:]
                self.transport.pause_reading()
                self._await(ConnectionWait.NOTHING)
                return
            end = self._slice_end(unread, start)
            self._reader.feed(unread if not start and end >= len(unread) else memoryview(unread)[start:end])
            self._advance()
            start = end

    def _slice_end(self, unread: bytes, start: int) -> int:
        """Return the index up to which to parse now. What is missing of a body is parsed in one piece, since it cannot
        contain a request; a large body from its first byte, so that its pieces need not be joined.
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
            self._await(ConnectionWait.BODY if reading.has_head else ConnectionWait.HEAD)
        self._read(unread)

    # -- answering -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Serve queued requests, while each is answered at once and the client reads."""
        if self._is_advancing:
            return
        self._is_advancing = True
        while self._waiting and self._reply is None and not self._is_stalled and not self._is_closing:
            self._serving = incoming = self._waiting.popleft()
            self._reply = reply = ResponseWriter(
                incoming,
                self._handler.new_id(),
                self.transport,
                keep_alive=incoming.keep_alive and not self._handler.is_draining,
                answered=self._answered,
            )
            self._handler.serve(incoming, reply)
        self._is_advancing = False

    def _answered(self) -> None:
        """The last byte of the response is written."""
        reply, self._reply = self._reply, None
        self._drop_serving()
        if reply is None or not reply.keep_alive:
            if self.transport.can_write_eof():
                self._linger_s = max(self._linger_s, CLOSE_LINGER_S)
            self._close()
            return
        if self.is_idle:
            self._await(ConnectionWait.REQUEST)
            if self._handler.is_draining:
                self.schedule_idle_close()
        if not self._is_advancing and (self._waiting or self._unread):
            self._go_on()

    def _go_on(self) -> None:
        self._advance()
        if self._unread and len(self._waiting) < self._limits.max_pipelined_requests and not self._is_closing:
            self._read_on()

    # -- ending ----------------------------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """Apply the timeouts; called by the sweeper."""
        if now_s >= self._stalled_until_s:
            self._check_progress()
        if self._wait_until_s is None:
            self._wait_until_s = now_s + self._limit_s()
        if now_s < self._wait_until_s:
            return
        match self._wait:
            case ConnectionWait.HEAD | ConnectionWait.BODY:
                part = self._wait.value
                self._reader.reject(
                    RequestRejected(Reason.REQUEST_TIMEOUT, f"Timeout while receiving the request {part}.")
                )
                self._advance()
            case ConnectionWait.REQUEST:
                self._close_when_idle()
            case ConnectionWait.LINGERING if self.transport.get_write_buffer_size():
                self._linger()  # It still reads; `_check_progress` bounds how slowly.
            case _:
                self.transport.abort()

    def schedule_idle_close(self) -> None:
        """Close when idle, after `IDLE_CLOSE_DELAY_S`: a request that was on its way is served."""
        self._loop.call_later(IDLE_CLOSE_DELAY_S, self._close_when_idle)

    def _close_when_idle(self) -> None:
        """Close, unless busy: then the response says `Connection: close`, or is followed by another last call."""
        if self._is_closing or not self.is_idle:
            return
        if has_unread(self.transport):
            self.schedule_idle_close()
        else:
            self._close()

    def terminate(self, rejection: RequestRejected) -> None:
        """End now; `rejection` is the response if none has begun.

        A stream that has begun is left without its terminator: clients treat that as a lost connection, and many retry.
        They would take an error event for the response.
        """
        self._drop_waiting()
        if self._reply is not None:
            task = self._reply.task
            if self._reply.is_stream and self._reply.is_chunked:
                self._reply.stop_writing()
            else:
                self._reply.reject(rejection)
            if task is not None:
                task.cancel(rejection)
        if not self._is_closing:
            self._close()

    def _check_progress(self) -> None:
        """Abort if the client has read nothing since the last check."""
        if self.transport.get_write_buffer_size() < self._stalled_bytes:
            self._expect_reading()
        else:
            self.transport.abort()

    def _expect_reading(self) -> None:
        self._stalled_bytes = self.transport.get_write_buffer_size()
        self._stalled_until_s = self._loop.time() + self._shared.timeouts.downstream_write_s

    def _close(self) -> None:
        self._is_closing = self._reader.ignores_input = True
        self._await(ConnectionWait.NOTHING)
        self._expect_reading()
        if not self._linger_s:
            self.transport.close()
            return
        self._linger_until_s = self._loop.time() + MAX_LINGER_S
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._unread:
            self._unread = b""
            self.transport.resume_reading()
        self._drop_waiting()
        self._linger()

    def _linger(self) -> None:
        """Read and drop input for a while."""
        if self._is_closing and self._linger_s:
            self._wait = ConnectionWait.LINGERING
            self._wait_until_s = min(self._loop.time() + self._linger_s, self._linger_until_s)

    def _leave(self) -> None:
        """The client has gone, or counts as gone."""
        self._is_closing = True
        if self._reply is not None:
            self._reply.abandon()
        self._drop_serving()
        self._drop_waiting()

    def _drop_serving(self) -> None:
        if self._serving is not None:
            self._serving.drop_body(self._budget)
            self._serving = None

    def _drop_waiting(self) -> None:
        """Drop requests that were read and are not served."""
        if not self._reader.is_closed:
            self._reader.close()
        for incoming in self._waiting:
            incoming.drop_body(self._budget)
        self._waiting.clear()

    def _await(self, wait: ConnectionWait) -> None:
        self._wait = wait
        self._wait_until_s = None

    def _limit_s(self) -> float:
        timeouts = self._shared.timeouts
        match self._wait:
            case ConnectionWait.REQUEST:
                return timeouts.downstream_idle_s
            case ConnectionWait.HEAD:
                return timeouts.request_header_s
            case ConnectionWait.BODY:
                return timeouts.request_body_s
            case _:
                return NEVER

"""One HTTP/2 connection of a server: frames to streams, settings, windows, pings, and how it ends.

Knows gRPC paths as names of services and nothing of what they mean. All is done in the call that brings the bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, cast

from gateway.ext_proc.http2 import frames as f
from gateway.ext_proc.http2.frames import Fields, HeaderBlock, HeaderDecoder, Http2Error, Http2ErrorCode, Http2Limits
from gateway.ext_proc.http2.stream import GrpcStream, GrpcStreamHandler
from gateway.runtime.closing import has_unread


class FrameAllowance:
    """A token bucket: spent by frames, refilled by time and by requests that were served."""

    __slots__ = ("_capacity", "_clock", "_left", "_per_s", "_since_s")

    def __init__(self, capacity: int, per_s: float, clock: Callable[[], float]) -> None:
        """`capacity` is what it holds at first and at most; `clock` returns seconds."""
        self._left: float = capacity
        self._capacity = capacity
        self._per_s = per_s
        self._clock = clock
        self._since_s = clock()

    def __repr__(self) -> str:
        return f"<FrameAllowance with {self._left} of {self._capacity} left>"

    def spend(self, cost: int = 1) -> bool:
        """Take `cost` out. Returns False where nothing is left; the last cost may exceed what is left."""
        if self._left <= 0:
            now_s = self._clock()
            self._left = min(self._capacity, self._left + (now_s - self._since_s) * self._per_s)
            self._since_s = now_s
            if self._left <= 0:
                return False
        self._left -= cost
        return True

    def refund(self, count: int) -> None:
        """Put `count` back, up to the most that it holds."""
        self._left = min(self._capacity, self._left + count)


Authorize = Callable[[Fields], bool]
"""Whether the caller of a request, as its fields show it, may make it."""

HandlerFactory = Callable[[GrpcStream], GrpcStreamHandler]
"""Serves the streams of one path."""


class Http2Server(Protocol):
    """What a connection needs of the port that accepted it."""

    bounds: Http2Limits

    @property
    def is_leaving(self) -> bool:
        """Whether no more streams are wanted."""
        ...

    def admit(self, connection: Http2Connection) -> bool: ...
    def forget(self, connection: Http2Connection) -> None: ...
    @property
    def guard(self) -> Authorize | None:
        """Decides which requests are served; None: all."""
        ...

    def service(self, path: bytes) -> HandlerFactory | None: ...
    def has_room(self) -> bool:
        """Whether one more stream may be begun."""
        ...

    def take_room(self, count: int) -> bool: ...
    def give_room(self, count: int) -> None: ...


UNIMPLEMENTED, UNAUTHENTICATED = 12, 16

SELF_DEPENDENT = 0x100
"""Set beside the flags of HEADERS whose stream was made to depend on itself: no flag of the wire has this bit."""

SETTINGS_BYTES_PER_FRAME = 64
WAITING_STREAMS_PER_FRAME = 16
FIELDS_PER_FRAME = 16
"""What costs as much as a frame of its own: so many bytes of settings, so many streams that a larger window wakes, so
many fields of a header block that has more than `MAX_FREE_FIELDS`.
"""
MAX_FREE_FIELDS = 128

GOAWAY_DELAY_S = 1.0
"""How long new streams are accepted after the first GOAWAY: they were under way."""


class Http2Connection(asyncio.Protocol):
    """Reads frames; each kind has one method."""

    def __init__(self, host: Http2Server) -> None:
        bounds = host.bounds
        self._host = host
        self._unread = b""
        self._fields = HeaderDecoder(bounds.max_header_bytes)
        self._block: list[bytes] | None = None
        self._block_stream = 0
        self._block_flags = 0
        self._last = 0
        self._receive_window = f.MAX_WINDOW
        self._waiting: OrderedDict[int, GrpcStream] = OrderedDict()
        """Streams with something to send, held up by the window of the connection or by its transport."""
        self._short: dict[int, GrpcStream] = {}
        """Streams with something to send, held up by their own windows."""
        self._ended_here: dict[int, None] = {}
        """Streams that this side ended first, oldest first: their frames may still be under way."""
        self._declared: dict[int, int] = {}
        """Of streams with a content-length, how much of it is still to come."""
        self._skipped = 0, 0
        """The last gap between the numbers of two streams begun one after the other."""
        self._max_credit = 0
        """The most that any stream was ever granted beyond the initial window."""
        clock = asyncio.get_running_loop().time
        self._idle_frames = FrameAllowance(bounds.max_idle_frames, bounds.idle_frames_per_s, clock)
        self._served = 0
        """Streams that were answered since the allowance of idle frames was last used up."""
        self._resets = FrameAllowance(max(bounds.max_streams, bounds.max_idle_frames), bounds.resets_per_s, clock)
        self._has_preface = self._has_settings = False
        self._leaving_since_s: float | None = None
        self._takes_no_more = False
        self._is_closed = False
        self._since_s: float | None = None
        """When what is unfinished was first seen so; None where all is whole."""
        self._has_received = False
        self._silent_since_s = asyncio.get_running_loop().time()
        self._has_pinged = False
        self.streams: dict[int, GrpcStream] = {}
        self.send_window = f.DEFAULT_WINDOW
        self.initial_window = f.DEFAULT_WINDOW
        self.stream_window = max(bounds.stream_window, f.DEFAULT_WINDOW)
        self.peer_frame = f.DEFAULT_FRAME_BYTES
        self.is_stuck = False
        self.max_message_bytes = bounds.max_message_bytes
        self.pending_bytes = bounds.max_pending_bytes
        self._unsent: list[bytes] = []
        self._is_reading = False
        self._flushing: asyncio.Handle | None = None
        self.transport: asyncio.Transport

    def __repr__(self) -> str:
        waiting = len(self._waiting) + len(self._short)
        return f"<Http2Connection with {len(self.streams)} streams, {waiting} of them waiting for room>"

    @property
    def local_host(self) -> str:
        """The address of this side, by which the peer has reached it; empty where it has none."""
        name = self.transport.get_extra_info("sockname")
        return name[0] if isinstance(name, tuple) else ""

    # -- asyncio protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        bounds = self._host.bounds
        if not self._host.admit(self):
            self.transport.abort()
            return
        values = {
            f.MAX_STREAMS: bounds.max_streams,
            f.INITIAL_WINDOW: bounds.stream_window,
            f.MAX_HEADER_LIST: bounds.max_header_bytes,
        }
        self.write(f.settings_frame(values) + f.window_frame(0, f.MAX_WINDOW - f.DEFAULT_WINDOW))
        if self._host.is_leaving:
            self.send_goaway()

    def connection_lost(self, exc: Exception | None) -> None:
        streams, self.streams = self.streams, {}
        self._waiting.clear()
        self._short.clear()
        self._unsent.clear()
        for stream in streams.values():
            stream.abandon()
        self._host.forget(self)

    def pause_writing(self) -> None:
        self.is_stuck = True

    def resume_writing(self) -> None:
        self.is_stuck = False
        self._go_on()

    def data_received(self, data: bytes) -> None:
        """Handle frames of many streams from one read; what they send goes out together."""
        self._is_reading = True
        try:
            self._receive(data)
        finally:
            self._is_reading = False
            if self._unsent:
                self._flush_soon()

    def _receive(self, data: bytes) -> None:
        self._has_received = True
        unread = self._unread + data if self._unread else data
        at = 0
        try:
            if not self._has_preface:
                if len(unread) < len(f.PREFACE) and f.PREFACE.startswith(unread):
                    self._unread = unread
                    return
                if not unread.startswith(f.PREFACE):
                    raise Http2Error(Http2ErrorCode.PROTOCOL, "this is no HTTP/2")
                self._has_preface, at = True, len(f.PREFACE)
            if not self._has_settings and len(unread) - at >= f.HEAD_BYTES:
                _, _, kind, flags, _ = f.HEAD.unpack_from(unread, at)
                if kind != f.SETTINGS or flags & f.ACK:
                    raise Http2Error(Http2ErrorCode.PROTOCOL, "the first frame must be SETTINGS")
                self._has_settings = True
            at = self._read(unread, at)
        except Http2Error as broken:
            self.close(broken.fault, str(broken))
            return
        self._unread = unread[at:]
        if not self._unread and self._block is None:
            self._since_s = None

    def _read(self, unread: bytes, at: int) -> int:
        end = len(unread)
        while end - at >= f.HEAD_BYTES:
            high, low, kind, flags, number = f.HEAD.unpack_from(unread, at)
            size = high << 8 | low
            if size > f.DEFAULT_FRAME_BYTES:
                raise Http2Error(Http2ErrorCode.FRAME_SIZE, "a frame is longer than we take")
            begin = at + f.HEAD_BYTES
            if end - begin < size:
                break
            at = begin + size
            self._take(kind, flags, number & f.MAX_WINDOW, unread[begin:at])
        return at

    # -- frames ----------------------------------------------------------------------------------------------------

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and (kind != f.CONTINUATION or number != self._block_stream):
            raise Http2Error(Http2ErrorCode.PROTOCOL, "a header block is interrupted")
        if kind == f.DATA:
            self._take_piece(flags, number, payload)
        elif kind == f.HEADERS:
            self._take_headers(flags, number, payload)
        elif kind == f.WINDOW_UPDATE:
            self._take_window(number, payload)
        elif kind == f.RST_STREAM:
            self._take_reset(number, payload)
        elif kind == f.SETTINGS:
            self._take_settings(flags, number, payload)
        elif kind == f.PING:
            self._take_ping(flags, number, payload)
        elif kind == f.CONTINUATION:
            self._take_continuation(flags, payload)
        else:
            self._take_other(kind, number, payload)

    def _take_other(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame that changes nothing here."""
        if kind == f.PRIORITY:
            self._take_priority(number, payload)
        elif kind == f.GOAWAY:
            self._take_goaway(number, payload)
        elif kind == f.PUSH_PROMISE:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "a client promises nothing")
        else:
            self._spend()

    def _take_piece(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 1 << 30:
            self.write(f.window_frame(0, f.MAX_WINDOW - self._receive_window))
            self._receive_window = f.MAX_WINDOW
        stream, ends = self.streams.get(number), bool(flags & f.END_STREAM)
        if stream is None or stream.has_received_end:
            self._take_late_piece(stream, number, is_idle=not payload, ends=ends)
            return
        if flags & f.PADDED:
            payload = f.unpadded(flags, payload)
        if self._declared and not self._is_as_declared(number, len(payload), ends=ends):
            self.fail(stream, Http2ErrorCode.PROTOCOL)
            return
        if payload or ends:
            self._feed(stream, payload, size, ends=ends)
        else:
            self._spend()

    def _feed(self, stream: GrpcStream, payload: bytes, size: int, *, ends: bool) -> None:
        """Deliver data and the end of a stream. An exception of its handler ends that stream alone."""
        try:
            if ends:
                stream.has_received_end = True  # First: a stream that ends by what comes now has ended on both sides.
            if payload:
                stream.feed(payload, size)
            if ends:
                stream.on_end_stream()
        except Http2Error:
            raise
        except Exception as fault:  # noqa: BLE001 - the other streams have done nothing
            self.report(stream, fault)

    def _take_late_piece(self, stream: GrpcStream | None, number: int, *, is_idle: bool, ends: bool) -> None:
        """Take data that follows the end of its stream: under way when this side ended it, or a fault."""
        if number in self._ended_here:
            if ends:
                del self._ended_here[number]
            elif is_idle:
                self._spend()
        elif stream is not None:
            self.fail(stream, Http2ErrorCode.STREAM_CLOSED)
        else:
            self._check_closed(number)
            self._spend()
            self._answer(f.reset_frame(number, Http2ErrorCode.STREAM_CLOSED))

    def _is_as_declared(self, number: int, size: int, *, ends: bool) -> bool:
        """Whether so much more data, and its end, are what the stream's content-length says."""
        left = self._declared.get(number)
        if left is None:
            return True
        self._declared[number] = left = left - size
        return left >= 0 and not (ends and left)

    def _take_headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "a client's streams have odd numbers")
        block = f.unpadded(flags, payload, priority=True)
        if flags & f.WITH_PRIORITY and f.dependency(payload, 1 if flags & f.PADDED else 0) == number:
            flags |= SELF_DEPENDENT
        if flags & f.END_HEADERS:
            self._take_block(flags, number, block)
        else:
            self._block, self._block_stream, self._block_flags = [block], number, flags

    def _take_continuation(self, flags: int, payload: bytes) -> None:
        block, bounds = self._block, self._host.bounds
        if block is None:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "a header block is continued that was not begun")
        block.append(payload)
        if len(block) > bounds.max_continuations or sum(map(len, block)) > bounds.max_header_bytes:
            raise Http2Error(Http2ErrorCode.ENHANCE_YOUR_CALM, "a header block is longer than we take")
        if flags & f.END_HEADERS:
            self._block = None
            self._take_block(self._block_flags, self._block_stream, b"".join(block))

    def _take_block(self, flags: int, number: int, raw: bytes) -> None:
        block = self._fields.read(raw)
        if block.count > MAX_FREE_FIELDS:
            self._spend(block.count // FIELDS_PER_FRAME)
        if number > self._last:
            if number > self._last + 2:
                self._skipped = self._last, number
            self._last = number
            self._begin(number, block, flags)
            return
        stream = self.streams.get(number)  # Trailers: they say that it ends, and nothing else that we need.
        if stream is None:
            self._take_late_block(number, flags)
        elif stream.has_received_end:
            self.fail(stream, Http2ErrorCode.STREAM_CLOSED)
        elif flags & f.END_STREAM and not flags & SELF_DEPENDENT and self._are_trailers(number, block):
            self._end(stream)
        else:
            self.fail(stream, Http2ErrorCode.PROTOCOL)

    def _are_trailers(self, number: int, block: HeaderBlock) -> bool:
        """Whether a stream may end with this block."""
        return not block.trailers_fault and (not self._declared or self._is_as_declared(number, 0, ends=True))

    def _take_late_block(self, number: int, flags: int) -> None:
        """Take headers of a stream that has ended: trailers under way when this side ended it, or a fault."""
        if number in self._ended_here:
            if flags & f.END_STREAM:
                del self._ended_here[number]
            else:
                self._spend()
            return
        first, last = self._skipped
        if first < number < last:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "a stream with a lower number than one that was begun before")
        raise Http2Error(Http2ErrorCode.STREAM_CLOSED, "headers of a stream that has ended")

    def _begin(self, number: int, block: HeaderBlock, flags: int) -> None:
        host, ends = self._host, bool(flags & f.END_STREAM)
        is_full = len(self.streams) >= host.bounds.max_streams or not host.has_room()
        if self.is_stuck:
            self._check_is_read()
        if self._is_closed or self._takes_no_more or is_full:
            self.write(f.reset_frame(number, Http2ErrorCode.REFUSED))
            if not ends:
                self._note_ended(number)
            return
        stream = GrpcStream(self, number)
        stream.has_received_end = ends
        fields = block.fields
        if block.request_fault or flags & SELF_DEPENDENT:
            self.fail(stream, Http2ErrorCode.PROTOCOL)
            return
        if (length := fields.get(b"content-length")) is not None:
            self._declared[number] = int(length)
            if not self._is_as_declared(number, 0, ends=ends):
                self.fail(stream, Http2ErrorCode.PROTOCOL)
                return
        self.streams[number] = stream
        self._serve(stream, fields)
        if ends:
            self._end(stream)

    def _serve(self, stream: GrpcStream, fields: Fields) -> None:
        """Attach a handler, if there is such a service and the caller is authorized."""
        host = self._host
        serve = host.service(fields.get(b":path", b"")) if fields.get(b":method") == b"POST" else None
        if serve is None:
            stream.finish(UNIMPLEMENTED, "There is no such service here.")
        elif host.guard is not None and not host.guard(fields):
            stream.finish(UNAUTHENTICATED, "The caller is not known.")
        else:
            try:
                stream.handler = serve(stream)
            except Exception as fault:  # noqa: BLE001 - the other streams have done nothing
                self.report(stream, fault)

    def _end(self, stream: GrpcStream) -> None:
        """Call the handler of a stream whose client has ended."""
        try:
            stream.on_end_stream()
        except Exception as fault:  # noqa: BLE001 - the other streams have done nothing
            self.report(stream, fault)

    def _take_priority(self, number: int, payload: bytes) -> None:
        """Take a priority, which changes nothing here; a wrong one ends its stream, or the connection without one."""
        self._spend()
        if not number:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "a priority of no stream")
        fault = Http2ErrorCode.NONE
        if len(payload) != f.PRIORITY_BYTES:
            fault = Http2ErrorCode.FRAME_SIZE
        elif f.dependency(payload) == number:
            fault = Http2ErrorCode.PROTOCOL
        if fault:
            stream = self.streams.get(number)
            if stream is None:
                raise Http2Error(fault, "a priority of a wrong form")
            self.fail(stream, fault)

    def _take_goaway(self, number: int, payload: bytes) -> None:
        """Accept that the peer is about to close; it closes by itself."""
        self._spend()
        if number:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "a GOAWAY of a stream")
        if len(payload) < f.GOAWAY_BYTES:
            raise Http2Error(Http2ErrorCode.FRAME_SIZE, "a GOAWAY of a wrong length")

    def _take_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != f.WORD.size:
            raise Http2Error(Http2ErrorCode.FRAME_SIZE, "a reset of a wrong length")
        stream = self.streams.get(number)
        if stream is None:
            if number in self._ended_here:
                del self._ended_here[number]  # Both sides ended it at the same time.
                return
            self._check_closed(number)
            self._spend()
            return
        if not stream.has_started and not self._resets.spend():
            raise Http2Error(Http2ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset before they are answered")
        stream.has_received_end = True
        stream.abandon()
        self.forget(stream)

    def _take_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "settings of a stream")
        if len(payload) % f.SETTING.size or (flags & f.ACK and payload):
            raise Http2Error(Http2ErrorCode.FRAME_SIZE, "settings of a wrong length")
        self._spend(1 + len(payload) // SETTINGS_BYTES_PER_FRAME)
        if flags & f.ACK:
            return
        window = self._read_settings(payload)
        self._answer(f.frame(f.SETTINGS, f.ACK, 0))
        if window != self.initial_window:
            self._resize_windows(window)

    def _read_settings(self, payload: bytes) -> int:
        """Check all settings of a frame. Returns the initial window, of several the last."""
        window = self.initial_window
        for name, value in f.SETTING.iter_unpack(payload):
            if name == f.INITIAL_WINDOW:
                if value > f.MAX_WINDOW:
                    raise Http2Error(Http2ErrorCode.FLOW_CONTROL, "a window larger than there can be")
                window = value
            elif name == f.MAX_FRAME:
                if not f.DEFAULT_FRAME_BYTES <= value <= f.MAX_FRAME_BYTES:
                    raise Http2Error(Http2ErrorCode.PROTOCOL, "a frame size that there cannot be")
                self.peer_frame = value
            elif name == f.ENABLE_PUSH and value > 1:
                raise Http2Error(Http2ErrorCode.PROTOCOL, "ENABLE_PUSH that is neither 0 nor 1")
        return window

    def _resize_windows(self, size: int) -> None:
        """Put another initial window in force. Streams count from it, so only those are touched that it wakes."""
        more, self.initial_window = size - self.initial_window, size
        if more <= 0:
            return
        if size + self._max_credit > f.MAX_WINDOW:
            self._spend(1 + len(self.streams) // WAITING_STREAMS_PER_FRAME)
            self._max_credit = max((stream.credit for stream in self.streams.values()), default=0)
            if size + self._max_credit > f.MAX_WINDOW:
                raise Http2Error(Http2ErrorCode.FLOW_CONTROL, "a stream's window grows to what it cannot be")
        if self._short:
            self._spend(len(self._short) // WAITING_STREAMS_PER_FRAME)
            for stream in tuple(self._short.values()):
                self._resume(stream)

    def _take_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "a ping of a stream")
        if len(payload) != f.PING_BYTES:
            raise Http2Error(Http2ErrorCode.FRAME_SIZE, "a ping of a wrong length")
        self._spend()
        if not flags & f.ACK:
            self._answer(f.frame(f.PING, f.ACK, 0, payload))

    def _take_window(self, number: int, payload: bytes) -> None:
        if len(payload) != f.WORD.size:
            raise Http2Error(Http2ErrorCode.FRAME_SIZE, "a window update of a wrong length")
        more = f.WORD.unpack(payload)[0] & f.MAX_WINDOW
        if not number:
            self._grow_window(more)
            return
        stream = self.streams.get(number)
        if stream is None:
            self._check_closed(number)
            if not more:
                self._spend()
            return
        stream.credit += more
        if not more or stream.window > f.MAX_WINDOW:
            self.fail(stream, Http2ErrorCode.FLOW_CONTROL if more else Http2ErrorCode.PROTOCOL)
            return
        self._max_credit = max(self._max_credit, stream.credit)
        if number in self._short:
            self._resume(stream)

    def _grow_window(self, more: int) -> None:
        self.send_window += more
        if not more:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "a window update of nothing")
        if self.send_window > f.MAX_WINDOW:
            raise Http2Error(Http2ErrorCode.FLOW_CONTROL, "a window grows to what it cannot be")
        self._go_on()

    def _check_closed(self, number: int) -> None:
        """Raise `Http2Error` for frames of a stream that never began; those of an ended stream were under way."""
        if number > self._last or not number & 1:
            raise Http2Error(Http2ErrorCode.PROTOCOL, "of a stream that was not begun")

    def _answer(self, raw: bytes) -> None:
        """Send what the peer makes us send. Raises `Http2Error` if it does not read."""
        self._check_is_read()
        self.write(raw)

    def _check_is_read(self) -> None:
        if self.transport.get_write_buffer_size() > self._host.bounds.max_unread_response_bytes:
            raise Http2Error(Http2ErrorCode.ENHANCE_YOUR_CALM, "asks and does not listen")

    def _spend(self, cost: int = 1) -> None:
        """Charge a frame that carries no part of a request. Raises `Http2Error` beyond the allowance."""
        if self._idle_frames.spend(cost):
            return
        self._idle_frames.refund(self._served * self._host.bounds.frames_per_request)
        self._served = 0
        if not self._idle_frames.spend(cost):
            raise Http2Error(Http2ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def _note_ended(self, number: int) -> None:
        """Remember a stream that this side ended first."""
        ended = self._ended_here
        ended[number] = None
        if len(ended) > self._host.bounds.max_remembered_streams:
            del ended[next(iter(ended))]

    # -- for streams --------------------------------------------------------------------------------------

    def write(self, raw: bytes) -> None:
        """Send bytes at the end of this loop iteration: a system call per frame would be most of its cost."""
        self._unsent.append(raw)
        if self._flushing is None and not self._is_reading:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        unsent, self._unsent = self._unsent, []
        if unsent and not self.transport.is_closing():
            self.transport.write(b"".join(unsent))

    def wait_for_room(self, stream: GrpcStream) -> None:
        (self._waiting if stream.window > 0 else self._short)[stream.number] = stream

    def forget(self, stream: GrpcStream) -> None:
        number = stream.number
        stream.detach_handler()
        self.streams.pop(number, None)
        self._waiting.pop(number, None)
        self._short.pop(number, None)
        if self._declared:
            self._declared.pop(number, None)
        if stream.has_started:
            self._served += 1
        if not stream.has_received_end:
            self._note_ended(number)

    def fail(self, stream: GrpcStream, fault: Http2ErrorCode) -> None:
        """Reset a stream whose frames are malformed, and charge it. Raises `Http2Error` beyond the allowance."""
        stream.abandon()
        stream.reset(fault)
        self._spend(self._host.bounds.frames_per_fault)

    def report(self, stream: GrpcStream, fault: Exception) -> None:
        """Log an exception of a stream's handler, and reset that stream."""
        told = {"message": "the service of an HTTP/2 stream failed; the stream is reset", "exception": fault}
        asyncio.get_running_loop().call_exception_handler(told)
        if self.streams.get(stream.number) is stream:
            stream.abandon()
            stream.reset(Http2ErrorCode.INTERNAL)

    def take_room(self, count: int) -> bool:
        return self._host.take_room(count)

    def give_room(self, count: int) -> None:
        self._host.give_room(count)

    def _resume(self, stream: GrpcStream) -> None:
        """Send what a stream has waiting, and have it wait for whatever holds up the rest."""
        self._short.pop(stream.number, None)
        if not stream.flush():
            self.wait_for_room(stream)

    def _go_on(self) -> None:
        """Send what waits for the connection's window, stream by stream."""
        waiting = self._waiting
        while waiting and self.send_window > 0 and not self.is_stuck:
            _, stream = waiting.popitem(last=False)
            if not stream.flush():
                self.wait_for_room(stream)

    # -- timeouts and closing -----------------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """Ping a silent peer, and end what has waited too long. Called every second or so."""
        bounds = self._host.bounds
        if self._has_received:
            self._has_received, self._has_pinged, self._silent_since_s = False, False, now_s
        if self._unread or self._block is not None or not self._has_preface:
            self._since_s = now_s if self._since_s is None else self._since_s
            if now_s - self._since_s > (bounds.frame_s if self._has_preface else bounds.preface_s):
                self.transport.abort()
                return
        if now_s - self._silent_since_s > bounds.silence_s:
            if self._has_pinged:
                self.transport.abort()
                return
            self._has_pinged, self._silent_since_s = True, now_s
            self.write(f.frame(f.PING, 0, 0, b"hearth??"))
        for stream in tuple(self.streams.values()):
            if not stream.is_finished:
                try:
                    stream.handler.on_tick(now_s)
                except Exception as fault:  # noqa: BLE001 - the other streams want to be looked at too
                    self.report(stream, fault)
        if self._leaving_since_s is not None and now_s - self._leaving_since_s > GOAWAY_DELAY_S:
            self._leave()

    def send_goaway(self) -> None:
        """Send a first GOAWAY. Streams that are under way are still served."""
        if self._leaving_since_s is None:
            self._leaving_since_s = asyncio.get_running_loop().time()
            self.write(f.goaway_frame(f.MAX_WINDOW, Http2ErrorCode.NONE))

    def _leave(self) -> None:
        """Send the final GOAWAY with the last stream that is served: the peer may retry later ones elsewhere.
        Then the peer closes, or this side does at the next check: closing with unread data would be a reset.
        """
        if has_unread(self.transport):
            return
        if not self._takes_no_more:
            self._takes_no_more = True
            self.write(f.goaway_frame(self._last, Http2ErrorCode.NONE))
        elif not self.streams:
            self.close()
        else:
            for stream in tuple(self.streams.values()):
                if not stream.is_finished:
                    try:
                        stream.handler.on_drain()
                    except Exception as fault:  # noqa: BLE001 - the other streams have to leave too
                        self.report(stream, fault)

    def close(self, fault: Http2ErrorCode = Http2ErrorCode.NONE, words: str = "") -> None:
        """Close at once with a GOAWAY that gives the reason."""
        if not self._is_closed:
            self._is_closed = True
            self.write(f.goaway_frame(self._last, fault, words))
            self._flush()
            self.transport.close()

"""One HTTP/2 connection as a server has it: frames to streams, settings, windows, pings, and how it ends.

Knows gRPC paths as names of services and nothing of what they mean. All is done in the call that brings the bytes.
"""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.closing import has_unread
from gateway.extproc.http2 import frames as f
from gateway.extproc.http2.frames import Broken, Fault
from gateway.extproc.http2.hearing import BlockReader, Fields
from gateway.extproc.http2.host import Host
from gateway.extproc.http2.stream import Stream

UNIMPLEMENTED = 12

LEAVING_S = 1.0
"""How long streams may still come after the other side was asked for no more: they were under way."""


class Connection(asyncio.Protocol):
    """Reads frames; each kind has one method."""

    def __init__(self, host: Host) -> None:
        bounds = host.bounds
        self._host = host
        self._unread = b""
        self._fields = BlockReader(bounds.max_header_bytes)
        self._block: list[bytes] | None = None
        self._block_stream = 0
        self._block_flags = 0
        self._last = 0
        self._receive_window = f.LARGEST_WINDOW
        self._peer_window = f.USUAL_WINDOW
        self._waiting: dict[int, Stream] = {}
        self._has_preface = False
        self._leaving_since_s: float | None = None
        self._takes_no_more = False
        self._is_closed = False
        self._since_s: float | None = None
        """When what is unfinished was first seen so; None where all is whole."""
        self._heard = False
        self._silent_since_s = asyncio.get_running_loop().time()
        self._has_asked = False
        self.streams: dict[int, Stream] = {}
        self.send_window = f.USUAL_WINDOW
        self.peer_frame = f.USUAL_FRAME
        self.is_stuck = False
        self.max_message_bytes = bounds.max_message_bytes
        self.pending_bytes = bounds.pending_bytes
        self._unsent: list[bytes] = []
        self._is_reading = False
        self._flushing: asyncio.Handle | None = None
        self.transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"<Connection with {len(self.streams)} streams, {len(self._waiting)} of them waiting for room>"

    # -- what the loop tells ---------------------------------------------------------------------------------------

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
        self.write(f.settings_frame(values) + f.window_frame(0, f.LARGEST_WINDOW - f.USUAL_WINDOW))
        if self._host.is_leaving:
            self.say_goodbye()

    def connection_lost(self, exc: Exception | None) -> None:
        streams, self.streams = self.streams, {}
        self._waiting.clear()
        self._unsent.clear()
        for stream in streams.values():
            stream.lose()
        self._host.forget(self)

    def pause_writing(self) -> None:
        self.is_stuck = True

    def resume_writing(self) -> None:
        self.is_stuck = False
        self._go_on()

    def data_received(self, data: bytes) -> None:
        """A read holds frames of many streams, and begins tasks: what all of them say goes out together."""
        self._is_reading = True
        try:
            self._hear(data)
        finally:
            self._is_reading = False
            if self._unsent:
                self._flush_soon()

    def _hear(self, data: bytes) -> None:
        self._heard = True
        unread = self._unread + data if self._unread else data
        at = 0
        try:
            if not self._has_preface:
                if len(unread) < len(f.PREFACE) and f.PREFACE.startswith(unread):
                    self._unread = unread
                    return
                if not unread.startswith(f.PREFACE):
                    raise Broken(Fault.PROTOCOL, "this is no HTTP/2")
                self._has_preface, at = True, len(f.PREFACE)
            at = self._read(unread, at)
        except Broken as broken:
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
            if size > f.USUAL_FRAME:
                raise Broken(Fault.FRAME_SIZE, "a frame is longer than we take")
            begin = at + f.HEAD_BYTES
            if end - begin < size:
                break
            at = begin + size
            self._take(kind, flags, number & f.LARGEST_WINDOW, unread[begin:at])
        return at

    # -- frames ----------------------------------------------------------------------------------------------------

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and (kind != f.CONTINUATION or number != self._block_stream):
            raise Broken(Fault.PROTOCOL, "a header block is interrupted")
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
        elif kind == f.PUSH_PROMISE:
            raise Broken(Fault.PROTOCOL, "a client promises nothing")

    def _take_piece(self, flags: int, number: int, payload: bytes) -> None:
        self._receive_window -= len(payload)
        if self._receive_window < 1 << 30:
            self.write(f.window_frame(0, f.LARGEST_WINDOW - self._receive_window))
            self._receive_window = f.LARGEST_WINDOW
        stream = self.streams.get(number)
        if stream is None or stream.has_heard_end:
            self._check_closed(number)
            return
        if flags & f.PADDED:
            payload = f.unpadded(flags, payload)
        if payload:
            stream.feed(payload)
        if flags & f.END_STREAM:
            stream.end_heard()

    def _take_headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise Broken(Fault.PROTOCOL, "a client's streams have odd numbers")
        payload = f.unpadded(flags, payload, priority=True)
        if flags & f.END_HEADERS:
            self._take_block(flags, number, payload)
        else:
            self._block, self._block_stream, self._block_flags = [payload], number, flags

    def _take_continuation(self, flags: int, payload: bytes) -> None:
        block, bounds = self._block, self._host.bounds
        if block is None:
            raise Broken(Fault.PROTOCOL, "a header block is continued that was not begun")
        block.append(payload)
        if len(block) > bounds.max_continuations or sum(map(len, block)) > bounds.max_header_bytes:
            raise Broken(Fault.ENHANCE_YOUR_CALM, "a header block is longer than we take")
        if flags & f.END_HEADERS:
            self._block = None
            self._take_block(self._block_flags, self._block_stream, b"".join(block))

    def _take_block(self, flags: int, number: int, block: bytes) -> None:
        fields = self._fields.read(block)
        if number > self._last:
            self._last = number
            self._begin(number, fields)
            if flags & f.END_STREAM and (begun := self.streams.get(number)) is not None:
                begun.end_heard()
            return
        stream = self.streams.get(number)  # Trailers: they say that it ends, and nothing else that we need.
        if stream is not None and not stream.has_heard_end:
            if not flags & f.END_STREAM:
                raise Broken(Fault.PROTOCOL, "headers in the middle of a stream")
            stream.end_heard()

    def _begin(self, number: int, fields: Fields) -> None:
        host = self._host
        is_full = len(self.streams) >= host.bounds.max_streams or not host.has_room()
        if self._is_closed or self._takes_no_more or is_full:
            self.write(f.reset_frame(number, Fault.REFUSED))
            return
        stream = Stream(self, number, self._peer_window)
        self.streams[number] = stream
        serve = host.service(fields.get(b":path", b"")) if fields.get(b":method") == b"POST" else None
        if serve is None:
            stream.finish(UNIMPLEMENTED, "There is no such service here.")
        else:
            stream.taker = serve(stream)

    def _take_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Broken(Fault.FRAME_SIZE, "a reset of a wrong length")
        stream = self.streams.get(number)
        if stream is None:
            self._check_closed(number)
            return
        stream.lose()
        self.forget(stream)

    def _take_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Broken(Fault.PROTOCOL, "settings of a stream")
        if flags & f.ACK:
            return
        if len(payload) % f.SETTING.size:
            raise Broken(Fault.FRAME_SIZE, "settings of a wrong length")
        for name, value in f.SETTING.iter_unpack(payload):
            if name == f.INITIAL_WINDOW:
                self._resize_windows(value)
            elif name == f.MAX_FRAME and f.USUAL_FRAME <= value <= f.LARGEST_FRAME:
                self.peer_frame = value
        self._answer(f.frame(f.SETTINGS, f.ACK, 0))
        self._go_on()

    def _resize_windows(self, size: int) -> None:
        if size > f.LARGEST_WINDOW:
            raise Broken(Fault.FLOW_CONTROL, "a window larger than there can be")
        more, self._peer_window = size - self._peer_window, size
        for stream in self.streams.values():
            stream.send_window += more

    def _take_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) != 8:
            raise Broken(Fault.PROTOCOL, "a ping of a wrong form")
        if not flags & f.ACK:
            self._answer(f.frame(f.PING, f.ACK, 0, payload))

    def _take_window(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Broken(Fault.FRAME_SIZE, "a window update of a wrong length")
        more = f.WORD.unpack(payload)[0] & f.LARGEST_WINDOW
        if not number:
            self.send_window += more
            if not more or self.send_window > f.LARGEST_WINDOW:
                raise Broken(Fault.FLOW_CONTROL, "a window grows to what it cannot be")
            self._go_on()
            return
        stream = self.streams.get(number)
        if stream is None:
            self._check_closed(number)
            return
        stream.send_window += more
        if not more or stream.send_window > f.LARGEST_WINDOW:
            stream.lose()
            stream.reset(Fault.FLOW_CONTROL)
        elif number in self._waiting and stream.room_came():
            self._waiting.pop(number, None)

    def _check_closed(self, number: int) -> None:
        """What is said of a stream that has ended is old news; of one that never was it is a fault."""
        if number > self._last or not number & 1:
            raise Broken(Fault.PROTOCOL, "of a stream that was not begun")

    def _answer(self, raw: bytes) -> None:
        """Write what the other side makes us write, unless it does not read."""
        if self.transport.get_write_buffer_size() > self._host.bounds.unread_answers_bytes:
            raise Broken(Fault.ENHANCE_YOUR_CALM, "asks and does not listen")
        self.write(raw)

    # -- what streams ask for --------------------------------------------------------------------------------------

    def write(self, raw: bytes) -> None:
        """Say it, at the end of this tick: a system call per frame would be most of what a frame costs."""
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

    def wait_for_room(self, stream: Stream) -> None:
        self._waiting[stream.number] = stream

    def forget(self, stream: Stream) -> None:
        stream.part()
        self.streams.pop(stream.number, None)
        self._waiting.pop(stream.number, None)

    def take_room(self, count: int) -> bool:
        return self._host.take_room(count)

    def give_room(self, count: int) -> None:
        self._host.give_room(count)

    def _go_on(self) -> None:
        for stream in tuple(self._waiting.values()):
            if self.send_window <= 0 or self.is_stuck:
                return
            if stream.room_came():
                self._waiting.pop(stream.number, None)

    # -- time and ending -------------------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """Ask who is silent whether they are there, and end what has waited too long. Told every second or so."""
        bounds = self._host.bounds
        if self._heard:
            self._heard, self._has_asked, self._silent_since_s = False, False, now_s
        if self._unread or self._block is not None or not self._has_preface:
            self._since_s = now_s if self._since_s is None else self._since_s
            if now_s - self._since_s > (bounds.frame_s if self._has_preface else bounds.preface_s):
                self.transport.abort()
                return
        if now_s - self._silent_since_s > bounds.silence_s:
            if self._has_asked:
                self.transport.abort()
                return
            self._has_asked, self._silent_since_s = True, now_s
            self.write(f.frame(f.PING, 0, 0, b"hearth??"))
        for stream in tuple(self.streams.values()):
            if not stream.is_finished:
                stream.taker.check(now_s)
        if self._leaving_since_s is not None and now_s - self._leaving_since_s > LEAVING_S:
            self._leave()

    def say_goodbye(self) -> None:
        """Ask for no more streams. Those that were on their way when this was said are served like all others."""
        if self._leaving_since_s is None:
            self._leaving_since_s = asyncio.get_running_loop().time()
            self.write(f.goaway_frame(f.LARGEST_WINDOW, Fault.NONE))

    def _leave(self) -> None:
        """Say which stream is the last that is served: those beyond it may be sent elsewhere without fear. Then the
        other side ends the connection, or we do at the next look: who is closed upon while speaking is reset.
        """
        if has_unread(self.transport):
            return
        if not self._takes_no_more:
            self._takes_no_more = True
            self.write(f.goaway_frame(self._last, Fault.NONE))
        elif not self.streams:
            self.close()
        else:
            for stream in tuple(self.streams.values()):
                if not stream.is_finished:
                    stream.taker.leave()

    def close(self, fault: Fault = Fault.NONE, words: str = "") -> None:
        """End at once, and say why."""
        if not self._is_closed:
            self._is_closed = True
            self.write(f.goaway_frame(self._last, fault, words))
            self._flush()
            self.transport.close()

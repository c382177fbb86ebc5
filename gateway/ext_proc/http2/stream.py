"""One gRPC stream: bytes of frames to messages, messages to frames, within what both sides have room for."""

from __future__ import annotations

from collections import deque
from typing import Protocol
from urllib.parse import quote

from gateway.ext_proc.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    Http2ErrorCode,
    frame,
    reset_frame,
    window_frame,
)

PREFIX_BYTES = 5
"""Of a gRPC message: whether it is compressed, and how long it is."""

SMALL_BYTES = 512
"""Pieces of unfinished messages that are shorter than this are joined."""

# Literals without indexing: no table of ours has to be kept in step.
RESPONSE_HEADERS = b"\x88" + b"\x0f\x10\x10application/grpc"

PLAIN_IN_STATUS = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"
"""Characters of a status message that stand as they are; all others but letters, digits and `_.-~` are escaped."""


class GrpcStreamHandler:
    """Serves one stream; does nothing unless overridden. No method is called after `ended` or `lost`."""

    __slots__ = ()

    def on_message(self, message: bytes) -> None:
        """Handle a whole message."""

    def on_end(self) -> None:
        """Handle the end of the client's messages."""

    def on_lost(self) -> None:
        """Handle the loss of the stream."""

    def on_too_large(self) -> None:
        """Handle a message that is too long, or for which there is no room now. The stream must be finished."""

    def on_tick(self, now_s: float) -> None:
        """End what has waited too long. Called every second or so."""

    def on_drain(self) -> None:
        """End what would never end by itself: the connection is draining. Called every second or so."""


NULL_HANDLER = GrpcStreamHandler()
"""Serves a stream that is over. The former handler knows the stream: if the stream still knew its handler, both would
stay in memory, with all that they hold, until the next garbage collection.
"""


class StreamConnection(Protocol):
    """What a stream needs of its connection."""

    send_window: int
    initial_window: int
    """The peer's initial window of each stream. It may change; `GrpcStream.credit` counts from it."""
    stream_window: int
    """The initial window that this side grants each stream."""
    is_stuck: bool
    peer_frame: int
    max_message_bytes: int
    pending_bytes: int

    @property
    def local_host(self) -> str:
        """The address of this side, by which the peer has reached it; empty where it has none."""
        ...

    def write(self, raw: bytes) -> None: ...
    def wait_for_room(self, stream: GrpcStream) -> None: ...
    def forget(self, stream: GrpcStream) -> None: ...
    def fail(self, stream: GrpcStream, fault: Http2ErrorCode) -> None:
        """Reset a stream whose frames are malformed."""
        ...

    def report(self, stream: GrpcStream, fault: Exception) -> None:
        """Log an exception of a stream's handler, and reset that stream."""
        ...

    def take_room(self, count: int) -> bool:
        """Return whether so many more bytes of incomplete messages may be buffered."""
        ...

    def give_room(self, count: int) -> None: ...


class GrpcStream:
    """From its request's headers to its trailers."""

    __slots__ = (
        *("_finish", "_held", "_held_bytes", "_is_finished", "_owed", "_pending", "_pending_bytes", "_room_bytes"),
        *("credit", "handler", "has_started", "has_received_end", "number", "wire"),
    )

    def __init__(self, wire: StreamConnection, number: int) -> None:
        self.wire = wire
        self.handler: GrpcStreamHandler = NULL_HANDLER
        self.number = number
        self.credit = 0
        """Window granted beyond the initial one, less what was sent."""
        self.has_started = False
        """Whether any part of its response was sent."""
        self.has_received_end = False
        self._held: list[bytes | bytearray] = []
        self._held_bytes = 0
        self._room_bytes = 0
        """Of the buffered bytes, those counted against the budget."""
        self._owed = 0
        """Bytes received whose window was not returned yet."""
        self._pending: deque[bytes | memoryview] = deque()
        self._pending_bytes = 0
        self._is_finished = False
        self._finish: bytes | None = None

    def __repr__(self) -> str:
        return f"<GrpcStream {self.number}, {self._held_bytes} bytes held, {self._pending_bytes} pending>"

    @property
    def is_finished(self) -> bool:
        """Whether its trailers were sent or are queued."""
        return self._is_finished

    # -- receiving ------------------------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """Bytes that the peer's window allows on this stream; negative if it has shrunk its initial window."""
        return self.wire.initial_window + self.credit

    def feed(self, payload: bytes, size: int) -> None:
        """Receive bytes of DATA. `size` includes padding, as flow control counts it."""
        if self._is_finished:
            return
        self._owed += size
        if self._owed > self.wire.stream_window:
            self.wire.fail(self, Http2ErrorCode.FLOW_CONTROL)
            return
        if not self._held and payload[:PREFIX_BYTES] == _prefix(len(payload) - PREFIX_BYTES):
            self.handler.on_message(payload[PREFIX_BYTES:])
        else:
            self._hold(payload)
            self._take_complete()
        self._pay()

    def on_end_stream(self) -> None:
        self.has_received_end = True
        if not self._is_finished:
            self.handler.on_end()

    def abandon(self) -> None:
        """End a lost stream: release what is held of it and call its handler."""
        self._is_finished = True
        self._give_room()
        self._held.clear()
        self._pending.clear()
        try:
            self.detach_handler().on_lost()
        except Exception as fault:  # noqa: BLE001 - a connection and its other streams outlive the service of one
            self.wire.report(self, fault)

    def detach_handler(self) -> GrpcStreamHandler:
        """Detach the handler of a stream that is over. Returns it."""
        handler, self.handler = self.handler, NULL_HANDLER
        return handler

    def _hold(self, payload: bytes) -> None:
        """Buffer a piece. Small ones are joined: as separate objects they would take many times their length."""
        self._held_bytes += len(payload)
        if len(payload) >= SMALL_BYTES:
            self._held.append(payload)
        elif self._held and isinstance(last := self._held[-1], bytearray):
            last += payload
        else:
            self._held.append(bytearray(payload))

    def _take_complete(self) -> None:
        """Deliver each complete message; the rest stays buffered."""
        size = self._first_size()
        if size is None or self._held_bytes < size:
            return
        self._held[0] = self._held[0][PREFIX_BYTES:]  # A long message is copied once, by the join.
        complete = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        self._give_room()
        at = size - PREFIX_BYTES
        self.handler.on_message(complete[:at])
        while not self._is_finished and len(complete) - at >= PREFIX_BYTES:
            begin = at + PREFIX_BYTES
            size = int.from_bytes(complete[at + 1 : begin], "big")
            if complete[at] or size + PREFIX_BYTES > self.wire.max_message_bytes:
                self.handler.on_too_large()
                return
            if len(complete) - begin < size:
                break
            at = begin + size
            self.handler.on_message(complete[begin:at])
        if at < len(complete) and not self._is_finished:
            self._hold(complete[at:])
            self._first_size()

    def _first_size(self) -> int | None:
        """Return how long the first held message is with its prefix, once that is known and there is room for it."""
        if self._held_bytes < PREFIX_BYTES or self._is_finished:
            return None
        if len(self._held[0]) < PREFIX_BYTES:
            self._held = [b"".join(self._held)]
        size = int.from_bytes(self._held[0][1:PREFIX_BYTES], "big") + PREFIX_BYTES
        if self._held[0][0] or size > self.wire.max_message_bytes:
            self.handler.on_too_large()
            return None
        if self._held_bytes < size:
            self._hold_room()
        return size

    def _hold_room(self) -> None:
        more = self._held_bytes - self._room_bytes
        if self.wire.take_room(more):
            self._room_bytes += more
        else:
            self.handler.on_too_large()

    def _give_room(self) -> None:
        if self._room_bytes:
            self.wire.give_room(self._room_bytes)
            self._room_bytes = 0

    def _pay(self) -> None:
        """Return window in large steps, unless the peer does not read what it is sent."""
        if self._owed >= 1 << 15 and not self.has_received_end and self._pending_bytes <= self.wire.pending_bytes:
            if not self._is_finished:
                self.wire.write(window_frame(self.number, self._owed))
            self._owed = 0

    # -- sending -------------------------------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        """Send a message, now or as the window allows."""
        if self._is_finished:
            return
        self._push(_prefix(len(message)) + message)

    def finish(self, status: int = 0, words: str = "") -> None:
        """Send the trailers after all queued messages. `status`: a gRPC status code."""
        if self._is_finished:
            return
        self._is_finished = True
        self._give_room()
        self._held.clear()
        trailers = _literal(b"grpc-status", b"%d" % status)
        if words:
            trailers += _literal(b"grpc-message", quote(words, safe=PLAIN_IN_STATUS).encode())
        if not self.has_started:
            trailers = RESPONSE_HEADERS + trailers
        self._finish = frame(HEADERS, END_HEADERS | END_STREAM, self.number, trailers)
        self._close_when_sent()

    def reset(self, fault: Http2ErrorCode = Http2ErrorCode.CANCEL) -> None:
        """Reset the stream at once."""
        self.wire.write(reset_frame(self.number, fault))
        self.wire.forget(self)

    def flush(self) -> bool:
        """Send queued messages. Returns whether all were sent."""
        while self._pending and (room := self._room()):
            piece = self._pending.popleft()
            if len(piece) > room:
                view = memoryview(piece)  # A copy of the rest for each small window would cost the rest each time.
                self._pending.appendleft(view[room:])
                piece = view[:room]
            self._pending_bytes -= len(piece)
            self._write(piece)
        self._close_when_sent()
        self._pay()
        return not self._pending

    def _push(self, raw: bytes) -> None:
        if not self._pending and len(raw) <= self._room():
            self._write(raw)
            return
        self._pending.append(raw)
        self._pending_bytes += len(raw)
        if not self.flush():
            self.wire.wait_for_room(self)

    def _room(self) -> int:
        wire = self.wire
        return 0 if wire.is_stuck else max(0, min(wire.initial_window + self.credit, wire.send_window, wire.peer_frame))

    def _write(self, raw: bytes | memoryview) -> None:
        self.credit -= len(raw)
        self.wire.send_window -= len(raw)
        written = frame(DATA, 0, self.number, raw)
        if not self.has_started:
            self.has_started = True
            written = frame(HEADERS, END_HEADERS, self.number, RESPONSE_HEADERS) + written
        self.wire.write(written)

    def _close_when_sent(self) -> None:
        if self._finish is not None and not self._pending:
            self.wire.write(self._finish)
            self._finish = None
            if not self.has_received_end:
                self.wire.write(reset_frame(self.number, Http2ErrorCode.NONE))
            self.wire.forget(self)


def _prefix(size: int) -> bytes:
    """Return the gRPC prefix of an uncompressed message."""
    return b"\0" + (size & 0xFFFFFFFF).to_bytes(4, "big")


def _literal(name: bytes, value: bytes) -> bytes:
    """Encode a literal header field; both parts are shorter than 127 bytes."""
    value = value[:120]
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value

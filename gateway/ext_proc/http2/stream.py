"""One gRPC stream: bytes of frames to messages, messages to frames, within what both sides have room for."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from gateway.ext_proc.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    Fault,
    frame,
    reset_frame,
    window_frame,
)

PREFIX_BYTES = 5
"""Of a gRPC message: whether it is compressed, and how long it is."""

SMALL_BYTES = 512
"""Pieces of unfinished messages that are shorter than this are joined."""

# Literals without indexing: no table of ours has to be kept in step.
ANSWER_HEAD = b"\x88" + b"\x0f\x10\x10application/grpc"


class Taker(Protocol):
    """Whoever serves a stream. Nothing is told after `ended` and `lost`."""

    def take(self, message: bytes) -> None:
        """A whole message."""
        ...

    def ended(self) -> None:
        """The other side has said all that it will say."""
        ...

    def lost(self) -> None:
        """The stream is no more."""
        ...

    def overfull(self) -> None:
        """A message is longer than may be held, or than there is room for now. The stream is to be finished."""
        ...

    def check(self, now_s: float) -> None:
        """Time passes: end what has waited too long. Told every second or so."""
        ...

    def leave(self) -> None:
        """The connection is to end: what would never end by itself does now. Told every second or so."""
        ...


class Nobody:
    """Serves a stream that is over. Whoever served it knows the stream: did it know them still, both would stay in
    memory, with all that they hold, until the next collection.
    """

    def take(self, message: bytes) -> None: ...
    def ended(self) -> None: ...
    def lost(self) -> None: ...
    def overfull(self) -> None: ...
    def check(self, now_s: float) -> None: ...
    def leave(self) -> None: ...


NOBODY = Nobody()


class Wire(Protocol):
    """What a stream needs of its connection."""

    send_window: int
    initial_window: int
    """What the other side gives each stream to begin with. It may change; streams count from it."""
    stream_window: int
    """What this side gives each stream."""
    is_stuck: bool
    peer_frame: int
    max_message_bytes: int
    pending_bytes: int

    def write(self, raw: bytes) -> None: ...
    def wait_for_room(self, stream: Stream) -> None: ...
    def forget(self, stream: Stream) -> None: ...
    def fail(self, stream: Stream, fault: Fault) -> None:
        """Reset a stream whose frames are wrong."""
        ...

    def report(self, stream: Stream, fault: Exception) -> None:
        """Log what the service of a stream has raised, and end that stream."""
        ...

    def take_room(self, count: int) -> bool:
        """Whether so many more bytes of unfinished messages may be held."""
        ...

    def give_room(self, count: int) -> None: ...


class Stream:
    """From its request's headers to its trailers."""

    __slots__ = (
        *("_finish", "_held", "_held_bytes", "_is_finished", "_owed", "_pending", "_pending_bytes", "_room_bytes"),
        *("_wire", "credit", "has_begun", "has_heard_end", "number", "taker"),
    )

    def __init__(self, wire: Wire, number: int) -> None:
        self._wire = wire
        self.taker: Taker = NOBODY
        self.number = number
        self.credit = 0
        """What it may send beyond the initial window of its connection: granted, less what was sent."""
        self.has_begun = False
        """Whether anything of its answer was sent."""
        self.has_heard_end = False
        self._held: list[bytes | bytearray] = []
        self._held_bytes = 0
        self._room_bytes = 0
        """Of the held bytes, those that were counted as room taken."""
        self._owed = 0
        """Bytes read for which no window was given back yet."""
        self._pending: deque[bytes | memoryview] = deque()
        self._pending_bytes = 0
        self._is_finished = False
        self._finish: bytes | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.number}, {self._held_bytes} bytes held, {self._pending_bytes} pending>"

    @property
    def wire(self) -> Wire:
        """Its connection."""
        return self._wire

    @property
    def is_finished(self) -> bool:
        """Whether we have said all that we will say."""
        return self._is_finished

    # -- what comes ------------------------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """Bytes that the other side has room for on this stream; negative where it has taken room back."""
        return self._wire.initial_window + self.credit

    def feed(self, payload: bytes, size: int) -> None:
        """Take some more of its bytes. `size` counts padding as well: that is what windows count."""
        if self._is_finished:
            return
        self._owed += size
        if self._owed > self._wire.stream_window:
            self._wire.fail(self, Fault.FLOW_CONTROL)
            return
        if not self._held and payload[:PREFIX_BYTES] == _prefix(len(payload) - PREFIX_BYTES):
            self.taker.take(payload[PREFIX_BYTES:])
        else:
            self._hold(payload)
            self._take_whole()
        self._pay()

    def end_heard(self) -> None:
        self.has_heard_end = True
        if not self._is_finished:
            self.taker.ended()

    def lose(self) -> None:
        """The stream is gone: what is held of it is let go, and who serves it is told."""
        self._is_finished = True
        self._give_room()
        self._held.clear()
        self._pending.clear()
        try:
            self.part().lost()
        except Exception as fault:  # noqa: BLE001 - a connection and its other streams outlive the service of one
            self._wire.report(self, fault)

    def part(self) -> Taker:
        """It is over: nobody serves it from here on. Returns who did."""
        taker, self.taker = self.taker, NOBODY
        return taker

    def _hold(self, payload: bytes) -> None:
        """Keep a piece. Small ones are joined: as objects of their own they would take many times their length."""
        self._held_bytes += len(payload)
        if len(payload) >= SMALL_BYTES:
            self._held.append(payload)
        elif self._held and isinstance(last := self._held[-1], bytearray):
            last += payload
        else:
            self._held.append(bytearray(payload))

    def _take_whole(self) -> None:
        """Pass on each message that is held whole; what is left is kept."""
        size = self._first_size()
        if size is None or self._held_bytes < size:
            return
        self._held[0] = self._held[0][PREFIX_BYTES:]  # A long message is copied once, by the join.
        whole = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        self._give_room()
        at = size - PREFIX_BYTES
        self.taker.take(whole[:at])
        while not self._is_finished and len(whole) - at >= PREFIX_BYTES:
            begin = at + PREFIX_BYTES
            size = int.from_bytes(whole[at + 1 : begin], "big")
            if whole[at] or size + PREFIX_BYTES > self._wire.max_message_bytes:
                self.taker.overfull()
                return
            if len(whole) - begin < size:
                break
            at = begin + size
            self.taker.take(whole[begin:at])
        if at < len(whole) and not self._is_finished:
            self._hold(whole[at:])
            self._first_size()

    def _first_size(self) -> int | None:
        """Return how long the first held message is with its prefix, once that is known and there is room for it."""
        if self._held_bytes < PREFIX_BYTES or self._is_finished:
            return None
        if len(self._held[0]) < PREFIX_BYTES:
            self._held = [b"".join(self._held)]
        size = int.from_bytes(self._held[0][1:PREFIX_BYTES], "big") + PREFIX_BYTES
        if self._held[0][0] or size > self._wire.max_message_bytes:
            self.taker.overfull()
            return None
        if self._held_bytes < size:
            self._hold_room()
        return size

    def _hold_room(self) -> None:
        more = self._held_bytes - self._room_bytes
        if self._wire.take_room(more):
            self._room_bytes += more
        else:
            self.taker.overfull()

    def _give_room(self) -> None:
        if self._room_bytes:
            self._wire.give_room(self._room_bytes)
            self._room_bytes = 0

    def _pay(self) -> None:
        """Give window back in large steps, unless the other side does not take what it is sent."""
        if self._owed >= 1 << 15 and not self.has_heard_end and self._pending_bytes <= self._wire.pending_bytes:
            if not self._is_finished:
                self._wire.write(window_frame(self.number, self._owed))
            self._owed = 0

    # -- what goes -------------------------------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        """One message, now or as room comes."""
        if self._is_finished:
            return
        self._push(_prefix(len(message)) + message)

    def finish(self, status: int = 0, words: str = "") -> None:
        """No message follows."""
        if self._is_finished:
            return
        self._is_finished = True
        self._give_room()
        self._held.clear()
        trailers = _literal(b"grpc-status", b"%d" % status)
        if words:
            trailers += _literal(b"grpc-message", words.encode("ascii", "replace").replace(b"%", b"%25"))
        if not self.has_begun:
            trailers = ANSWER_HEAD + trailers
        self._finish = frame(HEADERS, END_HEADERS | END_STREAM, self.number, trailers)
        self._close_when_sent()

    def reset(self, fault: Fault = Fault.CANCEL) -> None:
        """End it at once."""
        self._wire.write(reset_frame(self.number, fault))
        self._wire.forget(self)

    def room_came(self) -> bool:
        """Send what waits. Returns whether all of it went."""
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
        if not self.room_came():
            self._wire.wait_for_room(self)

    def _room(self) -> int:
        wire = self._wire
        return 0 if wire.is_stuck else max(0, min(wire.initial_window + self.credit, wire.send_window, wire.peer_frame))

    def _write(self, raw: bytes | memoryview) -> None:
        self.credit -= len(raw)
        self._wire.send_window -= len(raw)
        written = frame(DATA, 0, self.number, raw)
        if not self.has_begun:
            self.has_begun = True
            written = frame(HEADERS, END_HEADERS, self.number, ANSWER_HEAD) + written
        self._wire.write(written)

    def _close_when_sent(self) -> None:
        if self._finish is not None and not self._pending:
            self._wire.write(self._finish)
            self._finish = None
            if not self.has_heard_end:
                self._wire.write(reset_frame(self.number, Fault.NONE))
            self._wire.forget(self)


def _prefix(size: int) -> bytes:
    """Before a message that is not compressed."""
    return b"\0" + (size & 0xFFFFFFFF).to_bytes(4, "big")


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field, written out; both parts are shorter than 127 bytes."""
    value = value[:120]
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value

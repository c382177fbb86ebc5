"""What a peer of the picker's port can make it do: bounds as ratios to a plain exchange, measured in the same run.

The connection is fed in this process without a socket, so that CPU time is that of the port alone.
"""

from __future__ import annotations

import asyncio
import struct
import time
import tracemalloc
from typing import cast

import pytest
from hpack import Encoder

from gateway.ext_proc.http2.connection import Http2Connection
from gateway.ext_proc.http2.frames import Http2Limits
from gateway.ext_proc.http2.stream import GrpcStream, GrpcStreamHandler
from gateway.ext_proc.listener import GrpcListener, StreamCounter
from gateway.http.client_request import BodyBudget

ECHO, HOLD, KEEP = "/test.Echo/Echo", "/test.Hold/Hold", "/test.Keep/Keep"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, _, PING, GOAWAY, WINDOW_UPDATE, _ = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED = 0x4, 0x8
WINDOW = 4
CALM = 11
MOST = (1 << 31) - 1

IDLE_STREAMS = 19_000


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, stream) + payload


def block(path: str) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "picker"), ("te", "trailers")]
    encoder = Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode(fields))


BLOCKS = {path: block(path) for path in (ECHO, HOLD, KEEP)}
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)


def opened(number: int, path: str, *, ends: bool = False) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), number, BLOCKS[path])


def message(text: bytes) -> bytes:
    return b"\0" + struct.pack(">L", len(text)) + text


def plain(number: int) -> bytes:
    """A plain exchange: headers, a message of 200 bytes, the end."""
    return opened(number, ECHO) + frame(DATA, END_STREAM, number, message(b"x" * 200))


def windows(*sizes: int) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", WINDOW, size) for size in sizes))


def window(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", more))


class Service(GrpcStreamHandler):
    """Says every message back; `ends`: and ends when its client has."""

    def __init__(self, stream: GrpcStream, *, ends: bool, says: bytes = b"") -> None:
        self._stream = stream
        self._ends = ends
        self._says = says

    def on_message(self, message: bytes) -> None:
        self._stream.send(self._says or message)

    def on_end(self) -> None:
        if self._ends:
            self._stream.finish()

    def on_too_large(self) -> None:
        self._stream.finish(8)


class Pipe(asyncio.Transport):
    """A transport that keeps what is written; a peer that does not read leaves all of it in its buffer."""

    def __init__(self, *, reads: bool = True) -> None:
        super().__init__()
        self.written = bytearray()
        self.reads = reads
        self.is_closed = False
        self.protocol: Http2Connection | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        if not self.reads and self.protocol is not None and len(self.written) > 1 << 16:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0 if self.reads else len(self.written)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Rig:
    """One connection of a port whose loop runs only when it is asked to."""

    def __init__(
        self,
        bounds: Http2Limits | None = None,
        *,
        reads: bool = True,
        says: bytes = b"",
        gives: int = 1 << 30,
        most: int = 1_000_000,
    ) -> None:
        """`gives`: bytes that the peer has room for on the connection, beyond the usual; `most`: requests at once."""
        self.budget = BodyBudget(1 << 26)
        services = {
            ECHO.encode(): lambda stream: Service(stream, ends=True, says=says),
            HOLD.encode(): lambda stream: Service(stream, ends=False, says=says),
        }
        self.port = GrpcListener(services, self.budget, StreamCounter(most), bounds or Http2Limits())
        self.connection = cast("Http2Connection", self.port.protocol())
        self.pipe = Pipe(reads=reads)
        self.pipe.protocol = self.connection
        self.connection.connection_made(self.pipe)
        self.connection.data_received(HELLO + (window(0, gives) if gives else b""))

    async def feed(self, *pieces: bytes) -> float:
        """Have the connection take these and flush what it has to say. Returns the CPU seconds that it took."""
        began = time.process_time()
        for piece in pieces:
            if not self.pipe.is_closed:
                self.connection.data_received(piece)
                self.connection._flush()
        return time.process_time() - began

    @property
    def goaway(self) -> int | None:
        """The code of its GOAWAY, None where it goes on."""
        at = self.pipe.written.rfind(frame(GOAWAY, 0, 0)[3:])
        return int(struct.unpack_from(">L", self.pipe.written, at + 10)[0]) if self.pipe.is_closed and at >= 0 else None

    def close(self) -> None:
        self.connection.connection_lost(None)
        self.port.close()


async def exchange_s(count: int = 2000) -> float:
    """CPU seconds of one plain exchange."""
    rig = Rig()
    reported = [b"".join(plain(number) for number in range(at, at + 40, 2)) for at in range(1, 2 * count, 40)]
    took_s = await rig.feed(*reported)
    assert rig.goaway is None
    assert not rig.connection.streams
    rig.close()
    return took_s / count


async def exchanges(rig: Rig, *pieces: bytes) -> float:
    """The CPU time of an attack, counted in plain exchanges."""
    return await rig.feed(*pieces) / await exchange_s()


async def with_streams(rig: Rig, count: int, text: bytes = b"") -> None:
    """Open streams that stay, and have an answer under way where they have asked."""
    requested = frame(DATA, 0, 0, message(text))[5:] if text else b""
    for number in range(1, 2 * count, 2):
        data = b"" if not requested else frame(DATA, 0, number, message(text))
        rig.connection.data_received(opened(number, HOLD) + data)
    rig.connection._flush()
    assert len(rig.connection.streams) == count


async def test_window_sizes_cost_the_same_however_many_streams_are_open() -> None:
    """2,700 values a frame over 19,000 idle streams: two frames, 33 KB, cost less than 400 plain exchanges."""
    rig = Rig()
    await with_streams(rig, IDLE_STREAMS)
    sizes = [1 + at % 60_000 for at in range(2_700)]
    assert await exchanges(rig, windows(*sizes), windows(*reversed(sizes))) < 400
    assert rig.goaway is None
    rig.close()


FLOODS = {
    "SETTINGS": frame(SETTINGS, 0, 0),
    "SETTINGS with values": windows(*range(2_700)),
    "SETTINGS acknowledged": frame(SETTINGS, ACK, 0),
    "PING": frame(PING, 0, 0, b"12345678"),
    "PING acknowledged": frame(PING, ACK, 0, b"12345678"),
    "PRIORITY": frame(PRIORITY, 0, 5, b"\0\0\0\0\1"),
    "GOAWAY": frame(GOAWAY, 0, 0, b"\0" * 8),
    "an unknown frame": frame(0xF0, 0, 0),
    "empty DATA": frame(DATA, 0, 1),
    "DATA that is all padding": frame(DATA, PADDED, 1, b"\x03abc"),
    "DATA of a closed stream": frame(DATA, 0, 3, b"x"),
    "RST_STREAM of a closed stream": frame(RST_STREAM, 0, 3, b"\0\0\0\0"),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_frames_that_carry_nothing_are_bounded(name: str) -> None:
    """A flood of them ends with ENHANCE_YOUR_CALM, and costs less than 1,000 plain exchanges until then."""
    rig = Rig()
    await rig.feed(opened(1, HOLD), opened(3, ECHO, ends=True))
    assert await exchanges(rig, *[FLOODS[name] * 10] * 1_000) < 1_000
    assert rig.goaway == CALM
    rig.close()


FAULTS = {
    "window updates of nothing": lambda number: opened(number, HOLD) + window(number, 0),
    "windows that overflow": lambda number: opened(number, HOLD) + window(number, MOST) * 2,
    "DATA after the end": lambda number: opened(number, HOLD, ends=True) + frame(DATA, 0, number, b"x"),
    "HEADERS after the end": lambda number: opened(number, HOLD, ends=True) * 2,
    "HEADERS in the middle": lambda number: opened(number, HOLD) * 2,
    "malformed requests": lambda number: frame(HEADERS, END_HEADERS, number, b"\x83"),
    "priorities of a wrong length": lambda number: opened(number, HOLD) + frame(PRIORITY, 0, number, b"\0"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_streams_that_have_to_be_reset_are_bounded(name: str) -> None:
    """A peer that makes the port reset stream after stream is closed, and none of them stays open."""
    rig = Rig()
    assert await exchanges(rig, *(FAULTS[name](number) for number in range(1, 2_000, 2))) < 1_000
    assert rig.goaway == CALM
    assert len(rig.connection.streams) <= 1
    rig.close()


async def test_blocks_of_very_many_fields_are_bounded() -> None:
    """A block of 1,300 fields costs hundreds of plain exchanges: a dozen of them, and the connection is closed."""
    rig = Rig()
    bomb = block(KEEP) + b"\x00\x01a\x01b" * 1_300
    await rig.feed(*(frame(HEADERS, END_HEADERS, number, bomb) for number in range(1, 60, 2)))
    assert rig.goaway == CALM
    rig.close()


async def test_rapid_resets_are_bounded() -> None:
    """As many as streams may be open at once (all clients of an Envoy may leave together), then it is closed."""
    rig = Rig(Http2Limits(max_streams=2_000))
    reset = [opened(number, HOLD) + frame(RST_STREAM, 0, number, b"\0\0\0\x08") for number in range(1, 20_000, 2)]
    await rig.feed(*reset[:2_000])
    assert rig.goaway != CALM
    assert await exchanges(rig, *reset[2_000:]) < 2 * len(reset)
    assert rig.goaway == CALM
    rig.close()


async def test_a_peer_with_work_may_ping_and_reset() -> None:
    """Exchanges give back what pings cost: four with each, and a reset after each answer, for as long as it likes."""
    rig = Rig()
    ping, reset = frame(PING, 0, 0, b"12345678"), b"\0\0\0\x08"
    for number in range(1, 10_000, 2):
        requested = opened(number, HOLD) + frame(DATA, 0, number, message(b"x"))
        await rig.feed(requested + ping * 4 + frame(RST_STREAM, 0, number, reset))
    assert rig.goaway is None
    rig.close()


@pytest.mark.parametrize("why", ["refused", "no such service"])
async def test_a_peer_whose_requests_are_not_served_stays(why: str) -> None:
    """What crosses the end of such streams is no attack: data, their end, and a reset of each."""
    rig = Rig(most=0 if why == "refused" else 1_000_000)
    path = block(HOLD if why == "refused" else KEEP)
    for number in range(1, 10_000, 2):
        late = frame(DATA, 0, number, b"x" * 1_000) * 3 + frame(RST_STREAM, 0, number, b"\0\0\0\x08")
        await rig.feed(frame(HEADERS, END_HEADERS, number, path) + late)
    assert rig.goaway is None
    assert not rig.connection.streams
    rig.close()


@pytest.mark.parametrize("by", ["the connection's window", "their own windows"])
async def test_small_windows_cost_the_same_however_many_streams_wait(by: str) -> None:
    """One byte more for one of 19,000 streams that wait does not touch the others."""
    rig = Rig(gives=0 if by == "the connection's window" else 1 << 30)
    if by == "their own windows":
        await rig.feed(windows(0))
        await with_streams(rig, IDLE_STREAMS, b"x" * 100)
        small = [window(1 + 2 * (at % IDLE_STREAMS), 1) for at in range(2_000)]
    else:
        await rig.feed(windows(1 << 20))
        await with_streams(rig, IDLE_STREAMS, b"x" * 100)
        small = [window(0, 1) for _ in range(2_000)]
    assert await exchanges(rig, *small) < 10 * len(small)
    assert rig.goaway is None
    rig.close()


async def test_windows_that_wake_all_streams_again_and_again_are_bounded() -> None:
    """SETTINGS that add a byte to 5,000 waiting streams count what they wake; after a few the connection is closed."""
    rig = Rig()
    await rig.feed(windows(0))
    await with_streams(rig, 5_000, b"x" * 1_000)
    assert await exchanges(rig, *(windows(size) for size in range(1, 900))) < 40_000
    assert rig.goaway == CALM
    rig.close()


async def test_a_long_answer_to_small_windows_is_not_copied_each_time() -> None:
    """A message of 8 MiB that goes out byte by byte costs at most two plain exchanges a byte."""
    rig = Rig(says=b"x" * (8 << 20))
    await rig.feed(windows(0), opened(1, HOLD), frame(DATA, 0, 1, message(b"x")))
    assert await exchanges(rig, *[window(1, 1)] * 2_000) < 2 * 2_000
    rig.close()


async def test_messages_of_no_bytes_are_split_in_one_go() -> None:
    """A frame of 3,000 empty messages, each of which is answered, costs no more than as many plain exchanges."""
    rig = Rig()
    await rig.feed(opened(1, HOLD))
    assert await exchanges(rig, *[frame(DATA, 0, 1, message(b"") * 3_000)] * 20) < 20 * 3_000
    rig.close()


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_small_pieces_of_a_message_take_what_they_are_counted_as(size: int) -> None:
    """An unfinished message in tiny frames: memory is at most twice the bytes that the budget counts."""
    rig = Rig(Http2Limits(stream_window=1 << 22))
    await rig.feed(opened(1, HOLD) + frame(DATA, 0, 1, b"\0" + struct.pack(">L", 4 << 20)))
    piece = frame(DATA, 0, 1, b"x" * size) * 100
    rig.connection.data_received(piece)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held = rig.budget.held_bytes
        for _ in range(5_000 // (size + 9)):
            rig.connection.data_received(bytes(piece))
            rig.connection._flush()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rig.goaway is None
    assert after - before < 2 * (rig.budget.held_bytes - held) + 64_000
    rig.close()


@pytest.mark.parametrize("name", ["PING", "no such service"])
async def test_a_peer_that_does_not_read_is_closed(name: str) -> None:
    """Answers that nobody takes are bounded, whatever asks for them."""
    bounds = Http2Limits(max_unread_response_bytes=1 << 17, max_idle_frames=1 << 30)
    rig = Rig(bounds, reads=False)
    if name == "PING":
        await rig.feed(*[frame(PING, 0, 0, b"12345678") * 100] * 1_000)
    else:
        await rig.feed(*(frame(HEADERS, END_HEADERS, number, block(KEEP)) for number in range(1, 40_000, 2)))
    assert rig.goaway == CALM
    assert len(rig.pipe.written) < 2 * bounds.max_unread_response_bytes
    rig.close()

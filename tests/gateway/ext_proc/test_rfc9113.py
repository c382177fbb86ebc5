"""RFC 9113 and RFC 7541 held against the port, section by section, in the order in which h2spec names its cases.

Frames are written by hand and read by `hyperframe`, so that no code of ours judges itself.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import pytest
from hpack import Encoder
from hpack.struct import NeverIndexedHeaderTuple
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

from gateway.ext_proc.http2.frames import Http2Limits
from tests.gateway.ext_proc.echoing import ECHO, Echo, Echoing, echoing

HOLD = "/test.Hold/Hold"
"""A service that does not end its streams by itself."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LAST_PING = b"the last"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
TABLE_SIZE, PUSH, STREAMS, WINDOW, FRAME, LIST = range(1, 7)
MOST = (1 << 31) - 1


class Code(IntEnum):
    """Error codes (section 7)."""

    NO_ERROR = 0
    PROTOCOL = 1
    FLOW_CONTROL = 3
    STREAM_CLOSED = 5
    FRAME_SIZE = 6
    REFUSED = 7
    COMPRESSION = 9
    CALM = 11


class Held(Echo):
    """A service that goes on when its client has ended."""

    def on_end(self) -> None:
        self.fates.append("ended")


@dataclass(frozen=True)
class Case:
    """What is written after the handshake, and what comes of it."""

    name: str
    written: bytes
    connection: Code | None = None
    """The code of the GOAWAY that ends the connection."""
    stream: tuple[int, Code] | None = None
    """The stream that is reset, and the code; the connection goes on."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack(">L", size)[1:] + struct.pack(">BBL", kind, flags, stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", *pair) for pair in pairs))


def window(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", more))


def reset(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">L", code))


def block(
    *more: tuple[str, str], path: str = ECHO, without: Sequence[str] = (), first: Sequence[tuple[str, str]] = ()
) -> bytes:
    """A header block that needs no table: each of its fields is written out."""
    usual = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "picker")]
    fields = [*first, *(field for field in usual if field[0] not in without), ("te", "trailers"), *more]
    return fields_block(*fields)


def fields_block(*fields: tuple[str, str]) -> bytes:
    never = [NeverIndexedHeaderTuple(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    return bytes(Encoder().encode(never, huffman=False))


def headers(stream: int, payload: bytes | None = None, flags: int = 0) -> bytes:
    return frame(HEADERS, END_HEADERS | flags, stream, block() if payload is None else payload)


def message(text: bytes) -> bytes:
    return b"\0" + struct.pack(">L", len(text)) + text


HALF_CLOSED = headers(1, block(path=HOLD), END_STREAM)
CLOSED = headers(1) + frame(DATA, END_STREAM, 1, message(b"x"))
"""The service ends with its client: nothing of it is under way any more."""
WAS_RESET = headers(1, block(path=HOLD)) + reset(1)

LENGTH = ("content-length", "7")

CASES = [
    # 4.1: frame format
    Case("4.1 a frame of unknown type is ignored", frame(0xF0, 0xFF, 1, b"x" * 8)),
    Case("4.1 undefined flags are ignored", frame(PING, 0xF6, 0, b"12345678")),
    Case("4.1 the reserved bit is ignored", frame(PING, 0, 1 << 31, b"12345678")),
    # 4.2: frame size
    Case("4.2 the largest frame is taken", headers(1) + frame(DATA, 0, 1, message(b"x" * 16_379))),
    Case("4.2 a longer DATA frame", headers(1) + frame(DATA, 0, 1, b"x" * 16_385), Code.FRAME_SIZE),
    Case("4.2 a longer HEADERS frame", frame(HEADERS, END_HEADERS, 1, b"x" * 16_385), Code.FRAME_SIZE),
    # 4.3: field section compression
    Case("4.3 a block that cannot be read", headers(1, b"\x00\x85\xf2\xb2\x4a"), Code.COMPRESSION),
    Case(
        "4.3 PRIORITY inside a block", frame(HEADERS, 0, 1, block()) + frame(PRIORITY, 0, 1, b"\0" * 5), Code.PROTOCOL
    ),
    Case("4.3 HEADERS of another stream inside a block", frame(HEADERS, 0, 1, block()) + headers(3), Code.PROTOCOL),
    # 5.1: stream states
    Case("5.1 idle: DATA", frame(DATA, END_STREAM, 1, b"x"), Code.PROTOCOL),
    Case("5.1 idle: RST_STREAM", reset(1), Code.PROTOCOL),
    Case("5.1 idle: WINDOW_UPDATE", window(1, 100), Code.PROTOCOL),
    Case("5.1 idle: CONTINUATION", frame(CONTINUATION, END_HEADERS, 1, block()), Code.PROTOCOL),
    Case("5.1 idle: PRIORITY", frame(PRIORITY, 0, 1, b"\0\0\0\0\x0f")),
    Case("5.1 half closed: DATA", HALF_CLOSED + frame(DATA, END_STREAM, 1, b"x"), stream=(1, Code.STREAM_CLOSED)),
    Case("5.1 half closed: HEADERS", HALF_CLOSED + headers(1, flags=END_STREAM), stream=(1, Code.STREAM_CLOSED)),
    Case("5.1 half closed: CONTINUATION", HALF_CLOSED + frame(CONTINUATION, END_HEADERS, 1, block()), Code.PROTOCOL),
    Case("5.1 half closed: WINDOW_UPDATE, PRIORITY", HALF_CLOSED + window(1, 9) + frame(PRIORITY, 0, 1, b"\0" * 5)),
    Case("5.1 half closed: RST_STREAM", HALF_CLOSED + reset(1)),
    Case("5.1 reset: DATA", WAS_RESET + frame(DATA, END_STREAM, 1, b"x"), stream=(1, Code.STREAM_CLOSED)),
    Case("5.1 reset: HEADERS", WAS_RESET + headers(1, flags=END_STREAM), Code.STREAM_CLOSED),
    Case("5.1 reset: CONTINUATION", WAS_RESET + frame(CONTINUATION, END_HEADERS, 1, block()), Code.PROTOCOL),
    Case("5.1 reset: WINDOW_UPDATE, RST_STREAM, PRIORITY", WAS_RESET + window(1, 9) + reset(1)),
    Case("5.1 closed: DATA", CLOSED + frame(DATA, END_STREAM, 1, b"x"), stream=(1, Code.STREAM_CLOSED)),
    Case("5.1 closed: HEADERS", CLOSED + headers(1, flags=END_STREAM), Code.STREAM_CLOSED),
    Case("5.1 closed: CONTINUATION", CLOSED + frame(CONTINUATION, END_HEADERS, 1, block()), Code.PROTOCOL),
    Case("5.1 closed: WINDOW_UPDATE, RST_STREAM", CLOSED + window(1, 9) + reset(1)),
    Case("5.1 ended here first: DATA under way", headers(1, block(path="/none")) + frame(DATA, END_STREAM, 1, b"x")),
    Case(
        "5.1 ended here first, then there: DATA",
        headers(1, block(path="/none")) + frame(DATA, END_STREAM, 1, b"x") * 2,
        stream=(1, Code.STREAM_CLOSED),
    ),
    Case("5.1 ended here first: trailers under way", headers(1, block(path="/none")) + headers(1, flags=END_STREAM)),
    # 5.1.1: stream identifiers
    Case("5.1.1 an even number", headers(2), Code.PROTOCOL),
    Case("5.1.1 a lower number than before", headers(5) + headers(3), Code.PROTOCOL),
    Case("5.1.1 stream 0", headers(0), Code.PROTOCOL),
    # 5.3.1 of RFC 7540: dependencies
    Case(
        "5.3.1 HEADERS that depends on itself",
        frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, struct.pack(">LB", 1, 15) + block()),
        stream=(1, Code.PROTOCOL),
    ),
    Case(
        "5.3.1 PRIORITY that depends on itself",
        headers(1, block(path=HOLD)) + frame(PRIORITY, 0, 1, struct.pack(">LB", 1, 15)),
        stream=(1, Code.PROTOCOL),
    ),
    Case(
        "5.3.1 PRIORITY of an idle stream that depends on itself",
        frame(PRIORITY, 0, 1, struct.pack(">LB", 1, 15)),
        Code.PROTOCOL,
    ),
    Case(
        "5.3.1 HEADERS that depends on another",
        frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, struct.pack(">LB", 0x80000003, 15) + block()),
    ),
    # 5.5: extending
    Case("5.5 an unknown frame inside a block", frame(HEADERS, 0, 1, block()) + frame(0xF0, 0, 1), Code.PROTOCOL),
    # 6.1: DATA
    Case("6.1 DATA of stream 0", frame(DATA, 0, 0, b"x"), Code.PROTOCOL),
    Case("6.1 DATA with padding as long as the frame", headers(1) + frame(DATA, PADDED, 1, b"\x05abcd"), Code.PROTOCOL),
    Case("6.1 DATA with padding and no length of it", headers(1) + frame(DATA, PADDED, 1), Code.FRAME_SIZE),
    Case("6.1 DATA that is all padding", headers(1) + frame(DATA, PADDED, 1, b"\x04abcd")),
    # 6.2: HEADERS
    Case("6.2 HEADERS with padding as long as the frame", headers(1, b"\xff" + block(), PADDED), Code.PROTOCOL),
    Case("6.2 HEADERS too short for a priority", headers(1, b"\0\0\0\0", WITH_PRIORITY), Code.FRAME_SIZE),
    Case("6.2 HEADERS with padding", headers(1, b"\x02" + block() + b"\0\0", PADDED)),
    # 6.3: PRIORITY
    Case("6.3 PRIORITY of stream 0", frame(PRIORITY, 0, 0, b"\0" * 5), Code.PROTOCOL),
    Case(
        "6.3 PRIORITY of a wrong length",
        headers(1, block(path=HOLD)) + frame(PRIORITY, 0, 1, b"\0" * 4),
        stream=(1, Code.FRAME_SIZE),
    ),
    Case("6.3 PRIORITY of a wrong length, idle", frame(PRIORITY, 0, 1, b"\0" * 4), Code.FRAME_SIZE),
    # 6.4: RST_STREAM
    Case("6.4 RST_STREAM of stream 0", reset(0), Code.PROTOCOL),
    Case("6.4 RST_STREAM of an idle stream", reset(7), Code.PROTOCOL),
    Case("6.4 RST_STREAM of a wrong length", headers(1) + frame(RST_STREAM, 0, 1, b"\0" * 3), Code.FRAME_SIZE),
    # 6.5: SETTINGS
    Case("6.5 an acknowledgement with a payload", frame(SETTINGS, ACK, 0, b"\0" * 6), Code.FRAME_SIZE),
    Case("6.5 SETTINGS of a stream", frame(SETTINGS, 0, 1), Code.PROTOCOL),
    Case("6.5 SETTINGS of a wrong length", frame(SETTINGS, 0, 0, b"\0" * 3), Code.FRAME_SIZE),
    Case("6.5 an acknowledgement", frame(SETTINGS, ACK, 0)),
    Case("6.5.2 ENABLE_PUSH of 2", settings((PUSH, 2)), Code.PROTOCOL),
    Case("6.5.2 ENABLE_PUSH of 0 and 1", settings((PUSH, 0), (PUSH, 1))),
    Case("6.5.2 ENABLE_PUSH of 2, taken back in the same frame", settings((PUSH, 2), (PUSH, 0)), Code.PROTOCOL),
    Case("6.5.2 INITIAL_WINDOW_SIZE above 2^31-1", settings((WINDOW, 1 << 31)), Code.FLOW_CONTROL),
    Case("6.5.2 MAX_FRAME_SIZE below 2^14", settings((FRAME, 16_383)), Code.PROTOCOL),
    Case("6.5.2 MAX_FRAME_SIZE of 1", settings((FRAME, 1)), Code.PROTOCOL),
    Case("6.5.2 MAX_FRAME_SIZE above 2^24-1", settings((FRAME, 1 << 24)), Code.PROTOCOL),
    Case("6.5.2 MAX_FRAME_SIZE at its ends", settings((FRAME, 16_384)) + settings((FRAME, (1 << 24) - 1))),
    Case("6.5.2 an unknown setting", settings((0xFF, 1))),
    # 6.6: PUSH_PROMISE (and h2spec 8.2)
    Case("6.6 PUSH_PROMISE", headers(1) + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + block()), Code.PROTOCOL),
    # 6.7: PING
    Case("6.7 PING of a stream", frame(PING, 0, 1, b"12345678"), Code.PROTOCOL),
    Case("6.7 PING of a wrong length", frame(PING, 0, 0, b"123456"), Code.FRAME_SIZE),
    Case("6.7 a PING acknowledged that was not sent", frame(PING, ACK, 0, b"12345678")),
    # 6.8: GOAWAY
    Case("6.8 GOAWAY of a stream", frame(GOAWAY, 0, 1, b"\0" * 8), Code.PROTOCOL),
    Case("6.8 GOAWAY of a wrong length", frame(GOAWAY, 0, 0, b"\0" * 7), Code.FRAME_SIZE),
    Case("6.8 GOAWAY", frame(GOAWAY, 0, 0, b"\0" * 8 + b"some words")),
    # 6.9: WINDOW_UPDATE
    Case("6.9 an increment of 0, connection", window(0, 0), Code.PROTOCOL),
    Case("6.9 an increment of 0, stream", headers(1, block(path=HOLD)) + window(1, 0), stream=(1, Code.PROTOCOL)),
    Case("6.9 WINDOW_UPDATE of a wrong length", frame(WINDOW_UPDATE, 0, 0, b"\0\0\0"), Code.FRAME_SIZE),
    Case("6.9 WINDOW_UPDATE of a wrong length, stream", frame(WINDOW_UPDATE, 0, 1, b"\0\0\0"), Code.FRAME_SIZE),
    Case("6.9.1 the connection's window above 2^31-1", window(0, MOST) * 2, Code.FLOW_CONTROL),
    Case(
        "6.9.1 a stream's window above 2^31-1",
        headers(1, block(path=HOLD)) + window(1, MOST) * 2,
        stream=(1, Code.FLOW_CONTROL),
    ),
    Case(
        "6.9.2 a stream's window above 2^31-1 by SETTINGS",
        headers(1, block(path=HOLD)) + window(1, MOST - 65_535) + settings((WINDOW, 65_536)),
        Code.FLOW_CONTROL,
    ),
    Case(
        "6.9.2 a stream's window at 2^31-1 by SETTINGS",
        headers(1, block(path=HOLD)) + window(1, MOST - 70_000) + settings((WINDOW, 70_000)),
    ),
    # 6.10: CONTINUATION
    Case(
        "6.10 several CONTINUATION frames",
        frame(HEADERS, 0, 1, block()[:9])
        + frame(CONTINUATION, 0, 1, block()[9:12])
        + frame(CONTINUATION, END_HEADERS, 1, block()[12:]),
    ),
    Case(
        "6.10 CONTINUATION, then DATA",
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1) + frame(DATA, 0, 1, b"x"),
        Code.PROTOCOL,
    ),
    Case(
        "6.10 CONTINUATION of stream 0",
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, END_HEADERS, 0),
        Code.PROTOCOL,
    ),
    Case("6.10 CONTINUATION after a whole block", headers(1) + frame(CONTINUATION, END_HEADERS, 1), Code.PROTOCOL),
    Case(
        "6.10 CONTINUATION after the last",
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, END_HEADERS, 1) * 2,
        Code.PROTOCOL,
    ),
    Case(
        "6.10 CONTINUATION after DATA",
        headers(1) + frame(DATA, 0, 1, message(b"x")) + frame(CONTINUATION, END_HEADERS, 1),
        Code.PROTOCOL,
    ),
    # 7: error codes
    Case("7 GOAWAY of an unknown code", frame(GOAWAY, 0, 0, struct.pack(">LL", 0, 0xFF))),
    Case("7 RST_STREAM of an unknown code", headers(1) + reset(1, 0xFF)),
    # 8.1: message framing
    Case(
        "8.1 a second HEADERS without END_STREAM",
        headers(1, block(path=HOLD)) + headers(1, fields_block(("x-a", "b"))),
        stream=(1, Code.PROTOCOL),
    ),
    Case(
        "8.1 trailers with a pseudo-header field",
        headers(1, block(path=HOLD)) + headers(1, fields_block((":path", "/")), END_STREAM),
        stream=(1, Code.PROTOCOL),
    ),
    Case("8.1 trailers", headers(1) + headers(1, fields_block(("x-a", "b")), END_STREAM)),
    Case("8.1.1 content-length beyond the data", headers(1, block(LENGTH), END_STREAM), stream=(1, Code.PROTOCOL)),
    Case(
        "8.1.1 content-length below the data",
        headers(1, block(LENGTH, path=HOLD)) + frame(DATA, END_STREAM, 1, message(b"xxx")),
        stream=(1, Code.PROTOCOL),
    ),
    Case(
        "8.1.1 content-length above the data of two frames",
        headers(1, block(LENGTH, path=HOLD)) + frame(DATA, 0, 1, message(b"")) + frame(DATA, END_STREAM, 1, b"x"),
        stream=(1, Code.PROTOCOL),
    ),
    Case(
        "8.1.1 content-length, and trailers before all of it",
        headers(1, block(LENGTH, path=HOLD)) + headers(1, fields_block(("x-a", "b")), END_STREAM),
        stream=(1, Code.PROTOCOL),
    ),
    Case(
        "8.1.1 content-length that is kept to",
        headers(1, block(LENGTH)) + frame(DATA, END_STREAM, 1, message(b"xx")),
    ),
    *(
        Case(f"8.1.1 content-length {value!r}", headers(1, block(("content-length", value))), stream=(1, Code.PROTOCOL))
        for value in ("-1", "+7", "7a", "", "9" * 20)
    ),
    Case(
        "8.1.1 two different content-lengths",
        headers(1, block(LENGTH, ("content-length", "8"))),
        stream=(1, Code.PROTOCOL),
    ),
    # 8.2: fields
    *(
        Case(f"8.2.1 the name {name!r}", headers(1, block((name, "x"))), stream=(1, Code.PROTOCOL))
        for name in ("X-Upper", "x\ry", "x\ny", "x\0y", "x y", "x\x7fy", "x\xe4y", "x:y", "")
    ),
    *(
        Case(f"8.2.1 the value {value!r}", headers(1, block(("x-a", value))), stream=(1, Code.PROTOCOL))
        for value in ("a\rb", "a\nb", "a\0b", " a", "a ", "\ta")
    ),
    Case("8.2.1 the value 'a b\\tc\\xe4'", headers(1, block(("x-a", "a b\tc\xe4")))),
    Case("8.2.1 an empty value", headers(1, block(("x-a", "")))),
    *(
        Case(f"8.2.2 {name}: {value}", headers(1, block((name, value))), stream=(1, Code.PROTOCOL))
        for name, value in (
            ("connection", "keep-alive"),
            ("proxy-connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("te", "trailers, deflate"),
            ("te", "gzip"),
        )
    ),
    Case(
        "8.2.2 connection in trailers",
        headers(1, block(path=HOLD)) + headers(1, fields_block(("connection", "close")), END_STREAM),
        stream=(1, Code.PROTOCOL),
    ),
    # 8.3: control data
    Case("8.3 an unknown pseudo-header field", headers(1, block(first=[(":test", "x")])), stream=(1, Code.PROTOCOL)),
    Case(
        "8.3 a response's pseudo-header field", headers(1, block(first=[(":status", "200")])), stream=(1, Code.PROTOCOL)
    ),
    Case(
        "8.3 a pseudo-header field after a regular one",
        headers(1, block((":path", ECHO), without=(":path",))),
        stream=(1, Code.PROTOCOL),
    ),
    *(
        Case(f"8.3.1 without {name}", headers(1, block(without=(name,))), stream=(1, Code.PROTOCOL))
        for name in (":method", ":scheme", ":path")
    ),
    *(
        Case(f"8.3.1 {name} twice", headers(1, block(first=[(name, value)])), stream=(1, Code.PROTOCOL))
        for name, value in ((":method", "POST"), (":scheme", "http"), (":path", ECHO), (":authority", "picker"))
    ),
    Case("8.3.1 an empty path", headers(1, block(path="")), stream=(1, Code.PROTOCOL)),
    Case("8.3.1 a path without a slash", headers(1, block(path="test.Echo/Echo")), stream=(1, Code.PROTOCOL)),
    Case(
        "8.3.1 OPTIONS *",
        headers(1, block(first=[(":method", "OPTIONS")], without=(":method",), path="*")),
    ),
    Case("8.3.1 without :authority", headers(1, block(without=(":authority",)))),
    Case(
        "8.5 CONNECT with a path",
        headers(1, block(first=[(":method", "CONNECT")], without=(":method",))),
        stream=(1, Code.PROTOCOL),
    ),
    Case("8.5 CONNECT", headers(1, fields_block((":method", "CONNECT"), (":authority", "picker:1")))),
    # RFC 7541
    Case("hpack 2.3.3 an index beyond the table", headers(1, b"\xc8"), Code.COMPRESSION),
    Case("hpack 2.3.3 a name's index beyond the table", headers(1, b"\x7f\x0a\x01x"), Code.COMPRESSION),
    Case(
        "hpack 4.2 a new size of the table at the end of a block",
        headers(1, block() + b"\x3f\xe1\x07"),
        Code.COMPRESSION,
    ),
    Case("hpack 5.1 an integer without an end", headers(1, b"\x0f" + b"\xff" * 12 + b"\x01"), Code.COMPRESSION),
    Case("hpack 5.2 padding of Huffman codes above 7 bits", headers(1, b"\0\x01a\x82\x1f\xff"), Code.COMPRESSION),
    Case("hpack 5.2 padding of Huffman codes by zeros", headers(1, b"\0\x01a\x81\x18"), Code.COMPRESSION),
    Case("hpack 5.2 the end of string", headers(1, b"\0\x01a\x84\xff\xff\xff\xfc"), Code.COMPRESSION),
    Case("hpack 6.1 index 0", headers(1, b"\x80"), Code.COMPRESSION),
    Case("hpack 6.3 a table larger than was offered", headers(1, b"\x3f\xe2\x1f" + block()), Code.COMPRESSION),
]


async def frames_of(port: Echoing, *written: bytes) -> list[Frame]:
    """All frames that the port sends in answer, until its PING is acknowledged or the connection is closed."""
    host, _, number = port.where.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    for each in written:
        writer.write(each)
    found: list[Frame] = []
    raw = b""
    try:
        async with asyncio.timeout(60):
            while not (found and isinstance(found[-1], PingFrame) and found[-1].opaque_data == LAST_PING):
                more = await reader.read(1 << 16)
                if not more:
                    break
                raw = take_frames(raw + more, found)
    except ConnectionError:
        pass
    finally:
        writer.close()
    return found


def take_frames(raw: bytes, found: list[Frame]) -> bytes:
    while len(raw) >= 9:
        one, length = Frame.parse_frame_header(memoryview(raw[:9]))
        if len(raw) < 9 + length:
            break
        one.parse_body(memoryview(raw[9 : 9 + length]))
        found.append(one)
        raw = raw[9 + length :]
    return raw


def hello(*pairs: tuple[int, int]) -> bytes:
    return PREFACE + settings(*pairs)


def ping() -> bytes:
    return frame(PING, 0, 0, LAST_PING)


def goaways(found: list[Frame]) -> list[int]:
    return [one.error_code for one in found if isinstance(one, GoAwayFrame)]


def resets(found: list[Frame]) -> list[tuple[int, int]]:
    """Streams that were reset for a fault."""
    codes = [(one.stream_id, one.error_code) for one in found if isinstance(one, RstStreamFrame)]
    return [code for code in codes if code[1] != Code.NO_ERROR]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_port_keeps_the_rfc(case: Case) -> None:
    """A connection error closes it with its code; a stream error resets the stream alone; the rest is served."""
    async with echoing(more={HOLD.encode(): lambda stream: Held(stream, [])}) as port:
        found = await frames_of(port, hello(), case.written, ping())
    if case.connection is not None:
        assert goaways(found) == [case.connection]
        assert not isinstance(found[-1], PingFrame)
        return
    assert goaways(found) == []
    assert isinstance(found[-1], PingFrame)
    assert resets(found) == ([] if case.stream is None else [case.stream])


@pytest.mark.parametrize(
    "written",
    [b"INVALID CONNECTION PREFACE\r\n\r\n", PREFACE[:-1] + b"x" + settings(), PREFACE + ping(), PREFACE + headers(1)],
    ids=["no preface", "almost the preface", "PING before SETTINGS", "HEADERS before SETTINGS"],
)
async def test_section_3_4_a_wrong_preface_ends_the_connection(written: bytes) -> None:
    """Neither is a later SETTINGS heeded."""
    async with echoing() as port:
        found = await frames_of(port, written, settings(), ping())
    assert goaways(found) == [Code.PROTOCOL]


async def test_section_3_4_the_preface_is_answered_with_settings() -> None:
    """First of all, before anything is acknowledged; in pieces as well."""
    async with echoing() as port:
        found = await frames_of(port, *(bytes((one,)) for one in hello() + ping()))
    assert isinstance(found[0], SettingsFrame)
    assert "ACK" not in found[0].flags
    assert any(isinstance(one, SettingsFrame) and "ACK" in one.flags for one in found)


async def test_section_5_1_2_streams_beyond_the_limit_are_rejected() -> None:
    """One by one; those within it are served."""
    hold = block(path=HOLD)
    async with echoing(Http2Limits(max_streams=2), more={HOLD.encode(): lambda stream: Held(stream, [])}) as port:
        found = await frames_of(port, hello(), headers(1, hold), headers(3, hold), headers(5, hold), ping())
    assert (goaways(found), resets(found)) == ([], [(5, Code.REFUSED)])


async def test_section_5_4_1_a_connection_error_names_the_last_stream() -> None:
    """In GOAWAY, and the connection is closed behind it."""
    async with echoing() as port:
        found = await frames_of(port, hello(), headers(1), frame(PING, 0, 1, b"12345678"), ping())
    assert isinstance(goaway := found[-1], GoAwayFrame)
    assert (goaway.last_stream_id, goaway.error_code) == (1, Code.PROTOCOL)


async def test_section_6_5_3_settings_are_acknowledged_each() -> None:
    """With as many acknowledgements as there were frames."""
    async with echoing() as port:
        found = await frames_of(port, hello(), settings((TABLE_SIZE, 0)), settings(), ping())
    assert sum(isinstance(one, SettingsFrame) and "ACK" in one.flags for one in found) == 3


async def test_section_6_5_3_of_several_values_the_last_counts() -> None:
    """An answer is sent in frames as the last window allows."""
    written = settings((WINDOW, 100), (WINDOW, 1)) + headers(1) + frame(DATA, 0, 1, message(b"x"))
    async with echoing() as port:
        found = await frames_of(port, hello(), written, ping())
    assert [len(one.data) for one in found if isinstance(one, DataFrame)] == [1]


async def test_section_6_7_pings_are_answered_with_what_they_report() -> None:
    """And with ACK."""
    async with echoing() as port:
        found = await frames_of(port, hello(), frame(PING, 0, 0, b"12345678"), ping())
    assert [one.opaque_data for one in found if isinstance(one, PingFrame)] == [b"12345678", LAST_PING]


@pytest.mark.parametrize("before", [True, False], ids=["before the stream", "after its begin"])
async def test_section_6_9_2_windows_change_with_settings(*, before: bool) -> None:
    """Of streams that are open as well; what was sent counts, so a window may be negative until it is made up for."""
    small, requested = settings((WINDOW, 3)), headers(1) + frame(DATA, 0, 1, message(b"12345"))
    begun = hello((WINDOW, 3)) + requested if before else hello((WINDOW, 0)) + requested + small
    async with echoing() as port:
        found = await frames_of(port, begun, settings((WINDOW, 1)), window(1, 2), window(1, 1), window(1, 4), ping())
    assert [len(one.data) for one in found if isinstance(one, DataFrame)] == [3, 1, 4]


async def test_section_6_9_2_a_larger_window_wakes_what_waits() -> None:
    """All streams that were held up by theirs, and none that the connection's window holds up."""
    requested = b"".join(headers(n) + frame(DATA, 0, n, message(b"12345")) for n in (1, 3))
    async with echoing() as port:
        found = await frames_of(port, hello((WINDOW, 0)) + requested, settings((WINDOW, 10)), ping())
    assert [(one.stream_id, len(one.data)) for one in found if isinstance(one, DataFrame)] == [(1, 10), (3, 10)]


async def test_section_6_9_1_a_stream_that_ignores_its_window_is_reset() -> None:
    """What it was granted counts, and what was taken of it."""
    bounds = Http2Limits(stream_window=1 << 16, max_pending_bytes=1 << 10)
    flood = frame(DATA, 0, 1, message(b"x" * 16_379)) * 6
    async with echoing(bounds) as port:
        found = await frames_of(port, hello((WINDOW, 0)), headers(1), flood, ping())
    assert (goaways(found), resets(found)) == ([], [(1, Code.FLOW_CONTROL)])


async def test_section_6_9_1_padding_counts_and_is_given_back() -> None:
    """A stream of padded frames far beyond its window goes on."""
    padded = frame(DATA, PADDED, 1, b"\xff" + message(b"x") + b"\0" * 255) * 500
    async with echoing(Http2Limits(stream_window=1 << 16)) as port:
        found = await frames_of(port, hello(), window(0, 1 << 20), headers(1), padded, ping())
    given = sum(one.window_increment for one in found if one.stream_id == 1 and hasattr(one, "window_increment"))
    assert (goaways(found), resets(found)) == ([], [])
    assert given > 500 * 262 - (1 << 16)


async def test_section_8_1_a_request_is_answered() -> None:
    """Headers, a message, trailers with END_STREAM: what all else is compared with."""
    async with echoing() as port:
        found = await frames_of(port, hello(), headers(1), frame(DATA, END_STREAM, 1, message(b"x")), ping())
    first, second, third = (one for one in found if one.stream_id == 1)
    assert isinstance(first, HeadersFrame)
    assert isinstance(second, DataFrame)
    assert isinstance(third, HeadersFrame)
    assert "END_STREAM" in third.flags


async def test_remembered_streams_are_bounded() -> None:
    """Data for streams that were ended here long ago is answered with a reset, and the connection goes on."""
    numbers = range(1, 41, 2)
    written = b"".join(headers(n, block(path="/none")) for n in numbers)
    late = b"".join(frame(DATA, END_STREAM, n, b"x") for n in numbers)
    async with echoing(Http2Limits(max_remembered_streams=5)) as port:
        found = await frames_of(port, hello(), written, late, ping())
    assert goaways(found) == []
    assert resets(found) == [(n, Code.STREAM_CLOSED) for n in list(numbers)[:-5]]

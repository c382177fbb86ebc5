"""HTTP/2 frames (RFC 9113) as bytes: their heads, their kinds, and those that we write."""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

HEAD_BYTES = 9
HEAD = struct.Struct(">HBBBL")
WORD = struct.Struct(">L")
SETTING = struct.Struct(">HL")

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

PING_BYTES = 8
GOAWAY_BYTES = 8
"""Of a GOAWAY without words: the last stream and the fault."""
PRIORITY_BYTES = 5
"""Of a stream's dependency and weight."""

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_HEADER_LIST = range(1, 7)

USUAL_WINDOW = 65_535
LARGEST_WINDOW = (1 << 31) - 1
USUAL_FRAME = 16_384
LARGEST_FRAME = (1 << 24) - 1


class Fault(IntEnum):
    """Why a connection or a stream is ended, as the wire numbers it."""

    NONE = 0
    PROTOCOL = 1
    INTERNAL = 2
    FLOW_CONTROL = 3
    STREAM_CLOSED = 5
    FRAME_SIZE = 6
    REFUSED = 7
    CANCEL = 8
    COMPRESSION = 9
    ENHANCE_YOUR_CALM = 11


class Broken(Exception):  # noqa: N818 - it is what the connection is then
    """The other side does not speak HTTP/2 as it must: the connection ends."""

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """One whole frame."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings_frame(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in values.items()))


def window_frame(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, WORD.pack(more))


def reset_frame(stream: int, fault: Fault) -> bytes:
    return frame(RST_STREAM, 0, stream, WORD.pack(fault))


def goaway_frame(last: int, fault: Fault, words: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, WORD.pack(last) + WORD.pack(fault) + words.encode())


def unpadded(flags: int, payload: bytes, *, priority: bool = False) -> bytes:
    """Return what a frame carries, without padding and priority. Raises `Broken`."""
    start, padding = 0, 0
    if flags & PADDED:
        if not payload:
            raise Broken(Fault.FRAME_SIZE, "a padded frame without its padding's length")
        start, padding = 1, payload[0]
    if priority and flags & WITH_PRIORITY:
        start += PRIORITY_BYTES
    if start > len(payload):
        raise Broken(Fault.FRAME_SIZE, "a frame too short for its priority")
    end = len(payload) - padding
    if start > end:
        raise Broken(Fault.PROTOCOL, "padding longer than its frame")
    return payload[start:end] if start or padding else payload


def dependency(payload: bytes, at: int = 0) -> int:
    """Return the stream that a priority names as its parent."""
    return int(WORD.unpack_from(payload, at)[0]) & LARGEST_WINDOW

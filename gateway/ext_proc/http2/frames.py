"""HTTP/2 frames (RFC 9113), header blocks (HPACK), the rules for header fields, and the bounds of a connection."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from hpack import Decoder, HPACKError

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

DEFAULT_WINDOW = 65_535
MAX_WINDOW = (1 << 31) - 1
DEFAULT_FRAME_BYTES = 16_384
MAX_FRAME_BYTES = (1 << 24) - 1


class Http2ErrorCode(IntEnum):
    """HTTP/2 error codes (RFC 9113, section 7)."""

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


class Http2Error(Exception):
    """The peer violates HTTP/2: the connection ends."""

    def __init__(self, fault: Http2ErrorCode, words: str) -> None:
        super().__init__(words)
        self.fault = fault


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """Encode one frame."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings_frame(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in values.items()))


def window_frame(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, WORD.pack(more))


def reset_frame(stream: int, fault: Http2ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, WORD.pack(fault))


def goaway_frame(last: int, fault: Http2ErrorCode, words: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, WORD.pack(last) + WORD.pack(fault) + words.encode())


def unpadded(flags: int, payload: bytes, *, priority: bool = False) -> bytes:
    """Return what a frame carries, without padding and priority. Raises `Http2Error`."""
    start, padding = 0, 0
    if flags & PADDED:
        if not payload:
            raise Http2Error(Http2ErrorCode.FRAME_SIZE, "a padded frame without its padding's length")
        start, padding = 1, payload[0]
    if priority and flags & WITH_PRIORITY:
        start += PRIORITY_BYTES
    if start > len(payload):
        raise Http2Error(Http2ErrorCode.FRAME_SIZE, "a frame too short for its priority")
    end = len(payload) - padding
    if start > end:
        raise Http2Error(Http2ErrorCode.PROTOCOL, "padding longer than its frame")
    return payload[start:end] if start or padding else payload


def dependency(payload: bytes, at: int = 0) -> int:
    """Return the stream that a priority names as its parent."""
    return int(WORD.unpack_from(payload, at)[0]) & MAX_WINDOW


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of one connection. Envoy keeps a connection per worker thread, and a stream per request."""

    max_streams: int = 20_000
    """Open at one time on a connection; one whose work has not ended yet counts, also when it was reset."""
    max_message_bytes: int = (32 << 20) + (1 << 20)
    """One message holds a whole body where Envoy was told to buffer it."""
    max_header_bytes: int = 64 << 10
    max_continuations: int = 16
    """Frames of one header block: many small ones cost much and mean nothing."""
    stream_window: int = 1 << 20
    """Bytes of one stream that may be under way to us."""
    max_pending_bytes: int = 256 << 10
    """Unsent bytes of a stream beyond which nothing more of it is read."""
    max_unread_response_bytes: int = 4 << 20
    """Unsent bytes of a connection whose other end goes on asking and does not read: it is closed."""
    max_idle_frames: int = 1_000
    """Frames in a row that carry nothing of a request (settings, pings, priorities, empty data, unknown kinds). Each
    request that was served gives back `frames_per_request` of them, and each second `idle_frames_per_s`.
    """
    idle_frames_per_s: float = 100.0
    frames_per_request: int = 4
    frames_per_fault: int = 10
    """What a stream costs of these that had to be reset because its frames were wrong."""
    resets_per_s: float = 1_000.0
    """Streams that the other end may reset before they were answered, beyond `max_streams` of them at once."""
    max_remembered_streams: int = 1_024
    """Streams ended by this side first, whose frames may still be under way and are ignored; older ones are reset."""
    preface_s: float = 10.0
    """From the connection to the first frame."""
    frame_s: float = 60.0
    """From the beginning of a frame or header block to its end."""
    silence_s: float = 20.0
    """Without a byte: then the other end is asked whether it is there, and after as long again taken to be gone."""


NAME = re.compile(rb"[!-9;-@\[-~]+")
"""Visible ASCII without upper case and without the colon (section 8.2.1)."""
FORBIDDEN_IN_VALUES = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")

CONNECTION_FIELDS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
"""Fields of HTTP/1 connections, which mean nothing here (section 8.2.2)."""

REQUEST_PSEUDO_FIELDS = frozenset((b":method", b":scheme", b":path", b":authority"))
MAX_LENGTH_DIGITS = 19
"""Digits of a content-length."""


def request_fault(fields: Iterable[tuple[bytes, bytes]]) -> str:
    """Return why the fields are no well-formed request, or an empty string where they are one."""
    pseudo: dict[bytes, bytes] = {}
    has_regular = False
    lengths: set[bytes] = set()
    for name, value in fields:
        if FORBIDDEN_IN_VALUES.search(value):
            return "a field's value holds a control character or begins or ends with a space"
        if name[:1] == b":":
            if has_regular:
                return "a pseudo-header field after a regular one"
            if name not in REQUEST_PSEUDO_FIELDS or name in pseudo:
                return "a pseudo-header field that is unknown or repeated"
            pseudo[name] = value
            continue
        has_regular = True
        if fault := _regular_fault(name, value):
            return fault
        if name == b"content-length":
            lengths.add(value)
    if len(lengths) > 1 or not all(value.isdigit() and len(value) <= MAX_LENGTH_DIGITS for value in lengths):
        return "a content-length that is not one number"
    return _pseudo_fault(pseudo)


def trailers_fault(fields: Iterable[tuple[bytes, bytes]]) -> str:
    """Return why the fields are no well-formed trailers, or an empty string where they are."""
    for name, value in fields:
        if FORBIDDEN_IN_VALUES.search(value):
            return "a field's value holds a control character or begins or ends with a space"
        if fault := _regular_fault(name, value):
            return fault
    return ""


def _regular_fault(name: bytes, value: bytes) -> str:
    if NAME.fullmatch(name) is None:
        return "a field's name holds a character that no name may hold"
    if name in CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
        return "a field of HTTP/1 connections"
    return ""


def _pseudo_fault(pseudo: dict[bytes, bytes]) -> str:
    if pseudo.get(b":method") == b"CONNECT":
        is_valid_connect = b":authority" in pseudo and b":scheme" not in pseudo and b":path" not in pseudo
        return "" if is_valid_connect else "a CONNECT with other pseudo-header fields than its own"
    if not all(pseudo.get(name) for name in (b":method", b":scheme", b":path")):
        return "a pseudo-header field is missing or empty"
    path = pseudo[b":path"]
    if path[:1] != b"/" and not (path == b"*" and pseudo[b":method"] == b"OPTIONS"):
        return "a path that does not begin with a slash"
    return ""


MAX_CACHED_BLOCKS = 64
MAX_CACHED_BLOCK_BYTES = 256
"""Of one block: those of an honest Envoy are about fifty bytes long."""

Fields = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class HeaderBlock:
    """A header block that was read: its fields (of one given twice the last), and why it is malformed, if it is."""

    fields: Fields
    count: int
    """Of fields as they were sent, repeated ones included."""
    request_fault: str
    """Why it cannot open a stream; empty where it can."""
    trailers_fault: str
    """Why it cannot end one; empty where it can."""


class HeaderDecoder:
    """One per connection: its dynamic table is shared by all streams."""

    def __init__(self, max_bytes: int) -> None:
        self._decoder = Decoder(max_header_list_size=max_bytes)
        self._known: dict[bytes, HeaderBlock] = {}

    def read(self, block: bytes) -> HeaderBlock:
        """Read a block. Raises `Http2Error` where it cannot be decoded."""
        found = self._known.get(block)
        if found is not None:
            return found
        front, limit = self._table()
        try:
            decoded_fields = [(_raw(name), _raw(value)) for name, value in self._decoder.decode(block, raw=True)]
        except HPACKError as error:
            raise Http2Error(Http2ErrorCode.COMPRESSION, f"a header block cannot be read: {error}") from None
        read = HeaderBlock(
            dict(decoded_fields), len(decoded_fields), request_fault(decoded_fields), trailers_fault(decoded_fields)
        )
        front_now, limit_now = self._table()
        if front_now is not front or limit_now != limit:
            self._known.clear()  # What an index means has changed.
        elif len(self._known) < MAX_CACHED_BLOCKS and len(block) <= MAX_CACHED_BLOCK_BYTES:
            self._known[block] = read
        return read

    def _table(self) -> tuple[object, int]:
        """What tells one state of the table from the next: each entry that comes is a new object at its front."""
        table = self._decoder.header_table
        return table.dynamic_entries[0] if table.dynamic_entries else None, table.maxsize


def _raw(part: str | bytes) -> bytes:
    return part if isinstance(part, bytes) else part.encode()

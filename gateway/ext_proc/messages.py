"""Encodes and decodes ext_proc messages by hand where building protobuf objects costs too much.

Protobuf merges messages that follow one another and set different parts of the same field (a rule of its encoding), so
what never changes is serialised once, and what is sent for every request is put together from bytes. A large body is
cut out of the message that carries it: to build the message would copy it twice more.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gateway.ext_proc.messages_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeadersResponse,
    HttpStatus,
    ImmediateResponse,
    ProcessingMode,
    ProcessingResponse,
    TrailersResponse,
)
from gateway.ext_proc.protocol import DESTINATION, LB_NAMESPACE, REMOVED_HEADERS, STREAMED
from gateway.runtime.protobuf_wire import LENGTH, PAYLOAD, encode_field


def first_field(message: bytes, at: int, end: int, number: int) -> tuple[int, int] | None:
    """Return start and end of a field's content if `message[at:end]` begins with that field, else None."""
    if at >= end or message[at] != number << 3 | LENGTH:
        return None
    size, shift, at = 0, 0, at + 1
    while at < end and shift < 35:
        byte = message[at]
        size |= (byte & PAYLOAD) << shift
        at, shift = at + 1, shift + 7
        if byte <= PAYLOAD:
            return (at, at + size) if at + size <= end else None
    return None


Field = tuple[str, str]

MAX_CHUNK_BYTES = 62_000
"""Of a body in full duplex: other data planes than Envoy take 64 KB and no more."""

REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY = 1, 2, 3, 4
"""Fields of a `ProcessingResponse`: which message it answers."""
COMMON = 1
HEADER_MUTATION, BODY_MUTATION, CLEARS_ROUTE = 2, 3, b"\x28\x01"
SET_HEADERS, REMOVE_HEADERS, HEADER, KEY, RAW_VALUE = 1, 2, 1, 1, 3
BODY, STREAMED_RESPONSE, ENDS_STREAM = 1, 3, b"\x10\x01"
"""Fields within them, as messages.proto numbers them; two boolean fields are written out as bytes."""

CONTINUE = CommonResponse()


@lru_cache(maxsize=256)
def _named(name: str) -> bytes:
    return encode_field(KEY, name.encode("latin-1"))


def _option(name: str, value: bytes) -> bytes:
    return encode_field(SET_HEADERS, encode_field(HEADER, _named(name), encode_field(RAW_VALUE, value)))


def _mutation(fields: Iterable[Field]) -> bytes:
    """Encode the content of a `HeaderMutation` that sets these fields."""
    return b"".join([_option(name, value.encode("latin-1", "replace")) for name, value in fields])


@lru_cache(maxsize=64)
def _dropped(kept: frozenset[str]) -> bytes:
    return b"".join(encode_field(REMOVE_HEADERS, name.encode()) for name in REMOVED_HEADERS if name not in kept)


@lru_cache(maxsize=4096)
def _destination(endpoints: str) -> bytes:
    """Encode the metadata that names the destination, as the header does."""
    text = ProcessingResponse()
    space = text.dynamic_metadata.fields[LB_NAMESPACE].struct_value
    space.fields[DESTINATION].string_value = endpoints
    return text.SerializeToString()


def _picked(endpoints: str, fields: list[Field], *, length: int | None) -> bytes:
    """Encode the content of a `CommonResponse` that sets a request's destination."""
    options = [(DESTINATION, endpoints), *fields]
    if length is not None:
        options.append(("content-length", str(length)))
    dropped = _dropped(frozenset([name for name, _ in options]))
    return encode_field(HEADER_MUTATION, _mutation(options), dropped) + CLEARS_ROUTE


def pick_by_headers(endpoints: str, fields: list[Field], *, length: int | None = None) -> bytes:
    """Answer a request's headers with its destination. `length`: of a body that replaces the client's."""
    common = _picked(endpoints, fields, length=length)
    return encode_field(REQUEST_HEADERS, encode_field(COMMON, common)) + _destination(endpoints)


def pick_by_body(endpoints: str, fields: list[Field], body: bytes | None) -> bytes:
    """Answer a request's buffered body with its destination. `body`: replaces the client's, if not None."""
    common = _picked(endpoints, fields, length=None if body is None else len(body))
    if body is not None:
        common += encode_field(BODY_MUTATION, encode_field(BODY, body))
    return encode_field(REQUEST_BODY, encode_field(COMMON, common)) + _destination(endpoints)


def request_chunks(body: bytes, *, ends: bool) -> list[bytes]:
    """Split a request's body for full duplex. `ends`: no trailers follow."""
    return [
        _piece(REQUEST_BODY, body[at : at + MAX_CHUNK_BYTES], ends=ends and at + MAX_CHUNK_BYTES >= len(body))
        for at in range(0, max(1, len(body)), MAX_CHUNK_BYTES)
    ]


def response_chunks(body: bytes) -> list[bytes]:
    """Split a part of a response for full duplex; its end is a message of its own."""
    return [_piece(RESPONSE_BODY, body[at : at + MAX_CHUNK_BYTES]) for at in range(0, len(body), MAX_CHUNK_BYTES)]


def _piece(phase: int, body: bytes, *, ends: bool = False) -> bytes:
    streamed = encode_field(BODY, body) if body else b""
    if ends:
        streamed += ENDS_STREAM
    return encode_field(
        phase, encode_field(COMMON, encode_field(BODY_MUTATION, encode_field(STREAMED_RESPONSE, streamed)))
    )


def chunk_replacement(body: bytes | None) -> bytes:
    """Answer one chunk of a streamed request: unchanged (None), replaced, or cleared (empty)."""
    if body is None:
        return REQUEST_BODY_CONTINUE
    mutation = BodyMutation(body=body) if body else BodyMutation(clear_body=True)
    return ProcessingResponse(
        request_body=BodyResponse(response=CommonResponse(body_mutation=mutation))
    ).SerializeToString()


def response_head(fields: Iterable[Field], *, shows_body: bool = False) -> bytes:
    """Answer a pod's headers. `shows_body`: asks Envoy to stream the body of this response to us."""
    text = encode_field(RESPONSE_HEADERS, encode_field(COMMON, encode_field(HEADER_MUTATION, _mutation(fields))))
    return text + SHOW_RESPONSE_BODY if shows_body else text


def immediate_response(status: int, fields: Iterable[Field], body: bytes, details: str) -> bytes:
    """Encode a response of the gateway instead of a pod's."""
    text = ImmediateResponse(status=HttpStatus(code=status), body=body, details=details)
    text.headers.MergeFromString(_mutation(fields))
    return ProcessingResponse(immediate_response=text).SerializeToString()


SHOW_BODY = ProcessingMode(response_header_mode=1, response_body_mode=STREAMED, response_trailer_mode=2)

REQUEST_HEADERS_CONTINUE = ProcessingResponse(request_headers=HeadersResponse(response=CONTINUE)).SerializeToString()
REQUEST_BODY_CONTINUE = ProcessingResponse(request_body=BodyResponse(response=CONTINUE)).SerializeToString()
REQUEST_TRAILERS_CONTINUE = ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()
RESPONSE_HEADERS_CONTINUE = ProcessingResponse(response_headers=HeadersResponse(response=CONTINUE)).SerializeToString()
RESPONSE_BODY_CONTINUE = ProcessingResponse(response_body=BodyResponse(response=CONTINUE)).SerializeToString()
RESPONSE_TRAILERS_CONTINUE = ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString()
RESPONSE_END = _piece(RESPONSE_BODY, b"", ends=True)
SHOW_RESPONSE_BODY = ProcessingResponse(mode_override=SHOW_BODY).SerializeToString()


LARGE_BYTES = 8 << 10
"""Messages of at least so many bytes are tried with `split_large_body` first."""

RECEIVED_REQUEST_BODY, RECEIVED_RESPONSE_BODY = 4, 5
"""Fields of a `ProcessingRequest`. Envoy writes fields in the order of their numbers, so these come first."""
ENDS = {b"": False, b"\x10\x01": True, b"\x10\x00": False}
"""What follows the body in an `HttpBody`: whether it ends the stream."""


def split_large_body(message: bytes) -> tuple[int, bytes, bool] | None:
    """Return which body a message carries, the bytes, and whether they are the last; None: decode the whole message."""
    phase = message[0] >> 3
    if phase not in (RECEIVED_REQUEST_BODY, RECEIVED_RESPONSE_BODY):
        return None
    outer = first_field(message, 0, len(message), phase)
    inner = None if outer is None else first_field(message, *outer, BODY)
    if outer is None or inner is None:
        return None
    ends = ENDS.get(message[inner[1] : outer[1]])
    return None if ends is None else (phase, message[slice(*inner)], ends)

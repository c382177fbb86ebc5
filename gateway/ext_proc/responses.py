"""What Envoy is told, as bytes: go on, go there, say no, pass this piece.

Protobuf messages that say different things of the same field are merged when one follows the other (the encoding's own
rule), so what never changes is serialised once. What is said of every request is put together by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gateway.ext_proc import names
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
from gateway.ext_proc.modes import STREAMED
from gateway.ext_proc.protobuf import held

Field = tuple[str, str]

PIECE_BYTES = 62_000
"""Of a body in full duplex: other data planes than Envoy take 64 KB and no more."""

REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY = 1, 2, 3, 4
"""Fields of a `ProcessingResponse`: what it is the answer to."""
COMMON = 1
HEADER_MUTATION, BODY_MUTATION, CLEARS_ROUTE = 2, 3, b"\x28\x01"
SET_HEADERS, REMOVE_HEADERS, HEADER, KEY, RAW_VALUE = 1, 2, 1, 1, 3
BODY, STREAMED_RESPONSE, ENDS_STREAM = 1, 3, b"\x10\x01"
"""Fields within them, as messages.proto numbers them; two that are true or not as they are written."""

GO_ON = CommonResponse()


@lru_cache(maxsize=256)
def _named(name: str) -> bytes:
    return held(KEY, name.encode("latin-1"))


def _option(name: str, value: bytes) -> bytes:
    return held(SET_HEADERS, held(HEADER, _named(name), held(RAW_VALUE, value)))


def _mutation(fields: Iterable[Field]) -> bytes:
    """The content of a `HeaderMutation` that sets these."""
    return b"".join([_option(name, value.encode("latin-1", "replace")) for name, value in fields])


@lru_cache(maxsize=64)
def _dropped(kept: frozenset[str]) -> bytes:
    return b"".join(held(REMOVE_HEADERS, name.encode()) for name in names.NOT_THE_CLIENTS if name not in kept)


@lru_cache(maxsize=4096)
def _destination(endpoints: str) -> bytes:
    """The metadata that names the destination; the header does so as well."""
    told = ProcessingResponse()
    space = told.dynamic_metadata.fields[names.LB_NAMESPACE].struct_value
    space.fields[names.DESTINATION].string_value = endpoints
    return told.SerializeToString()


def _picked(endpoints: str, fields: list[Field], *, length: int | None) -> bytes:
    """The content of a `CommonResponse` that sends a request somewhere."""
    options = [(names.DESTINATION, endpoints), *fields]
    if length is not None:
        options.append(("content-length", str(length)))
    dropped = _dropped(frozenset([name for name, _ in options]))
    return held(HEADER_MUTATION, _mutation(options), dropped) + CLEARS_ROUTE


def pick_by_headers(endpoints: str, fields: list[Field], *, length: int | None = None) -> bytes:
    """The answer to a request's headers: go there. `length` is that of a body that is not the client's."""
    common = _picked(endpoints, fields, length=length)
    return held(REQUEST_HEADERS, held(COMMON, common)) + _destination(endpoints)


def pick_by_body(endpoints: str, fields: list[Field], body: bytes | None) -> bytes:
    """The answer to a request's buffered body: go there, with this body where it is another."""
    common = _picked(endpoints, fields, length=None if body is None else len(body))
    if body is not None:
        common += held(BODY_MUTATION, held(BODY, body))
    return held(REQUEST_BODY, held(COMMON, common)) + _destination(endpoints)


def request_pieces(body: bytes, *, ends: bool) -> list[bytes]:
    """A request's body in full duplex. `ends`: no trailers follow."""
    return [
        _piece(REQUEST_BODY, body[at : at + PIECE_BYTES], ends=ends and at + PIECE_BYTES >= len(body))
        for at in range(0, max(1, len(body)), PIECE_BYTES)
    ]


def answer_pieces(body: bytes) -> list[bytes]:
    """Some of an answer in full duplex; the end is told apart."""
    return [_piece(RESPONSE_BODY, body[at : at + PIECE_BYTES]) for at in range(0, len(body), PIECE_BYTES)]


def _piece(phase: int, body: bytes, *, ends: bool = False) -> bytes:
    streamed = held(BODY, body) if body else b""
    if ends:
        streamed += ENDS_STREAM
    return held(phase, held(COMMON, held(BODY_MUTATION, held(STREAMED_RESPONSE, streamed))))


def replaced_piece(body: bytes | None) -> bytes:
    """The answer to one chunk of a streamed request: as it is (None), this instead, or nothing."""
    if body is None:
        return REQUEST_BODY_GOES_ON
    mutation = BodyMutation(body=body) if body else BodyMutation(clear_body=True)
    return ProcessingResponse(
        request_body=BodyResponse(response=CommonResponse(body_mutation=mutation))
    ).SerializeToString()


def answer_head(fields: Iterable[Field], *, shows_body: bool = False) -> bytes:
    """The answer to a pod's headers. `shows_body`: we would see the body of this answer, though others are not seen."""
    told = held(RESPONSE_HEADERS, held(COMMON, held(HEADER_MUTATION, _mutation(fields))))
    return told + BODY_IS_SHOWN if shows_body else told


def no(status: int, fields: Iterable[Field], body: bytes, details: str) -> bytes:
    """An answer of our own instead of a pod's."""
    told = ImmediateResponse(status=HttpStatus(code=status), body=body, details=details)
    told.headers.MergeFromString(_mutation(fields))
    return ProcessingResponse(immediate_response=told).SerializeToString()


SHOW_BODY = ProcessingMode(response_header_mode=1, response_body_mode=STREAMED, response_trailer_mode=2)

REQUEST_HEADERS_GO_ON = ProcessingResponse(request_headers=HeadersResponse(response=GO_ON)).SerializeToString()
REQUEST_BODY_GOES_ON = ProcessingResponse(request_body=BodyResponse(response=GO_ON)).SerializeToString()
REQUEST_TRAILERS_GO_ON = ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()
ANSWER_HEADERS_GO_ON = ProcessingResponse(response_headers=HeadersResponse(response=GO_ON)).SerializeToString()
ANSWER_BODY_GOES_ON = ProcessingResponse(response_body=BodyResponse(response=GO_ON)).SerializeToString()
ANSWER_TRAILERS_GO_ON = ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString()
ANSWER_ENDS = _piece(RESPONSE_BODY, b"", ends=True)
BODY_IS_SHOWN = ProcessingResponse(mode_override=SHOW_BODY).SerializeToString()

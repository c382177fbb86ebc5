"""What Envoy is told, as bytes: go on, go there, say no, pass this piece.

Protobuf messages that say different things of the same field are merged when one follows the other (the encoding's own
rule), so what never changes is serialised once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gateway.extproc import names
from gateway.extproc.messages_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingMode,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from gateway.extproc.modes import STREAMED

Field = tuple[str, str]

PIECE_BYTES = 62_000
"""Of a body in full duplex: other data planes than Envoy take 64 KB and no more."""

GO_ON = CommonResponse()


def _option(name: str, value: bytes) -> HeaderValueOption:
    return HeaderValueOption(header=HeaderValue(key=name, raw_value=value))


def _mutation(fields: Iterable[Field]) -> HeaderMutation:
    return HeaderMutation(set_headers=[_option(name, value.encode("latin-1", "replace")) for name, value in fields])


@lru_cache(maxsize=16)
def _dropped(kept: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in names.NOT_THE_CLIENTS if name not in kept)


@lru_cache(maxsize=4096)
def _destination(endpoints: str) -> bytes:
    """The metadata that names the destination; the header does so as well."""
    told = ProcessingResponse()
    held = told.dynamic_metadata.fields[names.LB_NAMESPACE].struct_value
    held.fields[names.DESTINATION].string_value = endpoints
    return told.SerializeToString()


def _picked(endpoints: str, fields: list[Field], *, length: int | None) -> CommonResponse:
    told = CommonResponse(clear_route_cache=True)
    mutation = told.header_mutation
    options = [(names.DESTINATION, endpoints), *fields]
    if length is not None:
        options.append(("content-length", str(length)))
    mutation.set_headers.extend([_option(name, value.encode("latin-1")) for name, value in options])
    mutation.remove_headers.extend(_dropped(frozenset([name for name, _ in options])))
    return told


def pick_by_headers(endpoints: str, fields: list[Field], *, length: int | None = None) -> bytes:
    """The answer to a request's headers: go there. `length` is that of a body that is not the client's."""
    told = ProcessingResponse(request_headers=HeadersResponse(response=_picked(endpoints, fields, length=length)))
    return told.SerializeToString() + _destination(endpoints)


def pick_by_body(endpoints: str, fields: list[Field], body: bytes | None) -> bytes:
    """The answer to a request's buffered body: go there, with this body where it is another."""
    common = _picked(endpoints, fields, length=None if body is None else len(body))
    if body is not None:
        common.body_mutation.body = body
    return ProcessingResponse(request_body=BodyResponse(response=common)).SerializeToString() + _destination(endpoints)


def request_pieces(body: bytes, *, ends: bool) -> list[bytes]:
    """A request's body in full duplex. `ends`: no trailers follow."""
    return [
        _request_piece(body[at : at + PIECE_BYTES], ends=ends and at + PIECE_BYTES >= len(body))
        for at in range(0, max(1, len(body)), PIECE_BYTES)
    ]


def _request_piece(body: bytes, *, ends: bool) -> bytes:
    return ProcessingResponse(request_body=_piece(body, ends=ends)).SerializeToString()


def answer_pieces(body: bytes) -> list[bytes]:
    """Some of an answer in full duplex; the end is told apart."""
    if len(body) <= PIECE_BYTES:
        return [ProcessingResponse(response_body=_piece(body, ends=False)).SerializeToString()]
    return [
        ProcessingResponse(response_body=_piece(body[at : at + PIECE_BYTES], ends=False)).SerializeToString()
        for at in range(0, len(body), PIECE_BYTES)
    ]


def _piece(body: bytes, *, ends: bool) -> BodyResponse:
    streamed = StreamedBodyResponse(body=body, end_of_stream=ends)
    return BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed)))


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
    told = ProcessingResponse(
        response_headers=HeadersResponse(response=CommonResponse(header_mutation=_mutation(fields)))
    )
    if shows_body:
        told.mode_override.CopyFrom(SHOW_BODY)
    return told.SerializeToString()


def no(status: int, fields: Iterable[Field], body: bytes, details: str) -> bytes:
    """An answer of our own instead of a pod's."""
    told = ImmediateResponse(status=HttpStatus(code=status), headers=_mutation(fields), body=body, details=details)
    return ProcessingResponse(immediate_response=told).SerializeToString()


SHOW_BODY = ProcessingMode(response_header_mode=1, response_body_mode=STREAMED, response_trailer_mode=2)

REQUEST_HEADERS_GO_ON = ProcessingResponse(request_headers=HeadersResponse(response=GO_ON)).SerializeToString()
REQUEST_BODY_GOES_ON = ProcessingResponse(request_body=BodyResponse(response=GO_ON)).SerializeToString()
REQUEST_TRAILERS_GO_ON = ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()
ANSWER_HEADERS_GO_ON = ProcessingResponse(response_headers=HeadersResponse(response=GO_ON)).SerializeToString()
ANSWER_BODY_GOES_ON = ProcessingResponse(response_body=BodyResponse(response=GO_ON)).SerializeToString()
ANSWER_TRAILERS_GO_ON = ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString()
ANSWER_ENDS = ProcessingResponse(response_body=_piece(b"", ends=True)).SerializeToString()

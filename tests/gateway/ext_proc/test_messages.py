"""What is encoded by hand, against what protobuf makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ext_proc import messages
from gateway.ext_proc.messages import (
    LARGE_BYTES,
    RECEIVED_REQUEST_BODY,
    RECEIVED_RESPONSE_BODY,
    split_large_body,
)
from gateway.ext_proc.messages_pb2 import HeaderMutation, ProcessingRequest, ProcessingResponse
from gateway.runtime.protobuf_wire import encode_field

DESTINATION = "x-gateway-destination-endpoint"
FIELDS = st.lists(st.tuples(st.sampled_from(["x-request-id", "authorization"]), st.text("abc \xe9", max_size=300)))


def fields_of(mutation: HeaderMutation) -> list[tuple[str, str]]:
    return [(one.header.key, one.header.raw_value.decode("latin-1")) for one in mutation.set_headers]


@given(fields=FIELDS, length=st.none() | st.integers(0, 1 << 24))
def test_a_pick_by_headers_names_the_pod_twice_and_sets_fields(
    fields: list[tuple[str, str]], length: int | None
) -> None:
    """Header, metadata, other headers, and what of the client's is taken out."""
    reported = ProcessingResponse.FromString(messages.pick_by_headers("10.0.0.1:80", fields, length=length))
    common = reported.request_headers.response
    own = [("content-length", str(length))] if length is not None else []
    assert fields_of(common.header_mutation) == [(DESTINATION, "10.0.0.1:80"), *fields, *own]
    assert common.clear_route_cache
    assert "x-prefiller-host-port" in common.header_mutation.remove_headers
    assert not {name for name, _ in fields} & set(common.header_mutation.remove_headers)
    space = reported.dynamic_metadata.fields["envoy.lb"].struct_value
    assert space.fields[DESTINATION].string_value == "10.0.0.1:80"


@given(body=st.none() | st.binary(max_size=300))
def test_a_pick_by_body_brings_another_body_where_there_is_one(body: bytes | None) -> None:
    """With its length; else nothing is said of the body."""
    reported = ProcessingResponse.FromString(messages.pick_by_body("10.0.0.1:80", [], body))
    common = reported.request_body.response
    assert common.HasField("body_mutation") == (body is not None)
    assert common.body_mutation.body == (body or b"")
    lengths = [value for name, value in fields_of(common.header_mutation) if name == "content-length"]
    assert lengths == ([] if body is None else [str(len(body))])


@pytest.mark.parametrize("size", [0, 1, 127, 128, 61_999, 62_000, 62_001, 200_000])
@pytest.mark.parametrize("ends", [False, True])
def test_pieces_are_the_body(size: int, *, ends: bool) -> None:
    """In order, none too large, and only the last one ends it, where no trailers follow."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    pieces = [ProcessingResponse.FromString(piece) for piece in messages.request_chunks(body, ends=ends)]
    streamed = [piece.request_body.response.body_mutation.streamed_response for piece in pieces]
    assert b"".join(one.body for one in streamed) == body
    assert [one.end_of_stream for one in streamed] == [False] * (len(streamed) - 1) + [ends]
    assert max(len(one.body) for one in streamed) <= messages.MAX_CHUNK_BYTES
    answers = [ProcessingResponse.FromString(piece) for piece in messages.response_chunks(body)]
    assert b"".join(one.response_body.response.body_mutation.streamed_response.body for one in answers) == body


@given(fields=FIELDS)
def test_an_answers_head_sets_fields_and_may_ask_to_see_the_body(fields: list[tuple[str, str]]) -> None:
    """What is asked for is response mode STREAMED."""
    for shows_body in (False, True):
        reported = ProcessingResponse.FromString(messages.response_head(fields, shows_body=shows_body))
        assert fields_of(reported.response_headers.response.header_mutation) == fields
        assert reported.mode_override.response_body_mode == (1 if shows_body else 0)


def test_a_no_of_ours_is_sent_completely() -> None:
    """Status, headers, body."""
    reported = ProcessingResponse.FromString(
        messages.immediate_response(429, [("retry-after", "1")], b"{}", "hearth")
    ).immediate_response
    assert (reported.status.code, reported.body, fields_of(reported.headers)) == (429, b"{}", [("retry-after", "1")])


@pytest.mark.parametrize("phase", [RECEIVED_REQUEST_BODY, RECEIVED_RESPONSE_BODY])
@given(size=st.integers(LARGE_BYTES, LARGE_BYTES * 9), ends=st.booleans(), has_metadata=st.booleans())
def test_a_large_body_is_cut_out_of_its_message(phase: int, size: int, *, ends: bool, has_metadata: bool) -> None:
    """As reading the whole message finds it."""
    reported = ProcessingRequest()
    stated = reported.request_body if phase == RECEIVED_REQUEST_BODY else reported.response_body
    stated.body, stated.end_of_stream = b"x" * size, ends
    if has_metadata:
        reported.metadata_context.filter_metadata["envoy.lb"].fields["a"].string_value = "b"
    assert split_large_body(reported.SerializeToString()) == (phase, b"x" * size, ends)


@given(message=st.binary(min_size=1, max_size=60))
def test_bytes_that_are_no_message_are_no_body(message: bytes) -> None:
    """Nothing that is written breaks the reading; lengths that lie, and fields nobody knows, are left to protobuf."""
    found = split_large_body(message)
    assert found is None or found[1] in message
    for odd in (
        encode_field(4, b"\x0a\x85\x80"),
        encode_field(4, b"\x0a\x05x"),
        encode_field(4, encode_field(1, b"x"), b"\x1a\x01x"),
        encode_field(2, b"x"),
    ):
        assert split_large_body(odd) is None

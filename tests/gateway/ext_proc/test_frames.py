"""Header blocks that are remembered mean what they mean when read anew."""

from __future__ import annotations

from hpack import Encoder
from hpack.struct import HeaderTuple, NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from gateway.ext_proc.http2.frames import HeaderDecoder

FIRST = bytes.fromhex(
    "8304a560b5773fa5d05b3b98855cbe5315761c8bf7657c1e525b2a1d1aec390a841ec635d87215084185acc4ea5b3f864002746586"
    "4d833505b11f5f8b1d75d0620d263d4c4d6564408cf2b16aee7f4b1aa496ca8747834d9697408bf2b4a7b3c0ec90b22d29ec870be2"
    "5c0b89717f"
)
AGAIN = bytes.fromhex("8304a560b5773fa5d05b3b98855cbe5315761c8bf7657c1e525b2a1d1aec390a841ec635d8721508c286c1c0bfbe")
"""As Envoy 1.40 opens the first stream of a connection, and all others: the path is written out each time."""

NAMES, VALUES = st.sampled_from([b":path", b"te", b"x-one", b"x-two"]), st.sampled_from([b"a", b"b", b"c" * 90])
FIELDS = st.builds(
    lambda name, value, *, stays: (HeaderTuple if stays else NeverIndexedHeaderTuple)(name, value),
    NAMES,
    VALUES,
    stays=st.booleans(),
)


def test_the_block_that_opens_every_stream_is_read_once() -> None:
    """Though its path is no index: it changes nothing, so it is the same the next time."""
    reader = HeaderDecoder(1 << 16)
    opened = reader.read(FIRST)
    assert opened.fields[b":path"] == b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
    assert (opened.request_fault, opened.trailers_fault != "") == ("", True)
    again = reader.read(AGAIN)
    assert again == opened
    assert reader.read(AGAIN) is again


@given(blocks=st.lists(st.lists(FIELDS, min_size=1, max_size=5), max_size=12), sizes=st.lists(st.integers(0, 200)))
def test_what_is_remembered_is_what_was_reported(blocks: list[list[HeaderTuple]], sizes: list[int]) -> None:
    """Whatever comes in between, the table's own changes of size included."""
    encoder, reader = Encoder(), HeaderDecoder(1 << 16)
    for number, fields in enumerate(blocks * 2):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        assert reader.read(encoder.encode(fields)).fields == {bytes(name): bytes(value) for name, value in fields}

"""Frames and messages between a worker and the index process."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.replica_sync.ipc_messages import (
    BrokenFramesError,
    FrameDecoder,
    GapReport,
    Hello,
    HistoryChunk,
    HistoryRequest,
    IpcMessage,
    SnapshotRequest,
    UpdateBatch,
    decode_message,
    encode_frame,
)

NUMBERS = st.integers(0, 2**64 - 1)
MESSAGES = st.one_of(
    st.builds(Hello, NUMBERS),
    st.builds(UpdateBatch, st.binary(max_size=300)),
    st.builds(SnapshotRequest, st.floats(0, 1e6)),
    st.builds(GapReport, NUMBERS, st.floats(0, 1e6)),
    st.builds(HistoryRequest, NUMBERS),
    st.builds(HistoryChunk, NUMBERS, st.lists(st.binary(max_size=30), max_size=3), st.booleans()),
)


@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(1, 400), max_size=40))
def test_frames_come_out_as_they_went_in(messages: list[IpcMessage], cuts: list[int]) -> None:
    """However a connection cuts the bytes, the same messages come out in the same order."""
    stated = b"".join(map(encode_frame, messages))
    frames, found, start = FrameDecoder(), list[IpcMessage | None](), 0
    for cut in [*cuts, len(stated) + 1]:
        found += map(decode_message, frames.feed(stated[start : start + cut]))
        start += cut
    assert found == messages


def test_a_frame_may_be_long() -> None:
    """A body of some megabytes passes, read in pieces of 64 KB."""
    frames, batch = FrameDecoder(), UpdateBatch(bytes(5 << 20))
    stated = encode_frame(batch)
    found = [
        frame for start in range(0, len(stated), 1 << 16) for frame in frames.feed(stated[start : start + (1 << 16)])
    ]
    assert [decode_message(frame) for frame in found] == [batch]


def test_an_absurd_length_ends_the_connection() -> None:
    """Who speaks another protocol is found out by its first length."""
    with pytest.raises(BrokenFramesError):
        FrameDecoder().feed(b"GET / HTTP/1.1\r\n")


def test_words_of_a_later_version_are_passed_over() -> None:
    """An unknown message is none; unknown fields behind the known ones are not read."""
    assert decode_message(msgspec.msgpack.encode([4711, "what is this"])) is None
    assert decode_message(msgspec.msgpack.encode([4, 12, 0.5, "a field to come"])) == GapReport(12, 0.5)
    assert decode_message(msgspec.msgpack.encode({"no": "array"})) is None


def test_what_is_no_message_is_distinguished_from_what_is_unknown() -> None:
    """Bytes that are no MessagePack end the connection; they are not skipped as a word to come."""
    with pytest.raises(BrokenFramesError):
        decode_message(b"\xc1")

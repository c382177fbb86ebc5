"""A line never waits: what is not read is kept up to a bound, and the oldest goes."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.replica_sync.ipc import IpcConnection
from gateway.replica_sync.ipc_messages import (
    FrameDecoder,
    GapReport,
    Hello,
    IpcMessage,
    UpdateBatch,
    decode_message,
    encode_frame,
)


class Pipe(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It takes all."""

    def abort(self) -> None:
        self.is_aborted = True

    def messages(self) -> list[IpcMessage | None]:
        return [decode_message(frame) for frame in FrameDecoder().feed(bytes(self.written))]


def joined(**options: Any) -> tuple[IpcConnection, Pipe, list[IpcMessage]]:
    taken: list[IpcMessage] = []
    line, pipe = IpcConnection(lambda _, message: taken.append(message), **options), Pipe()
    line.connection_made(pipe)
    return line, pipe, taken


async def test_what_is_not_read_is_kept_and_the_oldest_goes() -> None:
    """A paused reader gets the latest that fit, in order, and whoever said the rest was told."""
    line, pipe, _ = joined(max_waiting_bytes=60)
    assert line.send(GapReport(1))
    line.pause_writing()
    reported = [line.send(UpdateBatch(bytes([number]) * 10)) for number in range(10)]
    line.resume_writing()
    assert pipe.messages() == [GapReport(1), *(UpdateBatch(bytes([number]) * 10) for number in range(7, 10))]
    assert (reported, line.dropped) == ([True] * 3 + [False] * 7, 7)
    assert line.send(GapReport(2))
    assert pipe.messages()[-1] == GapReport(2)


async def test_a_pause_while_resuming_is_respected() -> None:
    """The transport may pause again after the first of what was kept."""
    line, pipe, _ = joined()
    line.pause_writing()
    for number in range(5):
        line.send(GapReport(number))
    pipe.write = lambda data: (Pipe.write(pipe, data), line.pause_writing())[0]  # type: ignore[method-assign,func-returns-value]
    line.resume_writing()
    assert pipe.messages() == [GapReport(0)]
    line.resume_writing()
    assert pipe.messages() == [GapReport(0), GapReport(1)]


async def test_nonsense_ends_the_connection_and_the_unknown_does_not() -> None:
    """What a neighbouring version says is passed over; what is no message is no connection of ours."""
    line, pipe, taken = joined()
    line.data_received(encode_frame(Hello(1)) + b"\x00\x00\x00\x03\x92\xcd\xff" + encode_frame(GapReport(2)))
    assert taken == [Hello(1)]
    assert pipe.is_aborted


async def test_the_end_is_reported_once_and_nothing_is_reported_after_it() -> None:
    """Who holds the line hears of its end, and sending says that nobody is there."""
    ended: list[IpcConnection] = []
    line, _, _ = joined(ended=ended.append)
    line.connection_lost(None)
    assert ended == [line]
    assert line.closed.done()
    assert not line.send(GapReport(1))

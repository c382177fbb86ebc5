"""The sockets of one engine's KV events: a subscription, and a second socket for replays of missed batches.

Reads without a task per message: engines publish at every step. ZeroMQ drops messages beyond a bound when the process
is too slow; the sequence numbers reveal the gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import zmq
import zmq.asyncio

from gateway.kv_index.event_feed import EventFeed, sequence_number
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import call_guarded, report_exception, restarted

ZmqContext = zmq.Context[zmq.Socket[bytes]]

HIGH_WATER_MARK = 100_000
"""Messages that ZeroMQ buffers; the default of vLLM."""

READ_AT_ONCE = 128
"""Messages read before other callbacks of the loop run."""

REPLAY_WAIT_S = 2.0
"""Timeout for the next batch of a replay. vLLM reads that socket ten times a second."""

RETRY_S = 5.0

REPLAY_END = b"\xff" * 8
"""The sequence number that ends a replay."""


@dataclass(frozen=True, slots=True)
class EventEndpoint:
    """Where one engine publishes. `bind`: the publisher connects, so the subscriber binds."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    bind: bool = False


class EventSubscriber:
    """The subscription to one engine; `run` until cancelled."""

    def __init__(
        self,
        source: EventEndpoint,
        make_feed: Callable[[Callable[[int], bool]], EventFeed],
        log_event: EventLog,
        sockets: ZmqContext,
    ) -> None:
        """`make_feed` makes the feed, given the function that requests a replay."""
        self.source = source
        self.feed = make_feed(self._request_replay)
        self._log_event = log_event
        self._sockets = sockets
        self._socket: zmq.Socket[bytes] | None = None
        self._replaying: asyncio.Task[None] | None = None

    @restarted("kv events")
    async def run(self) -> None:
        """Subscribe and read until cancelled."""
        with self._sockets.socket(zmq.SUB) as socket:
            await self._open(socket)
            loop, descriptor = asyncio.get_running_loop(), socket.fileno()
            self._socket = socket
            loop.add_reader(descriptor, call_guarded, "kv events", self.drain)
            try:
                self.feed.start()
                self.drain()
                await loop.create_future()
            finally:
                loop.remove_reader(descriptor)
                self._socket = None
                if self._replaying is not None:
                    self._replaying.cancel()

    async def _open(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
        while True:
            try:
                (socket.bind if self.source.bind else socket.connect)(self.source.endpoint)
                return
            except zmq.ZMQError as error:
                why = error.strerror
                self._log_event("warning", "kv_events_subscribe_failed", endpoint=self.source.endpoint, error=why)
                await asyncio.sleep(RETRY_S)

    def drain(self) -> None:
        """Take the messages that have arrived."""
        socket = self._socket
        if socket is None:
            return
        for _ in range(READ_AT_ONCE):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._take(frames)
            except Exception as error:  # noqa: BLE001 - of this batch alone: later ones are read
                report_exception("kv events", error)
        # The descriptor signals new messages only, not those left in the buffer.
        asyncio.get_running_loop().call_soon(call_guarded, "kv events", self.drain)

    def _take(self, frames: list[bytes]) -> None:
        number = sequence_number(frames[1]) if len(frames) == 3 else None
        if number is None:
            self.feed.count.malformed += 1
        else:
            self.feed.take(number, frames[2])

    # -- replays ---------------------------------------------------------------------------------------------------

    def _request_replay(self, start: int) -> bool:
        if self.source.replay_endpoint is None:
            return False
        if self._replaying is not None:
            self._replaying.cancel()
        self._replaying = asyncio.get_running_loop().create_task(self._replay(start), name="replay KV events")
        return True

    async def _replay(self, start: int) -> None:
        answered = False
        try:
            with zmq.asyncio.Context(self._sockets).socket(zmq.DEALER) as socket:
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.IPV6, 1)
                # A replay comes in one burst; messages that are not read in time are dropped by the publisher.
                socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
                socket.connect(self.source.replay_endpoint or "")
                await socket.send_multipart([b"", start.to_bytes(8, "big")])
                answered = await self._read_replay(socket)
        except zmq.ZMQError as error:
            why = error.strerror
            self._log_event("warning", "kv_event_replay_failed", endpoint=self.source.replay_endpoint, error=why)
        # Batches of the replay that were also published meanwhile lie on the other socket: read after the end of the
        # replay they would look like a restart.
        self.drain()
        self.feed.end_replay(answered=answered)

    async def _read_replay(self, socket: zmq.asyncio.Socket) -> bool:
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(REPLAY_WAIT_S):
                    frames = await socket.recv_multipart()
                if len(frames) != 4 or frames[2] == REPLAY_END:
                    return frames[2:3] == [REPLAY_END]
                number = sequence_number(frames[2])
                if number is not None:
                    self.feed.take_replayed(number, frames[3])
        return False

"""The sockets of one engine's KV events: a subscription, and a second socket on which missed batches are asked for.

Reads without a task per message: an engine says something at every step. What the process is too slow for, ZeroMQ drops
beyond a bound; the gap is noticed by the numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import zmq
import zmq.asyncio

from gateway.kv_index.event_feed import Feed, sequence_of
from gateway.observe.log import EventLog
from gateway.runtime.guard import report, restarted, run

Sockets = zmq.Context[zmq.Socket[bytes]]

MOST_UNREAD = 100_000
"""Messages that ZeroMQ keeps for us; vLLM's own mark."""

READ_AT_ONCE = 128
"""Messages taken before others in the process get their turn."""

REPLAY_WAIT_S = 2.0
"""For the next batch of those asked for. vLLM looks at that socket ten times a second."""

OPEN_AGAIN_S = 5.0

END = b"\xff" * 8
"""In place of a number: all that was asked for has been sent."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one engine publishes. `bind`: it connects to us."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    bind: bool = False


class Subscriber:
    """One per followed engine; `run` until cancelled."""

    def __init__(
        self,
        source: Source,
        make_feed: Callable[[Callable[[int], bool]], Feed],
        say: EventLog,
        sockets: Sockets,
    ) -> None:
        """`make_feed` makes the feed, given what asks for batches again."""
        self.source = source
        self.feed = make_feed(self._ask)
        self._say = say
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
            loop.add_reader(descriptor, run, "kv events", self.drain)
            try:
                self.feed.begin()
                self.drain()
                await loop.create_future()
            finally:
                loop.remove_reader(descriptor)
                self._socket = None
                if self._replaying is not None:
                    self._replaying.cancel()

    async def _open(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.RCVHWM, MOST_UNREAD)
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
                self._say("warning", "cannot subscribe to KV events", endpoint=self.source.endpoint, why=why)
                await asyncio.sleep(OPEN_AGAIN_S)

    def drain(self) -> None:
        """Take what has come by now."""
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
            except Exception as error:  # noqa: BLE001 - of this batch alone: those behind it are read
                report("kv events", error)
        # The descriptor tells of what is new only, not of what is left.
        asyncio.get_running_loop().call_soon(run, "kv events", self.drain)

    def _take(self, frames: list[bytes]) -> None:
        number = sequence_of(frames[1]) if len(frames) == 3 else None
        if number is None:
            self.feed.count.malformed += 1
        else:
            self.feed.take(number, frames[2])

    # -- what was missed -------------------------------------------------------------------------------------------

    def _ask(self, start: int) -> bool:
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
                # All that was asked for comes in one burst, and what we do not take off the wire is dropped there.
                socket.setsockopt(zmq.RCVHWM, MOST_UNREAD)
                socket.connect(self.source.replay_endpoint or "")
                await socket.send_multipart([b"", start.to_bytes(8, "big")])
                answered = await self._read_again(socket)
        except zmq.ZMQError as error:
            why = error.strerror
            self._say("warning", "cannot ask for missed KV events", endpoint=self.source.replay_endpoint, why=why)
        # What came by itself meanwhile is told twice, and lies on the other socket: behind the end it would look like a
        # restart.
        self.drain()
        self.feed.all_again(answered=answered)

    async def _read_again(self, socket: zmq.asyncio.Socket) -> bool:
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(REPLAY_WAIT_S):
                    frames = await socket.recv_multipart()
                if len(frames) != 4 or frames[2] == END:
                    return frames[2:3] == [END]
                number = sequence_of(frames[2])
                if number is not None:
                    self.feed.take_again(number, frames[3])
        return False

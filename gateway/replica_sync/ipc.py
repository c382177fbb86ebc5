"""One end of a connection between a worker and the warmth process: messages in, messages out, nobody ever waits.

What the other side does not read is kept up to a bound; beyond it the oldest goes, is counted, and whoever sent it is
told. Knows frames, not what they mean.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.replica_sync.ipc_messages import BrokenFramesError, Frames, Message, framed, read_message
from gateway.runtime.guard import run

MOST_WAITING_BYTES = 8 << 20
"""Kept for a reader that does not read: ten seconds of a busy fleet's news."""

HIGH_WATER_BYTES = 256 << 10
"""Handed to the kernel and the transport before frames are kept here, where the oldest can still be dropped."""


class Line(asyncio.Protocol):
    """Both ends are alike. `take` gets every message that is known here; `ended` is called once, when it is over."""

    def __init__(
        self,
        take: Callable[[Line, Message], None],
        *,
        began: Callable[[Line], None] = lambda _: None,
        ended: Callable[[Line], None] = lambda _: None,
        most_waiting_bytes: int = MOST_WAITING_BYTES,
    ) -> None:
        self.dropped = 0
        """Frames that the other side was too slow for."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take
        self._began = began
        self._ended = ended
        self._most = most_waiting_bytes
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_paused = False

    def send(self, message: Message) -> bool:
        """Say something, or keep it until it is read. False where nobody is there, or something older was dropped."""
        return self.send_frame(framed(message))

    def send_frame(self, frame: bytes) -> bool:
        """The same with a message that is a frame already: many lines are told the same."""
        if self._transport is None:
            return False
        if not self._is_paused:
            self._transport.write(frame)
            return True
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        dropped = self.dropped
        while self._waiting_bytes > self._most and len(self._waiting) > 1:
            self._waiting_bytes -= len(self._waiting.popleft())
            self.dropped += 1
        return self.dropped == dropped

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- what the transport tells --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are no subclasses of asyncio's
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)  # type: ignore[union-attr]
        self._began(self)

    def data_received(self, data: bytes) -> None:
        """Bytes were read."""
        try:
            for frame in self._frames.feed(data):
                message = read_message(frame)
                if message is not None:
                    run("replica sync", self._take, self, message)
        except BrokenFramesError:
            self.close()

    def pause_writing(self) -> None:
        """The other side does not keep up."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It reads again."""
        self._is_paused = False
        while self._waiting and not self._is_paused and self._transport is not None:
            frame = self._waiting.popleft()
            self._waiting_bytes -= len(frame)
            self._transport.write(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._transport = None
        self._waiting.clear()
        self._waiting_bytes = 0
        if not self.over.done():
            self.over.set_result(None)
        self._ended(self)

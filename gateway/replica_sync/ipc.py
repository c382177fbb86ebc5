"""One end of the unix-socket connection between a worker and the index process. Sending never waits.

Frames that the other side does not read are kept up to a bound. Beyond it the oldest is dropped and counted, and `send`
returns False.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.replica_sync.ipc_messages import BrokenFramesError, FrameDecoder, IpcMessage, decode_message, encode_frame
from gateway.runtime.guard import call_guarded

MAX_WAITING_BYTES = 8 << 20
"""Kept for a slow reader: ten seconds of a busy fleet's updates."""

HIGH_WATER_BYTES = 256 << 10
"""Bytes in the transport beyond which frames are kept here, where the oldest can still be dropped."""


class IpcConnection(asyncio.Protocol):
    """Both ends are alike. `take` gets every message of a known type; `ended` is called once, after the connection."""

    def __init__(
        self,
        take: Callable[[IpcConnection, IpcMessage], None],
        *,
        began: Callable[[IpcConnection], None] = lambda _: None,
        ended: Callable[[IpcConnection], None] = lambda _: None,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self.dropped = 0
        """Frames dropped because the other side read too slowly."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take
        self._began = began
        self._ended = ended
        self._max_waiting_bytes = max_waiting_bytes
        self._frames = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_paused = False

    def send(self, message: IpcMessage) -> bool:
        """Send a message. Returns False where there is no connection, or an older frame was dropped for it."""
        return self.send_frame(encode_frame(message))

    def send_frame(self, frame: bytes) -> bool:
        """Send a message that is encoded already, for many connections at once. Returns what `send` does."""
        if self._transport is None:
            return False
        if not self._is_paused:
            self._transport.write(frame)
            return True
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        dropped = self.dropped
        while self._waiting_bytes > self._max_waiting_bytes and len(self._waiting) > 1:
            self._waiting_bytes -= len(self._waiting.popleft())
            self.dropped += 1
        return self.dropped == dropped

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and call `began`."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports do not subclass asyncio's
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)  # type: ignore[union-attr]
        self._began(self)

    def data_received(self, data: bytes) -> None:
        """Decode what was read; a malformed frame ends the connection."""
        try:
            for frame in self._frames.feed(data):
                message = decode_message(frame)
                if message is not None:
                    call_guarded("replica sync", self._take, self, message)
        except BrokenFramesError:
            self.close()

    def pause_writing(self) -> None:
        """Keep frames here until the transport has drained."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Send the frames kept."""
        self._is_paused = False
        while self._waiting and not self._is_paused and self._transport is not None:
            frame = self._waiting.popleft()
            self._waiting_bytes -= len(frame)
            self._transport.write(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the frames kept and call `ended`."""
        self._transport = None
        self._waiting.clear()
        self._waiting_bytes = 0
        if not self.closed.done():
            self.closed.set_result(None)
        self._ended(self)

"""A publisher of KV events as vLLM has one: numbered batches to whoever is subscribed, and again for who asks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from routing.precise.kv_events import KvEvent

END = b"\xff" * 8
SUBSCRIBES = b"\x01"


def pack(events: Sequence[KvEvent | dict[str, Any]], rank: int = 0) -> bytes:
    """A payload: newer vLLM's maps with a type."""
    return msgspec.msgpack.encode([0.0, list(events), rank])


class Publisher:
    """Binds where it is told, or connects; `drop` says what the network loses."""

    def __init__(self, *, topic: str = "kv", buffer_steps: int = 10_000, replays: bool = True) -> None:
        self.topic = topic.encode()
        self.endpoint = self.replay_endpoint = ""
        self.requested: list[int] = []
        self.was_asked = asyncio.Event()
        self._replays = replays
        self._number = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._again = self._context.socket(zmq.ROUTER)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if not self.endpoint:
            port = self._pub.bind_to_random_port("tcp://127.0.0.1")
            self.endpoint = f"tcp://127.0.0.1:{port}"
        if self._replays:
            port = self._again.bind_to_random_port("tcp://127.0.0.1")
            self.replay_endpoint = f"tcp://127.0.0.1:{port}"
            self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._pub.close(linger=0)
        self._again.close(linger=0)
        self._context.term()

    def connect(self, endpoint: str) -> None:
        """As vLLM does where its address has no wildcard."""
        self.endpoint = endpoint
        self._pub.connect(endpoint)

    async def subscribed(self) -> None:
        """Wait for a subscriber, or for one more: what is said from now on reaches it."""
        async with asyncio.timeout(120):
            while not (await self._pub.recv()).startswith(SUBSCRIBES):
                pass

    async def log_event(
        self, *events: KvEvent | dict[str, Any], lost: bool = False, payload: bytes | None = None
    ) -> int:
        """Publish a batch. `lost`: nobody gets it, but it can be asked for."""
        number, self._number = self._number, self._number + 1
        stated = pack(events) if payload is None else payload
        self._buffer.append((number, stated))
        if not lost:
            await self._pub.send_multipart([self.topic, number.to_bytes(8, "big"), stated])
        return number

    def restart(self) -> None:
        """The engine has begun anew behind the same address."""
        self._number = 0
        self._buffer.clear()

    async def _serve(self) -> None:
        while True:
            who, _, start = await self._again.recv_multipart()
            self.requested.append(int.from_bytes(start, "big"))
            self.was_asked.set()
            for number, stated in list(self._buffer):
                if number >= self.requested[-1]:
                    await self._again.send_multipart([who, b"", self.topic, number.to_bytes(8, "big"), stated])
            await self._again.send_multipart([who, b"", b"", END, b""])

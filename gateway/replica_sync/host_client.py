"""A worker's connection to the index process of its host, restored whenever it is lost.

Nothing waits for it: a message that cannot be sent now is dropped. Callers that need an answer have timeouts of their
own, and a snapshot replaces lost updates after a reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gateway.replica_sync.ipc import IpcConnection
from gateway.replica_sync.ipc_messages import Hello, IpcMessage
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import call_guarded, restarted

MIN_BACKOFF_S = 0.05

MAX_BACKOFF_S = 2.0

START_S = 10.0
"""Time after the start in which a missing socket is not logged: processes of a host start together."""

CONNECT_S = 2.0

M = TypeVar("M", bound=IpcMessage)


class IndexProcessClient:
    """The connection of one worker. Add handlers with `on`, then `run` it in the background."""

    def __init__(self, where: Path, hello: Hello, *, log_event: EventLog, draw: Callable[[], float]) -> None:
        self.hello = hello
        self.dropped = 0
        """Messages dropped while not connected, or because the other side reads too slowly."""
        self._where = where
        self._log_event = log_event
        self._draw = draw
        self._connection: IpcConnection | None = None
        self._handlers: dict[type, Callable[..., None]] = {}
        self._on_connected: list[Callable[[], None]] = []

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def on(self, kind: type[M], take: Callable[[M], None]) -> None:
        """Call `take` with every message of a kind."""
        self._handlers[kind] = take

    def on_connected(self, greet: Callable[[], None]) -> None:
        """Call `greet` after every connect, once `Hello` is sent."""
        self._on_connected.append(greet)

    def send(self, message: IpcMessage) -> bool:
        """Send a message without waiting. Returns False where it, or an older one for its sake, was dropped."""
        if self._connection is None or not self._connection.send(message):
            self.dropped += 1
            return False
        return True

    @restarted("replica sync")
    async def run(self) -> None:
        """Keep connected until cancelled."""
        wait_s, warns, clock = MIN_BACKOFF_S, True, asyncio.get_running_loop().time
        due_s = clock() + START_S
        while True:
            connection = await self._connect()
            if connection is not None:
                warns, wait_s, due_s = True, MIN_BACKOFF_S, clock()
                try:
                    await connection.closed
                finally:
                    connection.close()
            if warns and clock() >= due_s:
                warns = False
                self._log_event("warning", "index_process_unavailable", socket=str(self._where))
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(MAX_BACKOFF_S, 2 * wait_s)

    async def _connect(self) -> IpcConnection | None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_unix_connection(
                    lambda: IpcConnection(self._take, began=self._begin, ended=self._end), str(self._where)
                )
        except (OSError, TimeoutError):
            return None
        return connection

    def _begin(self, connection: IpcConnection) -> None:
        self._connection = connection
        connection.send(self.hello)
        for greet in self._on_connected:
            call_guarded("replica sync", greet)

    def _end(self, connection: IpcConnection) -> None:
        if self._connection is connection:
            self._connection = None

    def _take(self, _: IpcConnection, message: IpcMessage) -> None:
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)

"""A worker's connection to the warmth process of its host: made again whenever it is lost, and never waited for.

What cannot be said now is not said: whoever needs an answer has its own time limit, and news are stated anew when the
connection is back. Knows messages, not what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gateway.observe.log import EventLog
from gateway.replica_sync.ipc import Line
from gateway.replica_sync.ipc_messages import Hello, Message
from gateway.runtime.guard import restarted, run

FIRST_WAIT_S = 0.05

LONGEST_WAIT_S = 2.0

START_S = 10.0
"""Processes of a host start together: a socket that is not there yet is no news for so long."""

CONNECT_S = 2.0

M = TypeVar("M", bound=Message)


class WarmthClient:
    """One per worker. Subscribe with `on`, then `run` it beside the gateway."""

    def __init__(self, where: Path, hello: Hello, *, say: EventLog, draw: Callable[[], float]) -> None:
        self.hello = hello
        self.dropped = 0
        """Messages that could not be said."""
        self._where = where
        self._say = say
        self._draw = draw
        self._line: Line | None = None
        self._takers: dict[type, Callable[..., None]] = {}
        self._greeters: list[Callable[[], None]] = []

    @property
    def is_connected(self) -> bool:
        return self._line is not None

    def on(self, kind: type[M], take: Callable[[M], None]) -> None:
        """Have every message of a kind taken."""
        self._takers[kind] = take

    def on_connected(self, greet: Callable[[], None]) -> None:
        """Be called whenever the connection stands (again), after `Hello`."""
        self._greeters.append(greet)

    def send(self, message: Message) -> bool:
        """Say something now. Never waits; False where it could not be said, or something older was dropped for it."""
        if self._line is None or not self._line.send(message):
            self.dropped += 1
            return False
        return True

    @restarted("replica sync")
    async def run(self) -> None:
        """Keep connected until cancelled."""
        wait_s, is_news, clock = FIRST_WAIT_S, True, asyncio.get_running_loop().time
        due_s = clock() + START_S
        while True:
            line = await self._connect()
            if line is not None:
                is_news, wait_s, due_s = True, FIRST_WAIT_S, clock()
                try:
                    await line.over
                finally:
                    line.close()
            if is_news and clock() >= due_s:
                is_news = False
                self._say("warning", "the warmth process is away: going on without it", socket=str(self._where))
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    async def _connect(self) -> Line | None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, line = await loop.create_unix_connection(
                    lambda: Line(self._take, began=self._begin, ended=self._end), str(self._where)
                )
        except (OSError, TimeoutError):
            return None
        return line

    def _begin(self, line: Line) -> None:
        self._line = line
        line.send(self.hello)
        for greet in self._greeters:
            run("replica sync", greet)

    def _end(self, line: Line) -> None:
        if self._line is line:
            self._line = None

    def _take(self, _: Line, message: Message) -> None:
        take = self._takers.get(type(message))
        if take is not None:
            take(message)

"""Writes the agent's record into Redis, again at each beat and at once when it changes; takes it out at the end.

Redis may be slow, hung, gone, emptied or failed over at any time: every beat writes the whole record, and who cannot
write tries again soon, so that a Redis that came back is whole a beat later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from redis.asyncio import Redis

from gateway.config.redis_location import RedisPlace
from gateway.discovery.record import BadRecord, Record, channel, key, write_record
from gateway.runtime.guard import restarted
from gateway.runtime.redis_client import Client, connected, heed_cancel

Say = Callable[..., None]

ANSWER_S = 2.0
"""A Redis that has not answered by then hangs."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
"""Between two attempts to reach it: well below any ttl, so that a short absence goes unnoticed."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """In seconds."""

    ttl_s: float = 15.0
    """After so long without a beat the pods are forgotten."""
    load_s: float = 0.25
    """Least time between two publications of load."""

    @property
    def beat_s(self) -> float:
        """Two beats may be lost."""
        return self.ttl_s / 3


class Heart:
    """One per agent. `record` gives what is to be said now."""

    def __init__(
        self,
        place: RedisPlace,
        name: str,
        record: Callable[[], Record],
        rhythm: Rhythm,
        say: Say,
        draw: Callable[[], float],
    ) -> None:
        self.beats = 0
        """Records that were written."""
        self._place = place
        self._key, self._channel = key(place.prefix, name), channel(place.prefix)
        self._record = record
        self._rhythm = rhythm
        self._say = say
        self._draw = draw
        self._changed, self._loaded = asyncio.Event(), asyncio.Event()
        self._something = asyncio.Event()
        self._is_away = False

    def beat_now(self) -> None:
        """What is to be said has changed."""
        self._changed.set()
        self._something.set()

    def tell_load(self) -> None:
        """Figures of load are fresh: they are published soon, many at once."""
        self._loaded.set()
        self._something.set()

    @restarted("heartbeat")
    async def run(self) -> None:
        """Beat until cancelled."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                async with connected(self._place, answer_s=ANSWER_S) as client:
                    await self._beat(client)
                    self._note_back()
                    wait_s = FIRST_WAIT_S
                    await self._beat_on(client)
            except Exception as error:  # noqa: BLE001 - not all of the library's errors are its own, and none may end us
                heed_cancel()
                self._note_away(error)
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    async def leave(self) -> None:
        """Take the record out, if Redis is there; else it expires."""
        gone = self._record()
        with suppress(Exception):
            async with asyncio.timeout(2 * ANSWER_S), connected(self._place, answer_s=ANSWER_S) as client:
                await client.delete(self._key)
                await self._publish(client, write_record(Record(gone.agent, gone.beat, gone.ttl_s, (), gone.life)))

    async def _beat_on(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._rhythm.beat_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._something.wait()
            heed_cancel()
            if self._changed.is_set() or loop.time() >= due_s:
                await self._beat(client)
                due_s = loop.time() + self._rhythm.beat_s
            else:
                await self._tell_loads(client)

    async def _tell_loads(self, client: Client) -> None:
        """Publish once, then hold the next back for a moment: what comes meanwhile goes together."""
        self._loaded.clear()
        self._something.clear()
        await self._publish(client, self._written())
        await asyncio.sleep(self._rhythm.load_s)

    async def _beat(self, client: Client) -> None:
        for event in (self._changed, self._loaded, self._something):
            event.clear()
        written = self._written()
        try:
            async with asyncio.timeout(ANSWER_S):
                await client.set(self._key, written, px=int(self._rhythm.ttl_s * 1000))
                await self._publish(client, written)
        except BaseException:
            self.beat_now()  # it may not have been written
            raise
        self.beats += 1

    def _written(self) -> bytes:
        try:
            return write_record(self._record())
        except BadRecord as bad:
            self._say("error", "the record cannot be written", why=str(bad))
            raise

    async def _publish(self, client: Client, written: bytes) -> None:
        # A cluster's client of this library publishes to no channel; there the keys must do.
        if isinstance(client, Redis):
            await client.publish(self._channel, written)

    def _note_away(self, error: Exception) -> None:
        if not self._is_away:
            self._say("warning", "Redis is away", redis=str(self._place), error=type(error).__name__)
        self._is_away = True

    def _note_back(self) -> None:
        if self._is_away:
            self._say("info", "Redis is back", redis=str(self._place))
        self._is_away = False

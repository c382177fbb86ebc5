"""Publishes the agent's record in Redis: periodically, at once when it changes, and deletes it at the end.

Redis may be slow, hung, gone, emptied or failed over at any time. Every beat writes the whole record and failed writes
are retried soon, so a Redis that recovers is complete again one beat later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from redis.asyncio import Redis

from gateway.runtime.guard import raise_if_cancelled, restarted
from gateway.runtime.redis_client import RedisClient, connect_redis
from gateway.runtime.redis_location import RedisLocation
from routing.pod_record import AgentRecord, InvalidRecord, read_record, record_channel, record_key, write_record

LogFunction = Callable[..., None]

REDIS_TIMEOUT_S = 2.0
"""A Redis that has not answered after this time is treated as away."""

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 2.0
"""Between connection attempts: well below any ttl, so that a short absence has no effect."""


@dataclass(frozen=True, slots=True)
class HeartbeatIntervals:
    """How often the record is written, in seconds."""

    ttl_s: float = 15.0
    """Gateways drop the pods after this time without a beat."""
    min_load_interval_s: float = 0.25
    """Minimum between two publications of load."""

    @property
    def beat_interval_s(self) -> float:
        """A third of the ttl: two beats may be lost."""
        return self.ttl_s / 3


class HeartbeatPublisher:
    """One per agent. `record` returns the record to publish."""

    def __init__(
        self,
        place: RedisLocation,
        name: str,
        record: Callable[[], AgentRecord],
        rhythm: HeartbeatIntervals,
        log_event: LogFunction,
        draw: Callable[[], float],
    ) -> None:
        self.beats = 0
        """Number of records written."""
        self._place = place
        self._key, self._channel = record_key(place.prefix, name), record_channel(place.prefix)
        self._record = record
        self._rhythm = rhythm
        self._log_event = log_event
        self._draw = draw
        self._changed, self._load_changed = asyncio.Event(), asyncio.Event()
        self._wake = asyncio.Event()
        self._begun = asyncio.Event()
        self._is_away = False

    def begin(self) -> None:
        """Allow the first beat: before the first probe the record is empty, and would remove pods of the last agent."""
        self._begun.set()

    async def previous(self) -> AgentRecord | None:
        """Return the record that an earlier agent of this name has left; None without one, or without Redis."""
        try:
            async with (
                asyncio.timeout(2 * REDIS_TIMEOUT_S),
                connect_redis(self._place, answer_s=REDIS_TIMEOUT_S) as client,
            ):
                written = await client.get(self._key)
                return read_record(written) if isinstance(written, bytes) else None
        except Exception as error:  # noqa: BLE001 - as in `run`
            raise_if_cancelled()
            self._note_outage(error)
            return None

    def publish_now(self) -> None:
        """Publish as soon as possible: the record has changed."""
        self._changed.set()
        self._wake.set()

    def publish_load_soon(self) -> None:
        """Publish fresh load figures soon, together with all that arrive meanwhile."""
        self._load_changed.set()
        self._wake.set()

    @restarted("heartbeat")
    async def run(self) -> None:
        """Publish from `begin` on until cancelled."""
        await self._begun.wait()
        wait_s = MIN_BACKOFF_S
        while True:
            try:
                async with connect_redis(self._place, answer_s=REDIS_TIMEOUT_S) as client:
                    await self._beat(client)
                    self._note_recovery()
                    wait_s = MIN_BACKOFF_S
                    await self._publish_periodically(client)
            except Exception as error:  # noqa: BLE001 - not all of the library's errors are its own, and none may end us
                raise_if_cancelled()
                self._note_outage(error)
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(MAX_BACKOFF_S, 2 * wait_s)

    async def deregister(self) -> None:
        """Delete the record. If Redis does not answer, the record expires by itself."""
        last = self._record()
        with suppress(Exception):
            async with (
                asyncio.timeout(2 * REDIS_TIMEOUT_S),
                connect_redis(self._place, answer_s=REDIS_TIMEOUT_S) as client,
            ):
                await client.delete(self._key)
                await self._publish(client, write_record(AgentRecord(last.agent, last.beat, last.ttl_s, (), last.life)))

    async def _publish_periodically(self, client: RedisClient) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._rhythm.beat_interval_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._wake.wait()
            raise_if_cancelled()
            if self._changed.is_set() or loop.time() >= due_s:
                await self._beat(client)
                due_s = loop.time() + self._rhythm.beat_interval_s
            else:
                await self._publish_loads(client)

    async def _publish_loads(self, client: RedisClient) -> None:
        """Publish once, then wait: figures that arrive meanwhile are published together."""
        self._load_changed.clear()
        self._wake.clear()
        await self._publish(client, self._encoded())
        await asyncio.sleep(self._rhythm.min_load_interval_s)

    async def _beat(self, client: RedisClient) -> None:
        for event in (self._changed, self._load_changed, self._wake):
            event.clear()
        written = self._encoded()
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                await client.set(self._key, written, px=int(self._rhythm.ttl_s * 1000))
                await self._publish(client, written)
        except BaseException:
            self.publish_now()  # it may not have been written
            raise
        self.beats += 1

    def _encoded(self) -> bytes:
        try:
            return write_record(self._record())
        except InvalidRecord as bad:
            self._log_event("error", "agent_record_not_written", error=str(bad))
            raise

    async def _publish(self, client: RedisClient, written: bytes) -> None:
        # The cluster client of this library cannot publish; there only the keys are written.
        if isinstance(client, Redis):
            await client.publish(self._channel, written)

    def _note_outage(self, error: Exception) -> None:
        if not self._is_away:
            self._log_event("warning", "heartbeat_failed", redis=str(self._place), error=type(error).__name__)
        self._is_away = True

    def _note_recovery(self) -> None:
        if self._is_away:
            self._log_event("info", "heartbeat_recovered", redis=str(self._place))
        self._is_away = False

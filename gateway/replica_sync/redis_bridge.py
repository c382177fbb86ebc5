"""Carries update batches between hosts through one capped stream in Redis.

Writes the batches of this host and reads those of other hosts in order, from the oldest entry at first: that is the
history for new workers. Redis may be slow, hung, gone, emptied or failed over at any time. Nothing waits for it,
unwritten batches are kept up to a bound, and snapshots replace what was lost. Does not decode batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.replica_sync.hub import UpdateHub
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import raise_if_cancelled, restarted
from gateway.runtime.redis_client import RedisClient, connect_redis
from gateway.runtime.redis_location import RedisLocation

STREAM_KEY = "hearth:news"

ENTRY_FIELD = b"p"

MAX_ENTRIES = 50_000
"""Length of the stream: some minutes of a busy fleet, at one or two kilobytes per entry."""

MAX_OUTBOX_BYTES = 16 << 20
"""Kept while Redis is away: half a minute of a busy host. Beyond it the oldest batches are dropped."""

ENTRY_BYTES = 256 << 10

SPACING_S = 0.003
"""Pause between two writes: batches of that time go into one entry."""

ANSWER_S = 2.0
"""Without an answer by then Redis counts as hung."""

BLOCK_S = 1.0
"""How long a read blocks for a new entry."""

READ_AT_ONCE = 64
"""Entries: of the largest that are written here together, 16 MB."""

MAX_ENTRY_BYTES = 8 << 20
"""Larger entries are not from Hearth; they are not decoded."""

MAX_READ_FAILURES = 3
"""Reads in a row without an answer, while Redis takes writes: then what cannot be read is skipped."""

MAX_BATCHES, MAX_REQUESTS = 1 << 14, 1 << 13
"""In one entry that is read: `ENTRY_BYTES` of heartbeats, and requests of snapshots of all replicas."""

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 2.0

HISTORY_S = 5.0
"""How long new workers wait for the history of the stream; then they start without it."""

ALL_REPLICAS = 0
"""In place of a replica id: snapshots of all replicas are requested."""

EntryId = tuple[int, int]

STREAM_START: EntryId = (0, 0)


class StreamEntry(Struct, frozen=True, array_like=True):
    """One entry of the stream."""

    host: int
    """Id of the writing host, drawn at every start."""
    sent_us: int
    """By the writer's clock: only the writer can compute its age."""
    batches: Annotated[list[bytes], Meta(max_length=MAX_BATCHES)]
    snapshot_requests: Annotated[list[int], Meta(max_length=MAX_REQUESTS)]
    """Replicas whose snapshots are requested."""
    missed_s: list[float] = []
    """For each of them, the seconds in which its updates were missed; earlier versions do not write it."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StreamEntry)


class RedisBridge:
    """The bridge of one host."""

    def __init__(
        self,
        place: RedisLocation,
        hub: UpdateHub,
        *,
        host: int,
        log_event: EventLog,
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        self.written = self.read = 0
        """Entries written and read."""
        self.dropped = 0
        """Batches dropped while Redis was unreachable."""
        self.strange = 0
        """Entries that could not be decoded."""
        self.writes = self.reads = False
        """Whether the last write and the last read succeeded."""
        self._is_away = False
        """Whether the loss of Redis was logged."""
        self._place = place
        self._hub = hub
        self._host = host
        self._log_event = log_event
        self._clock = clock
        self._draw = draw
        self._key = f"{place.prefix}{STREAM_KEY}"
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._requested: dict[int, float] = {ALL_REPLICAS: 0.0}
        """Replicas whose snapshots are to be requested, and seconds in which their updates were missed."""
        self._has_work = asyncio.Event()
        self._has_work.set()
        self._last = self._written = STREAM_START
        """The last entry that was read, and that was written here."""
        self._read_failures = 0
        """In a row, at the same place of the stream."""
        self._to_request: dict[int, float] = {}
        """Replicas of this host of which other hosts have requested snapshots in the entries that were read together,
        and the seconds in which their updates were missed."""
        self._round_trip_s: float | None = None
        self._unread_us: deque[int] = deque(maxlen=4096)
        """Send times of our entries that were not read back yet."""
        hub.connect_bridge(self.publish, self.request_snapshot)

    @property
    def is_connected(self) -> bool:
        return self.writes and self.reads

    def staleness_s(self) -> float | None:
        """Age of updates when other hosts read them: our own round trip, or how long it has been outstanding."""
        if not self._unread_us:
            return self._round_trip_s
        waiting_s = self._clock() - self._unread_us[0] / 1e6
        return max(waiting_s, self._round_trip_s or 0.0)

    def publish(self, batch: bytes) -> None:
        """Queue a batch for writing. Never waits."""
        self._outbox.append(batch)
        self._outbox_bytes += len(batch)
        while self._outbox_bytes > MAX_OUTBOX_BYTES:
            self._outbox_bytes -= len(self._outbox.popleft())
            self.dropped += 1
        self._has_work.set()

    def request_snapshot(self, replica_id: int, missed_s: float = 0.0) -> None:
        """Request a snapshot of a replica on another host, and what it has placed in `missed_s` seconds."""
        self._requested[replica_id] = max(missed_s, self._requested.get(replica_id, 0.0))
        self._has_work.set()

    async def run(self) -> None:
        """Write and read until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(self._write_loop), name="write updates")
            group.create_task(self._keep(self._read_loop), name="read updates")
            await asyncio.sleep(HISTORY_S)
            self._hub.complete_history()

    @restarted("replica sync")
    async def _keep(self, work: Callable[[RedisClient], Any]) -> None:
        """Connect and work until that fails, then again."""
        wait_s = MIN_BACKOFF_S
        while True:
            began_s = self._clock()
            try:
                async with connect_redis(self._place, answer_s=ANSWER_S + BLOCK_S) as client:
                    await work(client)
            except Exception as error:  # noqa: BLE001 - redis-py also raises errors of other libraries
                raise_if_cancelled()
                self._note_away(error)
            if self._clock() - began_s > MAX_BACKOFF_S + ANSWER_S:
                wait_s = MIN_BACKOFF_S
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(MAX_BACKOFF_S, 2 * wait_s)

    def _note_away(self, error: Exception) -> None:
        """Warn once for both connections and for the whole host: its workers lose the same Redis."""
        if not self._is_away:
            self._is_away = True
            # The other connection may not have failed yet: it must succeed again, with an entry that may be empty.
            self.writes = self.reads = False
            self._has_work.set()
            self._log_event("warning", "replica_sync_unavailable", redis=str(self._place), error=type(error).__name__)

    def _note_success(self) -> None:
        if self._is_away and self.is_connected:
            self._is_away = False
            self._log_event("info", "replica_sync_recovered", redis=str(self._place))

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _write_loop(self, client: RedisClient) -> None:
        while True:
            await self._has_work.wait()
            batches, requested = self._take()
            try:
                await self._write(client, batches, requested)
            except BaseException:
                # It may have been written all the same: readers skip a batch that they have read before.
                self.writes = False
                self._put_back(batches, requested)
                raise
            self.writes = True
            self._note_success()
            self.written += 1
            raise_if_cancelled()
            await asyncio.sleep(SPACING_S)

    async def _write(self, client: RedisClient, batches: list[bytes], requested: dict[int, float]) -> None:
        sent_us = int(self._clock() * 1e6)
        entry = StreamEntry(self._host, sent_us, batches, list(requested), list(requested.values()))
        async with asyncio.timeout(ANSWER_S):
            entry_id = await client.xadd(
                self._key, {ENTRY_FIELD: _ENCODER.encode(entry)}, maxlen=MAX_ENTRIES, approximate=True
            )
        self._unread_us.append(sent_us)
        self._written = parse_entry_id(entry_id)
        if self._written < self._last:
            # The stream was created again, by a clock behind that of the old one.
            self._last = STREAM_START

    def _take(self) -> tuple[list[bytes], dict[int, float]]:
        batches: list[bytes] = []
        weight = 0
        while self._outbox and weight < ENTRY_BYTES:
            batches.append(self._outbox.popleft())
            weight += len(batches[-1])
        self._outbox_bytes -= weight
        requested, self._requested = self._requested, {}
        if not self._outbox:
            self._has_work.clear()
        return batches, requested

    def _put_back(self, batches: list[bytes], requested: dict[int, float]) -> None:
        self._outbox.extendleft(reversed(batches))
        self._outbox_bytes += sum(map(len, batches))
        for replica_id, missed_s in requested.items():
            self.request_snapshot(replica_id, missed_s)
        self._has_work.set()

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _read_loop(self, client: RedisClient) -> None:
        self._unread_us.clear()
        while True:
            at_once = max(1, READ_AT_ONCE >> 3 * self._read_failures)
            try:
                entries = await self._read_entries(client, at_once)
            except BaseException:
                self.reads = False
                self._note_read_failure()
                raise
            self.reads = True
            self._note_success()
            raise_if_cancelled()
            self._read_failures = 0
            for entry_id, fields in entries:
                self._last = parse_entry_id(entry_id)
                self._take_entry(fields)
            self._request_snapshots()
            if len(entries) < at_once:
                self._hub.complete_history()
            await asyncio.sleep(0)

    async def _read_entries(self, client: RedisClient, at_once: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        async with asyncio.timeout(BLOCK_S + ANSWER_S):
            streams: Any = await client.xread({self._key: format_entry_id(self._last)}, at_once, int(BLOCK_S * 1000))
        return streams[0][1] if streams else []

    def _note_read_failure(self) -> None:
        """Read less at once the next time. Where even one entry is not read in time although Redis takes writes, go on
        behind what was written here last: gaps in the numbers of batches are reported by their readers.
        """
        self._read_failures += 1
        if self._read_failures >= MAX_READ_FAILURES and self.writes and self._written > self._last:
            self._last, self._read_failures = self._written, 0
            self.strange += 1

    def _take_entry(self, fields: dict[bytes, bytes]) -> None:
        if sum(map(len, fields.values())) > MAX_ENTRY_BYTES:
            self.strange += 1
            return
        try:
            entry = _DECODER.decode(fields[ENTRY_FIELD])
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            self.strange += 1
            return
        self.read += 1
        if entry.host == self._host:
            self._read_back(entry)
            return
        for batch in entry.batches:
            self.strange += not self._hub.take_remote(batch)
        if self._hub.is_history_complete:
            missed_s = dict(zip(entry.snapshot_requests, entry.missed_s, strict=False))
            for replica_id in entry.snapshot_requests:
                self._to_request[replica_id] = max(missed_s.get(replica_id, 0.0), self._to_request.get(replica_id, 0.0))

    def _request_snapshots(self) -> None:
        """Request the snapshots that entries ask for, each once, however often they do."""
        requested, self._to_request = self._to_request, {}
        if requested.pop(ALL_REPLICAS, None) is not None:
            self._hub.request_all_snapshots()
        for replica_id in self._hub.replica_ids & requested.keys():
            self._hub.request_local_snapshot(replica_id, requested[replica_id])

    def _read_back(self, entry: StreamEntry) -> None:
        while self._unread_us and self._unread_us[0] <= entry.sent_us:
            self._unread_us.popleft()
        self._round_trip_s = self._clock() - entry.sent_us / 1e6


def parse_entry_id(entry_id: bytes | str) -> EntryId:
    """Parse an entry id, so that two can be compared."""
    milliseconds, _, count = (entry_id.decode() if isinstance(entry_id, bytes) else entry_id).partition("-")
    return int(milliseconds), int(count or 0)


def format_entry_id(entry: EntryId) -> str:
    """Format an entry id for Redis."""
    return f"{entry[0]}-{entry[1]}"

"""Carries news between hosts by way of one capped stream in Redis.

Writes what the workers of this host say, reads what those of others said, in order and from where it was; who joins is
warmed by the stream's past. Redis may be slow, hung, gone, emptied or failed over at any time: nobody waits for it,
what cannot be written is kept up to a bound, and what was lost is stated anew. Knows no words.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from gateway.config.redis_location import RedisPlace
from gateway.observe.log import EventLog
from gateway.replica_sync.hub import Hub
from gateway.runtime.guard import restarted
from gateway.runtime.redis_client import Client, connected, heed_cancel

KEY = "hearth:news"

FIELD = b"p"

MOST_ENTRIES = 50_000
"""Of the stream: some minutes of a busy fleet, at one or two kilobytes each."""

MOST_OUTBOX_BYTES = 16 << 20
"""Kept while Redis is away: half a minute of a busy host. Beyond it the oldest is lost, and stated anew."""

PARCEL_BYTES = 256 << 10

SPACING_S = 0.003
"""Between two writes: what comes meanwhile goes together."""

ANSWER_S = 2.0
"""A Redis that has not answered by then hangs."""

BLOCK_S = 1.0
"""How long a read waits for something to read."""

READ_AT_ONCE = 500

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0

PAST_S = 5.0
"""Workers that have just come wait so long for the stream's past; then they begin without."""

EVERYBODY = 0
"""Asked for instead of an origin: all state what they have open."""

Id = tuple[int, int]

BEGINNING: Id = (0, 0)


class Parcel(Struct, frozen=True, array_like=True):
    """One entry of the stream."""

    host: int
    """Who wrote it, drawn anew at every start."""
    sent_us: int
    """By the writer's own clock: only the writer can tell from it how old it is."""
    batches: list[bytes]
    asked: list[int]
    """Origins that are to state what they have open."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Parcel)


AWAY, BACK = "Redis is away: going on with what this host knows", "Redis is back"


class RedisBridge:
    """One per warmth process that has a Redis."""

    def __init__(
        self,
        place: RedisPlace,
        hub: Hub,
        *,
        host: int,
        say: EventLog,
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        self.written = self.read = 0
        """Parcels."""
        self.dropped = 0
        """Batches that Redis was away for too long for."""
        self.strange = 0
        """Entries of the stream that are none of ours."""
        self.writes = self.reads = False
        """Whether the last attempt to do so was good."""
        self._is_away = False
        """Whether that was logged."""
        self._place = place
        self._hub = hub
        self._host = host
        self._say = say
        self._clock = clock
        self._draw = draw
        self._key = f"{place.prefix}{KEY}"
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._asked: set[int] = {EVERYBODY}
        self._something = asyncio.Event()
        self._something.set()
        self._last = BEGINNING
        self._round_trip_s: float | None = None
        self._unread_us: deque[int] = deque(maxlen=4096)
        """When those of our parcels were sent that were not read back yet."""
        hub.abroad = self.put
        hub.ask_abroad = self.ask
        hub.is_whole = False

    @property
    def is_connected(self) -> bool:
        return self.writes and self.reads

    def staleness_s(self) -> float | None:
        """How old news are when others read them: our own, read back, or for how long they have not come back."""
        if not self._unread_us:
            return self._round_trip_s
        waiting_s = self._clock() - self._unread_us[0] / 1e6
        return max(waiting_s, self._round_trip_s or 0.0)

    def put(self, batch: bytes) -> None:
        """Have a batch written. Never waits."""
        self._outbox.append(batch)
        self._outbox_bytes += len(batch)
        while self._outbox_bytes > MOST_OUTBOX_BYTES:
            self._outbox_bytes -= len(self._outbox.popleft())
            self.dropped += 1
        self._something.set()

    def ask(self, origin: int) -> None:
        """Have an origin on another host state what it has open."""
        self._asked.add(origin)
        self._something.set()

    async def run(self) -> None:
        """Write and read until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(self._write_on), name="write news")
            group.create_task(self._keep(self._read_on), name="read news")
            await asyncio.sleep(PAST_S)
            self._hub.is_whole = True

    @restarted("replica sync")
    async def _keep(self, go_on: Callable[[Client], Any]) -> None:
        """Connect, go on until it fails, and again."""
        wait_s = FIRST_WAIT_S
        while True:
            began_s = self._clock()
            try:
                async with connected(self._place, answer_s=ANSWER_S + BLOCK_S) as client:
                    await go_on(client)
            except Exception as error:  # noqa: BLE001 - not all of the library's errors are its own, and none may end us
                heed_cancel()
                self._note_away(error)
            if self._clock() - began_s > LONGEST_WAIT_S + ANSWER_S:
                wait_s = FIRST_WAIT_S
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    def _note_away(self, error: Exception) -> None:
        """Warn once for both connections, and for all of the host: its workers lose the same Redis."""
        if not self._is_away:
            self._is_away = True
            # The other connection may not have noticed yet: it has to prove itself, by a parcel that may be empty.
            self.writes = self.reads = False
            self._something.set()
            self._say("warning", AWAY, redis=str(self._place), error=type(error).__name__)

    def _note_good(self) -> None:
        if self._is_away and self.is_connected:
            self._is_away = False
            self._say("info", BACK, redis=str(self._place))

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _write_on(self, client: Client) -> None:
        while True:
            await self._something.wait()
            batches, asked = self._take()
            try:
                await self._write(client, batches, asked)
            except BaseException:
                # It may have been written all the same: who reads a batch twice passes the second over.
                self.writes = False
                self._put_back(batches, asked)
                raise
            self.writes = True
            self._note_good()
            self.written += 1
            heed_cancel()
            await asyncio.sleep(SPACING_S)

    async def _write(self, client: Client, batches: list[bytes], asked: list[int]) -> None:
        sent_us = int(self._clock() * 1e6)
        parcel = Parcel(self._host, sent_us, batches, asked)
        async with asyncio.timeout(ANSWER_S):
            said = await client.xadd(self._key, {FIELD: _ENCODER.encode(parcel)}, maxlen=MOST_ENTRIES, approximate=True)
        self._unread_us.append(sent_us)
        if read_id(said) < self._last:
            # The stream was made anew, by a clock that is behind the old one's.
            self._last = BEGINNING

    def _take(self) -> tuple[list[bytes], list[int]]:
        batches: list[bytes] = []
        weight = 0
        while self._outbox and weight < PARCEL_BYTES:
            batches.append(self._outbox.popleft())
            weight += len(batches[-1])
        self._outbox_bytes -= weight
        asked, self._asked = list(self._asked), set()
        if not self._outbox:
            self._something.clear()
        return batches, asked

    def _put_back(self, batches: list[bytes], asked: list[int]) -> None:
        self._outbox.extendleft(reversed(batches))
        self._outbox_bytes += sum(map(len, batches))
        self._asked.update(asked)
        self._something.set()

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _read_on(self, client: Client) -> None:
        self._unread_us.clear()
        while True:
            try:
                async with asyncio.timeout(BLOCK_S + ANSWER_S):
                    streams: Any = await client.xread(
                        {self._key: write_id(self._last)}, READ_AT_ONCE, int(BLOCK_S * 1000)
                    )
            except BaseException:
                self.reads = False
                raise
            self.reads = True
            self._note_good()
            heed_cancel()
            entries = streams[0][1] if streams else []
            for entry_id, fields in entries:
                self._last = read_id(entry_id)
                self._take_entry(fields)
            if len(entries) < READ_AT_ONCE:
                self._hub.is_whole = True
            await asyncio.sleep(0)

    def _take_entry(self, fields: dict[bytes, bytes]) -> None:
        try:
            parcel = _DECODER.decode(fields[FIELD])
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            self.strange += 1
            return
        self.read += 1
        if parcel.host == self._host:
            self._read_back(parcel)
            return
        for batch in parcel.batches:
            self._hub.take_abroad(batch)
        for origin in parcel.asked if self._hub.is_whole else ():
            if origin == EVERYBODY:
                self._hub.have_all_state()
            else:
                self._hub.states(origin)

    def _read_back(self, parcel: Parcel) -> None:
        while self._unread_us and self._unread_us[0] <= parcel.sent_us:
            self._unread_us.popleft()
        self._round_trip_s = self._clock() - parcel.sent_us / 1e6


def read_id(said: bytes | str) -> Id:
    """An entry's id, so that two can be compared."""
    milliseconds, _, count = (said.decode() if isinstance(said, bytes) else said).partition("-")
    return int(milliseconds), int(count or 0)


def write_id(entry: Id) -> str:
    """The same as Redis wants it."""
    return f"{entry[0]}-{entry[1]}"

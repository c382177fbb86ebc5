"""Reads the KV events of one engine and applies them to the precise prefix index in order.

A batch is decoded whichever version of vLLM packed it: newer ones pack an event as a map, older ones as an array of the
same fields. Events of unknown kinds are skipped and counted. Batches are numbered: gaps, late joins and restarts of the
engine are detected, and missed batches are requested again. Knows no socket; `subscriber` supplies the batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.runtime.event_log import EventLog, engine_fields
from routing.precise.event_reliability import EventReliability, UnreliableReason
from routing.precise.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from routing.precise.precise_index import PreciseIndex

SEQUENCE_BYTES = 8


class _StoredRow(BlockStored, array_like=True, tag="BlockStored", frozen=True, gc=False):
    """As older versions of vLLM pack it."""


class _RemovedRow(BlockRemoved, array_like=True, tag="BlockRemoved", frozen=True, gc=False):
    """As older versions of vLLM pack it."""


class _ClearedRow(AllBlocksCleared, array_like=True, tag="AllBlocksCleared", frozen=True, gc=False):
    """As older versions of vLLM pack it."""


class _Batch(Struct, array_like=True, gc=False):
    at_s: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class _RowBatch(Struct, array_like=True, gc=False):
    at_s: float
    events: list[_StoredRow | _RemovedRow | _ClearedRow]


class _RawBatch(Struct, array_like=True, gc=False):
    at_s: float
    events: list[Raw]


class UndecodableEventsError(Exception):
    """A message that is not a batch of events."""


class EventBatchDecoder:
    """Decodes batches. `unread` counts the events that were skipped."""

    def __init__(self) -> None:
        self.unread = 0
        self._batch = msgspec.msgpack.Decoder(_Batch)
        self._row_batch = msgspec.msgpack.Decoder(_RowBatch)
        self._raw_batch = msgspec.msgpack.Decoder(_RawBatch)
        self._one: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared)

    def decode(self, payload: bytes) -> list[KvEvent]:
        """Decode the events of a batch, in order. Raises `UndecodableEventsError`."""
        try:
            return self._read(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UndecodableEventsError(str(error)) from None

    def _read(self, payload: bytes) -> list[KvEvent]:
        with suppress(msgspec.ValidationError):
            return list(self._batch.decode(payload).events)
        with suppress(msgspec.ValidationError):
            return list(self._row_batch.decode(payload).events)
        return self._one_by_one(payload)

    def _one_by_one(self, payload: bytes) -> list[KvEvent]:
        events: list[KvEvent] = []
        for raw in self._raw_batch.decode(payload).events:
            try:
                events.append(self._one.decode(raw))
            except (msgspec.ValidationError, UnicodeDecodeError):
                self.unread += 1
        return events


def sequence_number(frame: bytes) -> int | None:
    """The sequence number in a frame; None where it is malformed."""
    return int.from_bytes(frame, "big") if len(frame) == SEQUENCE_BYTES else None


MAX_WAITING = 4096
"""Batches kept while earlier ones are replayed. With more, the gap counts as not healed."""


@dataclass(slots=True)
class EventFeedCounts:
    """Counts for metrics."""

    batches: int = 0
    events: int = 0
    gaps: int = 0
    """Batches whose number was not the next."""
    unhealed: int = 0
    """Gaps that no replay could fill."""
    restarts: int = 0
    malformed: int = 0
    """Messages that could not be decoded or applied."""


class EventFeed:
    """The events of one followed engine."""

    def __init__(
        self,
        engine: str,
        index: PreciseIndex,
        *,
        log_event: EventLog,
        ask: Callable[[int], bool],
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        """`ask` requests a replay of all batches from a number on, which arrive at `take_replayed`, then `all_again`.

        It returns False where no replay is possible. `turned` is called whenever the engine's events have become
        reliable or unreliable.
        """
        self.engine = engine
        self.reliability = EventReliability()
        self.count = EventFeedCounts()
        self._index = index
        self._log_event = log_event
        self._request_replay = ask
        self._on_trust_change = turned
        self._reader = EventBatchDecoder()
        self._next = 0
        """The number of the next batch."""
        self._replays_from: int | None = None
        """The first number of the replay in progress; None without one."""
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._has_hole = False
        """Whether the replay in progress left something out."""
        self._has_restarted = False
        """Whether this feed detected a restart that the fleet has not reported yet."""
        self._was_reported = False
        """Whether the fleet reported a restart that this feed has not detected."""

    @property
    def unread(self) -> int:
        """Events that could not be decoded, of unknown kinds for one."""
        return self._reader.unread

    def start(self) -> None:
        """Request all batches published before the subscription."""
        if self._replays_from is None:
            self._fetch(0)

    def take_over(self, former: EventFeed) -> None:
        """Take over from the feed of the same engine at its former endpoint: the engine has restarted.

        The fleet has reported that restart already, or will.
        """
        self._has_restarted = not former._was_reported

    def take(self, number: int, payload: bytes) -> None:
        """Take a batch of the subscription."""
        if self._replays_from is not None:
            self._waiting.append((number, payload))
            if len(self._waiting) > MAX_WAITING:
                self._give_up()
        elif number == self._next:
            self._apply(number, payload)
        elif number < self._next:
            self._restarted(number, payload)
        else:
            self._missed(number, payload)

    def take_replayed(self, number: int, payload: bytes) -> None:
        """Take a batch of a replay."""
        if self._replays_from is None or number < self._next:
            return
        if number > self._next:
            if self._next != self._replays_from:
                # The publisher's socket drops what it cannot send at once: the rest is requested when this replay ends.
                self._has_hole = True
                return
            self._lose()
        self._apply(number, payload)

    def end_replay(self, *, answered: bool) -> None:
        """End the replay: all was sent, or with `answered` False the publisher did not respond."""
        start, self._replays_from = self._replays_from, None
        if start is None:
            return
        if not answered:
            self._replays_from = start
            self._give_up()
        elif self._next == start == 0:
            # The engine has published nothing yet, so it holds nothing.
            self._mark_reliable()
            self._take_waiting()
        elif self._next > start and self._has_hole:
            self._fetch(self._next)
        else:
            self._take_waiting()

    def note_pod_restart(self) -> None:
        """The fleet reports a restart of the pod. Unless this feed detected it already, the cache is dropped now."""
        if self._has_restarted:
            self._has_restarted = False
            return
        self._was_reported = True
        self._lose_cache()
        self.start()

    # -- batches out of order ------------------------------------------------------------------------------------------

    def _missed(self, number: int, payload: bytes) -> None:
        self.count.gaps += 1
        self._waiting.append((number, payload))
        self._fetch(self._next)

    def _lose_cache(self) -> None:
        self._index.remove_engine(self.engine)
        self._index.add_engine(self.engine)
        self._next, self._replays_from = 0, None
        self._waiting.clear()
        self._mark_unreliable(UnreliableReason.NO_EVENTS)

    def _restarted(self, number: int, payload: bytes) -> None:
        self.count.restarts += 1
        self._has_restarted = True
        self._log_event("info", "engine_cache_reset", **engine_fields(self.engine))
        self._lose_cache()
        if number == 0:
            self._apply(number, payload)
        else:
            self._waiting.append((number, payload))
            self._fetch(0)

    def _fetch(self, start: int) -> None:
        self._replays_from, self._has_hole = start, False
        if not self._request_replay(start):
            self._give_up()

    def _give_up(self) -> None:
        """Go on without the missed batches: they cannot be replayed."""
        started_late = self._next == 0 and self.reliability.unreliable_reason in (
            UnreliableReason.NO_EVENTS,
            UnreliableReason.LATE,
        )
        self._replays_from = None
        if not self._waiting:
            return
        first = self._waiting[0][0]
        if first != self._next:
            self._lose(UnreliableReason.LATE if started_late else UnreliableReason.GAP)
            self._next = first
        self._take_waiting()

    def _take_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        while waiting:
            number, payload = waiting.popleft()
            if number < self._next:
                continue
            if self._replays_from is None and number > self._next:
                self._lose()
                self._next = number
            self.take(number, payload)

    def _lose(self, cause: UnreliableReason | None = None) -> None:
        cause = cause or (UnreliableReason.LATE if self._next == 0 else UnreliableReason.GAP)
        self.count.unhealed += 1
        if self._mark_unreliable(cause):
            self._log_event("warning", "kv_events_lost", **engine_fields(self.engine), reason=str(cause))

    # -- batches in order ----------------------------------------------------------------------------------------------

    def _apply(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        self.count.batches += 1
        if number == 0:
            self._mark_reliable()
        try:
            events = self._reader.decode(payload)
        except UndecodableEventsError:
            self.count.malformed += 1
            self._lose(UnreliableReason.GAP)
            return
        self.count.events += len(events)
        try:
            self._index.apply(self.engine, events)
        except Exception as fault:  # noqa: BLE001 - events of one engine must not end the feeds of others
            self.count.malformed += 1
            self._log_event("error", "kv_events_failed", **engine_fields(self.engine), error=repr(fault))
            self._lose(UnreliableReason.GAP)
            return
        if any(isinstance(event, AllBlocksCleared) for event in events):
            self._heal("cleared")

    def _heal(self, why: str) -> None:
        if not self.reliability.is_reliable:
            self._log_event("info", "kv_events_recovered", **engine_fields(self.engine), reason=why)
        self._mark_reliable()

    # -- trust ---------------------------------------------------------------------------------------------------------

    def _mark_reliable(self) -> None:
        self.reliability.mark_complete()
        self._on_trust_change()

    def _mark_unreliable(self, cause: UnreliableReason) -> bool:
        self._on_trust_change()
        return self.reliability.mark_unreliable(cause)

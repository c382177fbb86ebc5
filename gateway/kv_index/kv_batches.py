"""What a publisher of KV events sends, read: one batch, whatever version of vLLM packed it.

Newer versions pack an event as a map, older ones as an array of the same fields. An event of a kind that is not known
here is passed over and counted; so is one that cannot be read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw, Struct

from routing.precise.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

SEQUENCE_BYTES = 8


class _StoredRow(BlockStored, array_like=True, tag="BlockStored", frozen=True, gc=False):
    """As older versions pack it."""


class _RemovedRow(BlockRemoved, array_like=True, tag="BlockRemoved", frozen=True, gc=False):
    """(the same)"""


class _ClearedRow(AllBlocksCleared, array_like=True, tag="AllBlocksCleared", frozen=True, gc=False):
    """(the same)"""


class _Batch(Struct, array_like=True, gc=False):
    at_s: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class _RowBatch(Struct, array_like=True, gc=False):
    at_s: float
    events: list[_StoredRow | _RemovedRow | _ClearedRow]


class _RawBatch(Struct, array_like=True, gc=False):
    at_s: float
    events: list[Raw]


class UnreadableError(Exception):
    """A message that is no batch of events at all."""


class Reader:
    """Reads payloads. `unread` counts the events that were passed over."""

    def __init__(self) -> None:
        self.unread = 0
        self._batch = msgspec.msgpack.Decoder(_Batch)
        self._row_batch = msgspec.msgpack.Decoder(_RowBatch)
        self._raw_batch = msgspec.msgpack.Decoder(_RawBatch)
        self._one: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared)

    def read(self, payload: bytes) -> list[KvEvent]:
        """The events of a message, in order. Raises `UnreadableError`."""
        try:
            return self._read(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableError(str(error)) from None

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


def sequence_of(frame: bytes) -> int | None:
    """A batch's number, None where the frame holds none."""
    return int.from_bytes(frame, "big") if len(frame) == SEQUENCE_BYTES else None

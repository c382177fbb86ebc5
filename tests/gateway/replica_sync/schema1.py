"""The reader and the writer of schema 1, as gateways of the version before shared admission have them."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct


class Charge(Struct, frozen=True, array_like=True, gc=False):
    number: int
    engine: int
    prefill_tokens: int
    prefill_us: int
    kv_tokens: int
    sequences: int
    in_prefill: bool = True
    queues: bool = True


class Placed(Struct, frozen=True, array_like=True, gc=False, tag=1):
    charge: Charge
    model: int
    size: int
    shared: int
    blocks: bytes
    session: int | None = None


class FirstToken(Struct, frozen=True, array_like=True, gc=False, tag=2):
    number: int
    work_tokens: int
    took_us: int


class Ended(Struct, frozen=True, array_like=True, gc=False, tag=4):
    number: int


class Stated(Struct, frozen=True, array_like=True, gc=False, tag=5):
    open: list[Charge]


Update = Placed | FirstToken | Ended | Stated


class RawBatch(Struct, frozen=True, array_like=True):
    schema: int
    min_reader: int
    cutting: int
    origin: int
    number: int
    names: list[str]
    updates: list[Raw]


_BATCH = msgspec.msgpack.Decoder(RawBatch)
_UPDATE: msgspec.msgpack.Decoder[Update] = msgspec.msgpack.Decoder(Update)


def read(batch: bytes) -> tuple[RawBatch, list[Update | None]]:
    """The batch as schema 1 reads it; None in place of an update that it does not know."""
    found = _BATCH.decode(batch)
    assert found.min_reader <= 1
    updates: list[Update | None] = []
    for raw in found.updates:
        try:
            updates.append(_UPDATE.decode(raw))
        except msgspec.ValidationError:
            updates.append(None)
    return found, updates


def write(cutting: int, origin: int, number: int, names: list[str], updates: list[Update]) -> bytes:
    """A batch as schema 1 writes it."""
    return msgspec.msgpack.encode([1, 1, cutting, origin, number, names, updates])

"""The encoding of update batches: MessagePack, readable by neighbouring versions.

    [schema, least reader, cutting, origin, number, [name, ...], [update, ...]]

Names of engines and models are listed once per batch; updates refer to them by index. A prompt's blocks are eight bytes
each, without those shared with the previous prompt of the batch. Tokens are integers, times integer microseconds.

Later versions may add updates (skipped here) and append fields to an update (ignored here). For any other change they
raise `least reader`, so that older versions skip the whole batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from struct import pack, unpack

import msgspec
from msgspec import Raw, Struct

from routing.blocks import BLOCK_ENDS, BLOCK_SIZES, Prompt, hash_seed
from routing.replica_state import (
    EndedUpdate,
    FirstTokenUpdate,
    OpenRequest,
    PlacedUpdate,
    SettledUpdate,
    Snapshot,
    StateUpdate,
)

SCHEMA = 1
"""The version written here, raised with every change of the encoding."""

MIN_READER_SCHEMA = 1
"""The oldest version that can read what is written here."""

BLOCK_SIZES_ID = hash_seed(pack(f"<{len(BLOCK_SIZES)}Q", *BLOCK_SIZES)) & 0xFFFFFFFF
"""Identifies the block sizes: prompts of a gateway with other sizes are ignored here, its charges are not."""

MAX_INTEGER = 1 << 48
"""Beyond any count. NaN and infinity are written as this; readers discard it."""


class UndecodableBatchError(Exception):
    """Bytes that are not a batch, or a batch for later versions only."""


class _Charge(Struct, frozen=True, array_like=True, gc=False):
    number: int
    engine: int
    prefill_tokens: int
    prefill_us: int
    kv_tokens: int
    sequences: int
    in_prefill: bool = True
    queues: bool = True


class _Placed(Struct, frozen=True, array_like=True, gc=False, tag=1):
    charge: _Charge
    model: int
    size: int
    shared: int
    """Leading blocks shared with the previous prompt of the batch."""
    blocks: bytes
    session: int | None = None


class _FirstToken(Struct, frozen=True, array_like=True, gc=False, tag=2):
    number: int
    work_tokens: int
    took_us: int


class _Settled(Struct, frozen=True, array_like=True, gc=False, tag=3):
    number: int
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    grown_size: int = 0
    grown_blocks: bytes = b""
    running_tenths: int = 0
    decode_us: int | None = None
    response: int | None = None


class _Ended(Struct, frozen=True, array_like=True, gc=False, tag=4):
    number: int


class _Stated(Struct, frozen=True, array_like=True, gc=False, tag=5):
    open: list[_Charge]


_Update = _Placed | _FirstToken | _Settled | _Ended | _Stated


class _Head(Struct, frozen=True, array_like=True):
    schema: int
    least_reader: int
    cutting: int
    origin: int
    number: int
    names: list[str]


class _Batch(_Head, frozen=True, array_like=True):
    updates: list[_Update]


class _RawBatch(_Head, frozen=True, array_like=True):
    updates: list[Raw]


class DecodedBatch(Struct, frozen=True):
    """A decoded batch."""

    replica_id: int
    number: int
    updates: list[StateUpdate]
    skipped: int
    """Updates that were skipped."""


_ENCODER = msgspec.msgpack.Encoder()
_HEAD = msgspec.msgpack.Decoder(_Head)
_BATCH = msgspec.msgpack.Decoder(_Batch)
_RAW_BATCH = msgspec.msgpack.Decoder(_RawBatch)
_UPDATE: msgspec.msgpack.Decoder[_Update] = msgspec.msgpack.Decoder(_Update)


def encode_batch(replica_id: int, number: int, updates: Iterable[StateUpdate]) -> bytes:
    """Encode a batch of a replica, numbered `number`."""
    writer = _Writer()
    encoded = [writer.encode(update) for update in updates]
    return _ENCODER.encode(
        _Batch(SCHEMA, MIN_READER_SCHEMA, BLOCK_SIZES_ID, replica_id, number, list(writer.names), encoded)
    )


def batch_head(batch: bytes) -> tuple[int, int]:
    """The replica id and the number of a batch. Raises `UndecodableBatchError`."""
    try:
        head = _HEAD.decode(batch)
        return head.origin, head.number
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableBatchError(str(error)) from None


def decode_batch(batch: bytes) -> DecodedBatch:
    """Decode a batch; unknown updates are skipped. Raises `UndecodableBatchError`."""
    try:
        head, encoded = _split(batch)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableBatchError(str(error)) from None
    if head.least_reader > SCHEMA:
        raise UndecodableBatchError(f"written for schema {head.least_reader} and later, this is {SCHEMA}")
    reader = _Reader(head)
    updates = [update for each in encoded if (update := reader.decode(each)) is not None]
    return DecodedBatch(head.origin, head.number, updates, len(encoded) - len(updates))


def _split(batch: bytes) -> tuple[_Head, Sequence[_Update | Raw]]:
    """The updates of a batch; where some are unknown, those as raw bytes."""
    try:
        whole = _BATCH.decode(batch)
        return whole, whole.updates
    except msgspec.ValidationError:
        partly = _RAW_BATCH.decode(batch)
        return partly, [_known(raw) for raw in partly.updates]


def _known(raw: Raw) -> _Update | Raw:
    try:
        return _UPDATE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw


class _Writer:
    """Encodes the updates of one batch: names once, prompts without shared blocks."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._last: tuple[int, ...] = ()

    def encode(self, update: StateUpdate) -> _Update:
        match update:
            case PlacedUpdate(charge, model, prompt, session):
                shared = _shared(self._last, prompt.blocks)
                self._last = prompt.blocks
                blocks = _packed(prompt.blocks[shared:])
                return _Placed(self._charge(charge), self._name(model), prompt.size, shared, blocks, session)
            case FirstTokenUpdate(number, work_tokens, took_s):
                return _FirstToken(number, _integer(work_tokens), _integer(took_s * 1e6))
            case SettledUpdate():
                return _Settled(
                    update.number,
                    update.prompt_tokens,
                    update.cached_tokens,
                    update.completion_tokens,
                    update.grown_size,
                    _packed(update.grown_blocks),
                    _integer(update.running * 10),
                    None if update.decode_s is None else _integer(update.decode_s * 1e6),
                    update.response,
                )
            case EndedUpdate(number):
                return _Ended(number)
            case Snapshot(charges):
                return _Stated([self._charge(charge) for charge in charges])

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _charge(self, charge: OpenRequest) -> _Charge:
        return _Charge(
            charge.number,
            self._name(charge.engine),
            _integer(charge.prefill_tokens),
            _integer(charge.prefill_s * 1e6),
            _integer(charge.kv_tokens),
            charge.sequences,
            charge.in_prefill,
            charge.queues,
        )


class _Reader:
    """Decodes the updates of one batch."""

    def __init__(self, head: _Head) -> None:
        self._names = head.names
        self._knows_blocks = head.cutting == BLOCK_SIZES_ID
        self._last: tuple[int, ...] | None = ()
        """Blocks of the previous prompt; None where it could not be read, as blocks shared with it are unknown then."""

    def decode(self, update: _Update | Raw) -> StateUpdate | None:
        """Decode one update. None where its type is unknown, or it refers to names that are not listed."""
        if isinstance(update, Raw):
            # It may have held a prompt.
            self._last = None
            return None
        try:
            return self._decode(update)
        except IndexError:
            return None

    def _decode(self, update: _Update) -> StateUpdate:
        match update:
            case _Placed(charge, model, size, shared, blocks, session):
                held = self._blocks(shared, blocks)
                return PlacedUpdate(self._charge(charge), self._names[model], Prompt(held, BLOCK_ENDS, size), session)
            case _FirstToken(number, work_tokens, took_us):
                return FirstTokenUpdate(number, work_tokens, took_us / 1e6)
            case _Settled():
                return SettledUpdate(
                    update.number,
                    update.prompt_tokens,
                    update.cached_tokens,
                    update.completion_tokens,
                    _unpacked(update.grown_blocks) if self._knows_blocks else (),
                    update.grown_size,
                    update.response,
                    update.running_tenths / 10,
                    None if update.decode_us is None else update.decode_us / 1e6,
                )
            case _Ended(number):
                return EndedUpdate(number)
            case _Stated(charges):
                return Snapshot(tuple([self._charge(charge) for charge in charges]))

    def _blocks(self, shared: int, blocks: bytes) -> tuple[int, ...]:
        last = self._last if shared else ()
        if not self._knows_blocks or last is None or not 0 <= shared <= len(last):
            self._last = None
            return ()
        self._last = last[:shared] + _unpacked(blocks)
        return self._last

    def _charge(self, charge: _Charge) -> OpenRequest:
        return OpenRequest(
            charge.number,
            self._names[charge.engine],
            charge.prefill_tokens,
            charge.prefill_us / 1e6,
            charge.kv_tokens,
            charge.sequences,
            charge.in_prefill,
            charge.queues,
        )


def _shared(last: Sequence[int], blocks: Sequence[int]) -> int:
    """Leading blocks that two prompts share, by bisection: equal hashes mean equal prefixes."""
    if not last or not blocks or last[0] != blocks[0]:
        return 0
    reach = range(min(len(last), len(blocks)))
    return bisect_left(reach, True, key=lambda index: last[index] != blocks[index])


def _integer(value: float) -> int:
    return round(value) if -MAX_INTEGER < value < MAX_INTEGER else MAX_INTEGER


def _packed(blocks: Sequence[int]) -> bytes:
    return pack(f"<{len(blocks)}Q", *blocks)


def _unpacked(blocks: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(blocks) // 8}Q", blocks[: len(blocks) // 8 * 8])

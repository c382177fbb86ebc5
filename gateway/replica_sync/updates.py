"""The encoding of update batches: MessagePack, readable by neighbouring versions.

    [schema, least reader, cutting, origin, number, [name, ...], [update, ...], sent]

Names of engines and models are listed once per batch; updates refer to them by index. A prompt's blocks are eight bytes
each, without those shared with the previous prompt of the batch. Tokens are integers, times integer microseconds.

Later versions may add updates (skipped here) and append fields to an update (ignored here). For any other change they
raise `least reader`, so that older versions skip the whole batch.

Schema 2 appends to a charge the objective of its stream, and adds waiting work and rejections. Charges of a peer that
writes schema 1 count as load without an objective. Schema 3 adds the updates of desired engines. Schema 4 marks
placements that are sent again because a peer has missed them; readers before it take them for new ones of no load that
end at once. Schema 5 appends to a batch when it was sent, by the clock of its sender: how long it took can be compared
with the batches before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import inf
from struct import pack
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from routing.blocks import (
    BLOCK_BYTES,
    BLOCK_ENDS,
    BLOCK_SIZES,
    PackedPrompt,
    hash_seed,
    pack_blocks,
    unpack_blocks,
)
from routing.ledger import AdmittedAs, StreamObjective
from routing.replica_state import (
    EndedUpdate,
    FirstTokenUpdate,
    OpenRequest,
    PlacedUpdate,
    QueueUpdate,
    RejectedUpdate,
    SettledUpdate,
    Snapshot,
    StateUpdate,
    SupplyUpdate,
    TenantWaiting,
    TierWaiting,
)
from tenancy.peers import MAX_TENANTS, MAX_TIERS

SCHEMA = 5
"""The version written here, raised with every change of the encoding."""

MIN_READER_SCHEMA = 1
"""The oldest version that can read what is written here."""

BLOCK_SIZES_ID = hash_seed(pack(f"<{len(BLOCK_SIZES)}Q", *BLOCK_SIZES)) & 0xFFFFFFFF
"""Identifies the block sizes: prompts of a gateway with other sizes are ignored here, its charges are not."""

MAX_INTEGER = 1 << 48
"""Beyond any count. NaN and infinity are written as this; readers discard it."""


MAX_BATCH_BYTES = 4 << 20
"""Of a batch that is read: a snapshot of some ten thousand open requests. Larger ones are not from Hearth."""

MAX_UPDATES = 1 << 16
"""In one batch that is read, which is applied in one go: far more than a gateway does between two batches."""

MAX_NAMES = 1 << 14
"""In one batch that is read: engines, models, queues, tiers and tenants."""


class UndecodableBatchError(Exception):
    """Bytes that are not a batch, or a batch for later versions only."""


NO_NAME = -1
"""In place of the index of a name: no name."""


class _Admitted(Struct, frozen=True, array_like=True, gc=False):
    queue: int
    tier: int
    tenant: int
    weight_thousandths: int
    own_us: int
    answer_tokens: int


class _Charge(Struct, frozen=True, array_like=True, gc=False):
    number: int
    engine: int
    prefill_tokens: int
    prefill_us: int
    kv_tokens: int
    sequences: int
    in_prefill: bool = True
    queues: bool = True
    tpot_us: int = 0
    """Schema 2, as are the following: the objective of the stream, 0 where it has none."""
    min_tokens_thousandths: int = 0
    admitted: _Admitted | None = None


class _Placed(Struct, frozen=True, array_like=True, gc=False, tag=1):
    charge: _Charge
    model: int
    size: int
    shared: int
    """Leading blocks shared with the previous prompt of the batch."""
    blocks: bytes
    session: int | None = None
    is_resent: bool = False
    """Schema 4."""


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


class _Stated(Struct, frozen=True, array_like=True, gc=False, tag=5):
    open: list[_Charge]


class _TenantWaiting(Struct, frozen=True, array_like=True, gc=False):
    tenant: int
    work_us: int
    service: int


class _TierWaiting(Struct, frozen=True, array_like=True, gc=False):
    queue: int
    tier: int
    engines_thousandths: int
    waiting: int = 0
    tenants: Annotated[list[_TenantWaiting], Meta(max_length=MAX_TENANTS)] = []


class _Queue(Struct, frozen=True, array_like=True, gc=False, tag=6):
    tiers: Annotated[list[_TierWaiting], Meta(max_length=MAX_TIERS)]


class _Rejected(Struct, frozen=True, array_like=True, gc=False, tag=7):
    fingerprint: int
    age_us: int


class _Supply(Struct, frozen=True, array_like=True, gc=False, tag=8):
    payload: bytes


_Update = _Placed | _FirstToken | _Settled | EndedUpdate | _Stated | _Queue | _Rejected | _Supply

ADDED_UPDATES = (QueueUpdate, RejectedUpdate, SupplyUpdate)
"""Unknown to readers of schema 1. They stand last in a batch: such a reader takes a prompt behind an unknown update to
share blocks with what it has not read."""


class _Head(Struct, frozen=True, array_like=True):
    schema: int
    least_reader: int
    cutting: int
    origin: int
    number: int
    names: Annotated[list[str], Meta(max_length=MAX_NAMES)]


class _Batch(_Head, frozen=True, array_like=True):
    updates: Annotated[list[_Update], Meta(max_length=MAX_UPDATES)]
    sent_ms: int | None = None
    """Schema 5."""


class _RawBatch(_Head, frozen=True, array_like=True):
    updates: Annotated[list[Raw], Meta(max_length=MAX_UPDATES)]
    sent_ms: int | None = None


class DecodedBatch(Struct, frozen=True):
    """A decoded batch."""

    replica_id: int
    number: int
    updates: list[StateUpdate]
    skipped: int
    """Updates that were skipped."""
    sent_s: float | None = None
    """When it was sent, by the replica's own clock; None where it does not tell."""


_ENCODER = msgspec.msgpack.Encoder()


class _Tag(Struct, frozen=True, array_like=True, gc=False):
    tag: int


_MOMENTARY_TAGS = frozenset(each.__struct_config__.tag for each in (_Queue, _Rejected, _Supply))
"""Of `ADDED_UPDATES`, which a batch has last: they say what is now, and are outdated for who starts later."""

_HEAD = msgspec.msgpack.Decoder(_Head)
_TAG = msgspec.msgpack.Decoder(_Tag)
_BATCH = msgspec.msgpack.Decoder(_Batch)
_RAW_BATCH = msgspec.msgpack.Decoder(_RawBatch)
_UPDATE: msgspec.msgpack.Decoder[_Update] = msgspec.msgpack.Decoder(_Update)


def encode_batch(replica_id: int, number: int, updates: Iterable[StateUpdate], sent_s: float | None = None) -> bytes:
    """Encode a batch of a replica, numbered `number`. `sent_s`: now, by a clock that is never set."""
    writer = _Writer()
    encoded = [writer.encode(update) for update in sorted(updates, key=_is_added)]
    sent_ms = None if sent_s is None else _integer(sent_s * 1e3)
    return _ENCODER.encode(
        _Batch(SCHEMA, MIN_READER_SCHEMA, BLOCK_SIZES_ID, replica_id, number, list(writer.names), encoded, sent_ms)
    )


def _is_added(update: StateUpdate) -> bool:
    return isinstance(update, ADDED_UPDATES)


def batch_head(batch: bytes) -> tuple[int, int]:
    """The replica id and the number of a batch. Raises `UndecodableBatchError`, also where it is too large."""
    if len(batch) > MAX_BATCH_BYTES:
        raise UndecodableBatchError(f"{len(batch):,} bytes are more than {MAX_BATCH_BYTES:,}")
    try:
        head = _HEAD.decode(batch)
        return head.origin, head.number
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableBatchError(str(error)) from None


def teaches(batch: bytes) -> bool:
    """Return whether a batch has updates that are of use to a worker that starts later. Raises `UndecodableBatchError`.

    Heartbeats have none, nor have what waits, rejections and desired engines, of which a newer update follows.
    """
    try:
        updates = _RAW_BATCH.decode(batch).updates
        return bool(updates) and _TAG.decode(updates[0]).tag not in _MOMENTARY_TAGS
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
    updates = _Reader(head).decode(encoded)
    sent_s = None if head.sent_ms is None else head.sent_ms / 1e3
    return DecodedBatch(head.origin, head.number, updates, len(encoded) - len(updates), sent_s)


def _split(batch: bytes) -> tuple[_Batch | _RawBatch, Sequence[_Update | Raw]]:
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
            case PlacedUpdate(charge, model, prompt, session, is_resent):
                shared = _shared(self._last, prompt.blocks)
                self._last = prompt.blocks
                blocks = pack_blocks(prompt.blocks[shared:])
                return _Placed(self._charge(charge), self._name(model), prompt.size, shared, blocks, session, is_resent)
            case FirstTokenUpdate(number, work_tokens, took_s):
                return _FirstToken(number, _integer(work_tokens), _integer(took_s * 1e6))
            case SettledUpdate():
                return _Settled(
                    update.number,
                    update.prompt_tokens,
                    update.cached_tokens,
                    update.completion_tokens,
                    update.grown_size,
                    pack_blocks(update.grown_blocks),
                    _integer(update.running * 10),
                    None if update.decode_s is None else _integer(update.decode_s * 1e6),
                    update.response,
                )
            case EndedUpdate():
                return update
            case Snapshot(charges):
                return _Stated([self._charge(charge) for charge in charges])
            case QueueUpdate(tiers):
                return _Queue([self._tier(tier) for tier in tiers])
            case RejectedUpdate(fingerprint, age_s):
                return _Rejected(fingerprint, _integer(age_s * 1e6))
            case SupplyUpdate(payload):
                return _Supply(payload)

    def _tier(self, tier: TierWaiting) -> _TierWaiting:
        return _TierWaiting(
            self._name(tier.queue),
            self._name(tier.tier),
            _integer(tier.engines * 1e3),
            tier.waiting,
            [
                _TenantWaiting(self._tenant(each.tenant), _integer(each.work_s * 1e6), _integer(each.service))
                for each in tier.tenants
            ],
        )

    def _tenant(self, name: str | None) -> int:
        return NO_NAME if name is None else self._name(name)

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _charge(self, charge: OpenRequest) -> _Charge:
        objective = charge.objective
        return _Charge(
            charge.number,
            self._name(charge.engine),
            _integer(charge.prefill_tokens),
            _integer(charge.prefill_s * 1e6),
            _integer(charge.kv_tokens),
            charge.sequences,
            charge.in_prefill,
            charge.queues,
            0 if objective is None else _integer(objective.tpot_s * 1e6),
            0 if objective is None else _integer(objective.min_tokens * 1e3),
            None if objective is None or objective.admitted is None else self._admitted(objective.admitted),
        )

    def _admitted(self, admitted: AdmittedAs) -> _Admitted:
        return _Admitted(
            self._name(admitted.queue),
            self._name(admitted.tier),
            self._tenant(admitted.tenant),
            _integer(admitted.weight * 1e3),
            _integer(admitted.own_s * 1e6),
            _integer(admitted.answer_tokens),
        )


class _Reader:
    """Decodes the updates of one batch."""

    def __init__(self, head: _Head) -> None:
        self._names = head.names
        self._knows_blocks = head.cutting == BLOCK_SIZES_ID
        self._last: bytes | None = b""
        """Packed blocks of the previous prompt; None where it could not be read: blocks shared with it are unknown."""

    def decode(self, encoded: Iterable[_Update | Raw]) -> list[StateUpdate]:
        """Decode all updates, but those of unknown types, and those that refer to names that are not listed."""
        updates: list[StateUpdate] = []
        for update in encoded:
            # Of each request of each peer there are four: calls and structural patterns would cost several times this.
            if isinstance(update, EndedUpdate):
                updates.append(update)
            elif isinstance(update, _FirstToken):
                updates.append(FirstTokenUpdate(update.number, update.work_tokens, update.took_us / 1e6))
            elif isinstance(update, _Settled):
                updates.append(
                    SettledUpdate(
                        update.number,
                        update.prompt_tokens,
                        update.cached_tokens,
                        update.completion_tokens,
                        unpack_blocks(update.grown_blocks) if update.grown_blocks and self._knows_blocks else (),
                        update.grown_size,
                        update.response,
                        update.running_tenths / 10,
                        None if update.decode_us is None else update.decode_us / 1e6,
                    )
                )
            else:
                try:
                    decoded = self._decode(update)
                except IndexError:
                    continue
                if decoded is not None:
                    updates.append(decoded)
        return updates

    def _decode(self, update: _Update | Raw) -> StateUpdate | None:
        if isinstance(update, _Placed):
            charge, model = self._charge(update.charge), self._names[update.model]
            prompt = PackedPrompt(self._blocks(update.shared, update.blocks), BLOCK_ENDS, update.size)
            return PlacedUpdate(charge, model, prompt, update.session, update.is_resent)
        if isinstance(update, _Stated):
            return Snapshot(tuple([self._charge(charge) for charge in update.open]))
        if isinstance(update, _Queue):
            return QueueUpdate(tuple([self._tier(tier) for tier in update.tiers]))
        if isinstance(update, _Rejected):
            return RejectedUpdate(update.fingerprint, update.age_us / 1e6)
        if isinstance(update, _Supply):
            return SupplyUpdate(update.payload)
        self._last = None  # It may have held a prompt.
        return None

    def _tier(self, tier: _TierWaiting) -> TierWaiting:
        names = self._names
        return TierWaiting(
            names[tier.queue],
            names[tier.tier],
            tier.engines_thousandths / 1e3,
            tier.waiting,
            tuple(
                [
                    TenantWaiting(self._tenant(each.tenant), each.work_us / 1e6, float(each.service))
                    for each in tier.tenants
                ]
            ),
        )

    def _tenant(self, index: int) -> str | None:
        return None if index == NO_NAME else self._names[index]

    def _blocks(self, shared: int, blocks: bytes) -> bytes:
        last = self._last if shared else b""
        if not self._knows_blocks or last is None or not 0 <= shared <= len(last) // BLOCK_BYTES:
            self._last = None
            return b""
        if len(blocks) % BLOCK_BYTES:
            blocks = blocks[: len(blocks) // BLOCK_BYTES * BLOCK_BYTES]
        self._last = whole = last[: BLOCK_BYTES * shared] + blocks
        return whole

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
            self._objective(charge) if charge.tpot_us else None,
        )

    def _objective(self, charge: _Charge) -> StreamObjective:
        admitted, names = charge.admitted, self._names
        return StreamObjective(
            _seconds(charge.tpot_us),
            charge.min_tokens_thousandths / 1e3,
            None
            if admitted is None
            else AdmittedAs(
                names[admitted.queue],
                names[admitted.tier],
                self._tenant(admitted.tenant),
                admitted.weight_thousandths / 1e3,
                admitted.own_us / 1e6,
                admitted.answer_tokens,
            ),
        )


def _seconds(microseconds: int) -> float:
    """Infinity as it was written."""
    return inf if microseconds >= MAX_INTEGER else microseconds / 1e6


def _shared(last: Sequence[int], blocks: Sequence[int]) -> int:
    """Leading blocks that two prompts share, by bisection: equal hashes mean equal prefixes."""
    if not last or not blocks or last[0] != blocks[0]:
        return 0
    reach = range(min(len(last), len(blocks)))
    return bisect_left(reach, True, key=lambda index: last[index] != blocks[index])


def _integer(value: float) -> int:
    return round(value) if -MAX_INTEGER < value < MAX_INTEGER else MAX_INTEGER

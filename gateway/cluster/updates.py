"""How news travel: one batch of one origin as MessagePack, readable by neighbouring versions.

    [schema, least reader, cutting, origin, number, [name, ...], [word, ...]]

Engines and models stand in `names` once and in words by their place there. A prompt's blocks are eight bytes each,
without those it shares with the last prompt of the same batch. Tokens are whole, times whole microseconds.

What later versions may do: add words (passed over here), add fields behind those of a word (not read here), and
otherwise raise `least reader`, so that who is older passes the whole batch over. Knows no socket and no router.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from struct import pack, unpack

import msgspec
from msgspec import Raw, Struct

from routing.blocks import BLOCK_ENDS, BLOCK_SIZES, Prompt, seed_of
from routing.replica_state import Ended, FirstToken, News, Open, Placed, Settled, Stated

SCHEMA = 1
"""What is written here. Raised with every change that others may want to know of."""

LEAST_READER = 1
"""The oldest schema whose readers understand what is written here."""

CUTTING = seed_of(pack(f"<{len(BLOCK_SIZES)}Q", *BLOCK_SIZES)) & 0xFFFFFFFF
"""Who cuts prompts into other blocks has other hashes: its prompts say nothing here, its charges do."""

MOST_WHOLE = 1 << 48
"""No count is larger; what is not a number is written as this, and not believed by anybody."""


class UnreadableError(Exception):
    """A batch that is none, or that is written for later versions only."""


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
    """How many of its first blocks the batch's last prompt has too."""
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


_Word = _Placed | _FirstToken | _Settled | _Ended | _Stated


class _Head(Struct, frozen=True, array_like=True):
    schema: int
    least_reader: int
    cutting: int
    origin: int
    number: int
    names: list[str]


class _Batch(_Head, frozen=True, array_like=True):
    words: list[_Word]


class _StrangeBatch(_Head, frozen=True, array_like=True):
    words: list[Raw]


class Read(Struct, frozen=True):
    """A batch as it was read."""

    origin: int
    number: int
    news: list[News]
    strange: int
    """Words that were passed over."""


_ENCODER = msgspec.msgpack.Encoder()
_HEAD = msgspec.msgpack.Decoder(_Head)
_BATCH = msgspec.msgpack.Decoder(_Batch)
_STRANGE_BATCH = msgspec.msgpack.Decoder(_StrangeBatch)
_WORD: msgspec.msgpack.Decoder[_Word] = msgspec.msgpack.Decoder(_Word)


def write_batch(origin: int, number: int, news: Iterable[News]) -> bytes:
    """The `number`th batch of an origin."""
    writer = _Writer()
    words = [writer.word(word) for word in news]
    return _ENCODER.encode(_Batch(SCHEMA, LEAST_READER, CUTTING, origin, number, list(writer.names), words))


def head_of(batch: bytes) -> tuple[int, int]:
    """Whose batch it is, and its number. Raises `UnreadableError`."""
    try:
        head = _HEAD.decode(batch)
        return head.origin, head.number
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableError(str(error)) from None


def read_batch(batch: bytes) -> Read:
    """A batch as words; those that are not known here are passed over. Raises `UnreadableError`."""
    try:
        head, words = _cut(batch)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableError(str(error)) from None
    if head.least_reader > SCHEMA:
        raise UnreadableError(f"written for schema {head.least_reader} and later, this is {SCHEMA}")
    reader = _Reader(head)
    news = [said for word in words if (said := reader.word(word)) is not None]
    return Read(head.origin, head.number, news, len(words) - len(news))


def _cut(batch: bytes) -> tuple[_Head, Sequence[_Word | Raw]]:
    """A batch's words; where some of them are not known here, those as they came."""
    try:
        whole = _BATCH.decode(batch)
        return whole, whole.words
    except msgspec.ValidationError:
        partly = _STRANGE_BATCH.decode(batch)
        return partly, [_known(raw) for raw in partly.words]


def _known(raw: Raw) -> _Word | Raw:
    try:
        return _WORD.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw


class _Writer:
    """Remembers, within a batch, what need not be said again."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._last: tuple[int, ...] = ()

    def word(self, word: News) -> _Word:
        match word:
            case Placed(charge, model, prompt, session):
                shared = _shared(self._last, prompt.blocks)
                self._last = prompt.blocks
                blocks = _packed(prompt.blocks[shared:])
                return _Placed(self._charge(charge), self._name(model), prompt.size, shared, blocks, session)
            case FirstToken(number, work_tokens, took_s):
                return _FirstToken(number, _whole(work_tokens), _whole(took_s * 1e6))
            case Settled():
                return _Settled(
                    word.number,
                    word.prompt_tokens,
                    word.cached_tokens,
                    word.completion_tokens,
                    word.grown_size,
                    _packed(word.grown_blocks),
                    _whole(word.running * 10),
                    None if word.decode_s is None else _whole(word.decode_s * 1e6),
                    word.response,
                )
            case Ended(number):
                return _Ended(number)
            case Stated(charges):
                return _Stated([self._charge(charge) for charge in charges])

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _charge(self, charge: Open) -> _Charge:
        return _Charge(
            charge.number,
            self._name(charge.engine),
            _whole(charge.prefill_tokens),
            _whole(charge.prefill_s * 1e6),
            _whole(charge.kv_tokens),
            charge.sequences,
            charge.in_prefill,
            charge.queues,
        )


class _Reader:
    """Puts back what was not said again."""

    def __init__(self, head: _Head) -> None:
        self._names = head.names
        self._knows_blocks = head.cutting == CUTTING
        self._last: tuple[int, ...] | None = ()
        """None behind a prompt that could not be read: what is shared with it cannot be read either."""

    def word(self, word: _Word | Raw) -> News | None:
        """None where a word is not known, or speaks of names that are not there."""
        if isinstance(word, Raw):
            # A prompt may have stood in it.
            self._last = None
            return None
        try:
            return self._word(word)
        except IndexError:
            return None

    def _word(self, word: _Word) -> News:
        match word:
            case _Placed(charge, model, size, shared, blocks, session):
                held = self._blocks(shared, blocks)
                return Placed(self._charge(charge), self._names[model], Prompt(held, BLOCK_ENDS, size), session)
            case _FirstToken(number, work_tokens, took_us):
                return FirstToken(number, work_tokens, took_us / 1e6)
            case _Settled():
                return Settled(
                    word.number,
                    word.prompt_tokens,
                    word.cached_tokens,
                    word.completion_tokens,
                    _unpacked(word.grown_blocks) if self._knows_blocks else (),
                    word.grown_size,
                    word.response,
                    word.running_tenths / 10,
                    None if word.decode_us is None else word.decode_us / 1e6,
                )
            case _Ended(number):
                return Ended(number)
            case _Stated(charges):
                return Stated(tuple([self._charge(charge) for charge in charges]))

    def _blocks(self, shared: int, blocks: bytes) -> tuple[int, ...]:
        last = self._last if shared else ()
        if not self._knows_blocks or last is None or not 0 <= shared <= len(last):
            self._last = None
            return ()
        self._last = last[:shared] + _unpacked(blocks)
        return self._last

    def _charge(self, charge: _Charge) -> Open:
        return Open(
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
    """How many blocks two prompts have in common: equal hashes mean equal prefixes, so this is found by bisection."""
    if not last or not blocks or last[0] != blocks[0]:
        return 0
    reach = range(min(len(last), len(blocks)))
    return bisect_left(reach, True, key=lambda index: last[index] != blocks[index])


def _whole(value: float) -> int:
    return round(value) if -MOST_WHOLE < value < MOST_WHOLE else MOST_WHOLE


def _packed(blocks: Sequence[int]) -> bytes:
    return pack(f"<{len(blocks)}Q", *blocks)


def _unpacked(blocks: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(blocks) // 8}Q", blocks[: len(blocks) // 8 * 8])

"""Changes bytes: the few ways that find most faults. Same seed, same changes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

LONGEST = 1 << 14
"""Bytes of an input: what breaks a parser by its length alone is the affair of limits."""

ODD = (b"\x00", b"\xff", b"\x7f", b"\x80", b'"', b"\\", b"\n", b"\r\n", b"9" * 30, b"-", b"[" * 200, b"{" * 200)


def mutated(seeds: Sequence[bytes], words: Sequence[bytes], draw: Random) -> bytes:
    """One of the seeds, changed in one to eight places."""
    raw = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 8)):
        draw.choice(CHANGES)(raw, seeds, words, draw)
    return bytes(raw[:LONGEST])


def _flip(raw: bytearray, seeds: Sequence[bytes], words: Sequence[bytes], draw: Random) -> None:
    if raw:
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)


def _drop(raw: bytearray, seeds: Sequence[bytes], words: Sequence[bytes], draw: Random) -> None:
    at = draw.randint(0, len(raw))
    del raw[at : at + draw.choice((1, 2, 8, 64))]


def _put(raw: bytearray, seeds: Sequence[bytes], words: Sequence[bytes], draw: Random) -> None:
    at = draw.randint(0, len(raw))
    raw[at:at] = draw.choice((*words, *ODD))


def _repeat(raw: bytearray, seeds: Sequence[bytes], words: Sequence[bytes], draw: Random) -> None:
    at = draw.randint(0, len(raw))
    raw[at:at] = raw[at : at + draw.choice((1, 4, 32, 256))] * draw.randint(1, 4)


def _splice(raw: bytearray, seeds: Sequence[bytes], words: Sequence[bytes], draw: Random) -> None:
    other = draw.choice(seeds)
    at = draw.randint(0, len(raw))
    raw[at:] = other[draw.randint(0, len(other)) :]


CHANGES = (_flip, _drop, _put, _put, _repeat, _splice)

"""What a parser under test is to the fuzzer: a name, a way to feed it, and what may not happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Feed = Callable[[bytes], None]
"""Gives some bytes to a parser. What it raises is a fault of ours, as is taking long."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser. `words` are bytes that mean something to it: mutations put them in."""

    name: str
    feed: Feed
    words: tuple[bytes, ...] = ()


def split(raw: bytes) -> tuple[int, bytes]:
    """A number that steers how the rest is fed, and the rest."""
    return (raw[0], raw[1:]) if raw else (0, b"")


def cut(raw: bytes, by: int) -> list[bytes]:
    """The same bytes in pieces: whole, or so many at a time."""
    step = by % 61
    return [raw[at : at + step] for at in range(0, len(raw), step)] if step else [raw]

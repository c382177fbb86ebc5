"""A language model of one line: what comes next follows from the bytes before, and from nothing else.

So every pod gives the same answer to the same prompt, and one that is handed half an answer goes on as the first would
have. Independent of requests, engines and time.
"""

from __future__ import annotations

from zlib import crc32

from simulator.tokens import BYTES_PER_TOKEN, END_OF_THOUGHT

_CONSONANTS = "bdfgklmnprstvzhj"
_VOWELS = "aeio"

_WIDE = (" né", "èü", " ça", "日 ", " 語", "да", " ß.", "🎉")
"""Pieces with characters of several bytes; four bytes each, as all are."""

_MIX = 0x9E3779B1
"""Spreads neighbouring states apart (Knuth's multiplicative hash); a bare CRC is linear."""


def state_of(text: bytes, state: int = 0) -> int:
    """The state behind `text`; the same whether it is read at once or in pieces."""
    return crc32(text, state)


def _mixed(state: int, purpose: int) -> int:
    mixed = (state ^ purpose * 0x85EBCA6B) * _MIX & 0xFFFFFFFF
    return (mixed ^ mixed >> 15) * _MIX & 0xFFFFFFFF


def next_piece(state: int, *, accents: bool = False) -> str:
    """Four bytes: the beginning of a word or its continuation; with accents, some of them are not ASCII."""
    bits = _mixed(state, 1) >> 8
    if accents and bits >> 16 & 3 == 0:
        return _WIDE[bits >> 13 & 7]
    first, vowel, second, other = bits & 15, bits >> 4 & 3, bits >> 6 & 15, bits >> 10 & 3
    stem = _CONSONANTS[first] + _VOWELS[vowel] + _CONSONANTS[second]
    return f" {stem}" if bits >> 12 & 1 else stem + _VOWELS[other]


def natural_tokens(state: int, shortest: int, max_tokens: int) -> int:
    """Return the natural length of a response that begins in this state, in tokens."""
    return shortest + _mixed(state, 2) % (max_tokens - shortest + 1)


def logprob(state: int) -> float:
    """How sure the model was of the piece that it said in this state."""
    return -4.0 * ((_mixed(state, 3) >> 8) / (1 << 24)) ** 3


class Speech:
    """One response as it is generated, piece by piece; earlier pieces are kept.

    With `text` (ASCII: a tool call, a JSON object) it generates only that. With `thought` it first generates that many
    pieces of reasoning.
    """

    __slots__ = ("_accents", "_pieces", "_state", "_states", "length", "opening")

    def __init__(
        self, state: int, text: str | None = None, *, accents: bool = False, thought: int | None = None
    ) -> None:
        self._state = state
        self._accents = accents
        self._pieces: list[str] = []
        self._states: list[int] = []
        self.length: int | None = None
        """Pieces in all, where that is fixed."""
        if thought is not None:
            self._reach(thought)
            self._emit(END_OF_THOUGHT)
        self.opening = len(self._pieces)
        """Pieces before the answer proper."""
        if text is not None:
            for start in range(0, len(text), BYTES_PER_TOKEN):
                self._emit(text[start : start + BYTES_PER_TOKEN])
            self.length = len(self._pieces)

    def _emit(self, piece: str) -> None:
        self._pieces.append(piece)
        self._states.append(self._state)
        self._state = crc32(piece.encode(), self._state)

    def _reach(self, count: int) -> None:
        while len(self._pieces) < count:
            self._emit(next_piece(self._state, accents=self._accents))

    def pieces(self, start: int, end: int) -> list[str]:
        """The pieces [start, end)."""
        self._reach(end)
        return self._pieces[start:end]

    def certainty(self, index: int) -> float:
        """The log-probability of the piece with this number."""
        self._reach(index + 1)
        return logprob(self._states[index])

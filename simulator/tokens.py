"""A tokenizer that needs no vocabulary: four UTF-8 bytes are one token. Independent of messages and answers.

A token's id is its bytes, so any list of ids can be read back. Texts are cut from where they begin, one by one, and
special tokens are between them: what is appended to a conversation changes no token before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

BYTES_PER_TOKEN = 4

_LENGTH_SHIFT = 32
"""Ids below 2^32 are four bytes; a shorter rest carries its length above them; specials lie beyond all of these."""

_FIRST_SPECIAL = BYTES_PER_TOKEN + 1 << _LENGTH_SHIFT

MESSAGE_START = _FIRST_SPECIAL
MESSAGE_END = _FIRST_SPECIAL + 1
"""Ends a message, and an answer: the model's end-of-sequence token."""

THOUGHT_START = _FIRST_SPECIAL + 2
THOUGHT_END = _FIRST_SPECIAL + 3
"""What a model that thinks puts around its thoughts."""

_SPECIALS = {
    MESSAGE_START: b"<|im_start|>",
    MESSAGE_END: b"<|im_end|>",
    THOUGHT_START: b"<think>",
    THOUGHT_END: b"</think>",
}

END_OF_THOUGHT = "</think>"
"""The one special token that shows in a text: parsers know by it where the thoughts end."""

MAX_ID = (1 << 63) - 1
"""What vLLM takes at most for a token id."""


def encode(text: bytes) -> list[int]:
    """The tokens of one text; the last one may be shorter than the others."""
    full_tokens = len(text) // BYTES_PER_TOKEN
    tokens = list(struct.unpack_from(f"<{full_tokens}I", text))
    if rest := text[full_tokens * BYTES_PER_TOKEN :]:
        tokens.append(len(rest) << _LENGTH_SHIFT | int.from_bytes(rest, "little"))
    return tokens


def token_of(piece: str) -> int:
    """Return the token of this piece; the end of a message has no text."""
    if piece == END_OF_THOUGHT:
        return THOUGHT_END
    return encode(piece.encode())[0] if piece else MESSAGE_END


def bytes_of(token: int) -> bytes:
    """Return the bytes of a token; ids without text are taken for four bytes."""
    if token in _SPECIALS:
        return _SPECIALS[token]
    length = token >> _LENGTH_SHIFT
    return (token & 0xFFFFFFFF).to_bytes(4, "little")[: length if 0 < length < BYTES_PER_TOKEN else BYTES_PER_TOKEN]


def decode(tokens: Iterable[int]) -> str:
    """The text of a list of tokens; invalid UTF-8 turns into replacement marks, as in any tokenizer."""
    return b"".join(map(bytes_of, tokens)).decode("utf-8", "replace")


def pack(tokens: Sequence[int]) -> bytes:
    """Eight bytes a token, for hashing."""
    return struct.pack(f"<{len(tokens)}Q", *tokens)

"""Text for prompts of which only block ids are known: four bytes a token, equal ids equal text, else different text.

It reads like words and means nothing. Independent of traces and engines.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import shake_128

from simulator.tokens import BYTES_PER_TOKEN

_LETTERS = b"etaoinshrdlucmfwypvbgk"

ALPHABET = bytes(ord(" ") if byte < 40 else _LETTERS[byte % len(_LETTERS)] for byte in range(256))
"""What each random byte becomes: about every sixth a space, the others letters."""


def block_text(block: int, tokens: int) -> str:
    """The text of one block."""
    return _babble(f"block {block}", tokens)


def prompt_text(blocks: Iterable[int], block_tokens: int, prompt_tokens: int, own: str) -> str:
    """A whole prompt: its blocks, and behind them what only the request called `own` has."""
    parts = [block_text(block, block_tokens) for block in blocks]
    parts.append(_babble(f"own {own}", prompt_tokens - len(parts) * block_tokens))
    return "".join(parts)


def _babble(seed: str, tokens: int) -> str:
    return shake_128(seed.encode()).digest(tokens * BYTES_PER_TOKEN).translate(ALPHABET).decode("ascii")

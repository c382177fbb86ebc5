"""The tokenizer of pods in tests: two tokens per word, and marks around each message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from zlib import crc32


def tokens_of(messages: Iterable[Mapping[str, str]]) -> list[int]:
    """The token IDs of a chat; what is appended to it changes no token before it."""
    tokens: list[int] = []
    for message in messages:
        words = [f"<{message['role']}>", *message["content"].split(), "</>"]
        tokens += [crc32(f"{word}{half}".encode()) for word in words for half in "ab"]
    return tokens

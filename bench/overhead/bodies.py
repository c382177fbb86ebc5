"""The prompts that are sent: made-up words behind shared beginnings, so that a cache-aware router has work to do."""

from __future__ import annotations

import json
from random import Random

from bench.overhead.pods import MODEL

SHARED_SHARE = 0.5
"""Of a prompt: what it has in common with others."""


class Bodies:
    """Chat requests of one size, round and round."""

    def __init__(
        self, size: int, *, tokens: int, pace_ms: int = 0, is_stream: bool = False, count: int = 256, groups: int = 16
    ) -> None:
        random = Random(size)
        self.tokens = tokens
        self.is_stream = is_stream
        words = [_word(random) for _ in range(4096)]
        frame = len(_body("", "", tokens, pace_ms, is_stream=is_stream))
        shared = int((size - frame) * SHARED_SHARE)
        beginnings = [_text(random, words, shared) for _ in range(groups)]
        self._bodies = [
            _body(
                beginnings[number % groups],
                _text(random, words, size - frame - shared),
                tokens,
                pace_ms,
                is_stream=is_stream,
            )
            for number in range(count)
        ]
        self._turn = 0

    def next(self) -> bytes:
        self._turn = (self._turn + 1) % len(self._bodies)
        return self._bodies[self._turn]


def _word(random: Random) -> str:
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9)))


def _text(random: Random, words: list[str], size: int) -> str:
    return " ".join(random.choices(words, k=size // 3))[:size]


def _body(system: str, user: str, tokens: int, pace_ms: int, *, is_stream: bool) -> bytes:
    requests = {
        "model": MODEL,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
        "max_tokens": tokens,
        "seed": pace_ms,
        "stream": is_stream,
    }
    return json.dumps(requests, separators=(",", ":")).encode()

"""How sure the model says it was, as chat and completions say it. Made up, but the same for the same answer."""

from __future__ import annotations

import math
from typing import Any

from simulator.language import next_piece
from simulator.script import Script

MAX_LOGPROBS = 20

_LOWEST = -9999.0
"""vLLM's minus infinity, which JSON does not have."""


def _ranked(script: Script, index: int, text: str, count: int) -> list[tuple[str, float]]:
    """The token said and its most likely rivals, best first; each rival has half of what the one before left over."""
    sure = script.speech.certainty(index) if index < script.natural else -0.01
    left = 1.0 - math.exp(sure)
    ranked = [(text, sure)]
    for rival in range(1, count):
        share = left * 0.5**rival
        logprob = min(math.log(share), sure - 0.001 * rival) if share > 0 else _LOWEST
        ranked.append((next_piece(index * 1009 + rival), logprob))
    return ranked


def chat_logprobs(script: Script, start: int, end: int, top: int) -> dict[str, Any]:
    """`logprobs` of the tokens [start, end) as chat has them."""
    entries = []
    for index, text in enumerate(script.token_texts(start, end), start):
        shown = text or "<|im_end|>"
        ranked = [_entry(token, logprob) for token, logprob in _ranked(script, index, shown, max(top, 1))]
        entries.append({**ranked[0], "top_logprobs": ranked[:top]})
    return {"content": entries}


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def completion_logprobs(script: Script, start: int, end: int, top: int, offset: int) -> dict[str, Any]:
    """`logprobs` of the tokens [start, end) as completions have them; `offset` is where their text begins."""
    offsets, sure, tokens, tops = [], [], [], []
    for index, text in enumerate(script.token_texts(start, end), start):
        ranked = _ranked(script, index, text or "<|im_end|>", max(top, 1))
        offsets.append(offset)
        tokens.append(ranked[0][0])
        sure.append(ranked[0][1])
        tops.append(dict(ranked[: max(top, 1)]))
        offset += len(text)
    return {"text_offset": offsets, "token_logprobs": sure, "tokens": tokens, "top_logprobs": tops}

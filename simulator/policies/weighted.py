"""Weighted sums of scores between 0 and 1, as llm-d's endpoint picker adds them up: prefix hits against load.

Load is scaled over the candidates (best 1, worst 0, all 1 where all are equal), as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request
from simulator.policies.board import Board


class PrefixAndLoad:
    """prefix x hit ratio + load x fewness of requests in flight."""

    name: ClassVar[str] = "weighted"

    def __init__(self, board: Board, prefix: float = 3.0, load: float = 1.0) -> None:
        self._board = board
        self._prefix = prefix
        self._load = load

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Less is better here, so negative."""
        fewness = stretch([self._board.requests[engine.slot] for engine in candidates.engines])
        hits = hit_ratios(candidates)
        return [-(self._prefix * hit + self._load * few) for hit, few in zip(hits, fewness, strict=True)]


class PrefixQueueKv:
    """llm-d's default when nothing is configured: prefix 3, queue depth 2, KV utilisation 2."""

    name: ClassVar[str] = "llm-d-default"

    def __init__(self, board: Board) -> None:
        self._board = board

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Less is better here, so negative."""
        board, engines = self._board, candidates.engines
        shortness = stretch([board.waiting[engine.slot] for engine in engines])
        room = [
            1.0 - min(1.0, board.prompt_tokens[engine.slot] / capacity)
            for engine, capacity in zip(engines, candidates.kv_capacity, strict=True)
        ]
        hits = hit_ratios(candidates)
        return [-(3 * hit + 2 * short + 2 * free) for hit, short, free in zip(hits, shortness, room, strict=True)]


def hit_ratios(candidates: Candidates) -> list[float]:
    """Which share of the prompt each engine holds."""
    return [warm / max(candidates.prompt_tokens, 1.0) for warm in candidates.warm_tokens]


def stretch(counts: Sequence[float]) -> list[float]:
    """The least 1, the most 0, whatever lies between them; 1 for all where none differ."""
    lowest, highest = min(counts), max(counts)
    return [(highest - count) / (highest - lowest) if highest > lowest else 1.0 for count in counts]

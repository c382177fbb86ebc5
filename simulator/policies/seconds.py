"""Cost in seconds with rates given: what is queued and the own cold tokens over one constant speed, and nothing else.

A spike that showed what seconds can do: no growth with context, no decode, no learning, no memory.
"""

from __future__ import annotations

from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request
from simulator.policies.board import Board


class GivenSeconds:
    """`tokens_per_s` is the engines' true one."""

    name: ClassVar[str] = "given-seconds"

    def __init__(self, board: Board, tokens_per_s: float) -> None:
        self._board = board
        self._pace_s = 1 / tokens_per_s

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Seconds."""
        return [
            (self._board.prefill_tokens[engine.slot] + candidates.prompt_tokens - warm) * self._pace_s
            for engine, warm in zip(candidates.engines, candidates.warm_tokens, strict=True)
        ]

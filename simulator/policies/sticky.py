"""Sticky until saturated, as llm-d's guides have it: only engines with most of the prompt, unless they are far behind.

Its load is uncached tokens in flight; how fast they go is a constant of theirs, and so is how far behind is too far.
"""

from __future__ import annotations

from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request
from simulator.policies.board import Board
from simulator.policies.weighted import hit_ratios

OUT = 1e9
"""More tokens than any engine has before it."""


class Sticky:
    """`gate_s`: how many seconds the best cached engine may be behind the best cold one before the cache is ignored."""

    name: ClassVar[str] = "llm-d-sticky"

    def __init__(
        self, board: Board, *, gate_s: float = 18.0, tokens_per_s: float = 15_928.0, warm_from: float = 0.8
    ) -> None:
        self._board = board
        self._gate_tokens = gate_s * tokens_per_s
        self._warm_from = warm_from

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Uncached tokens in flight with this request's own: the token-load scorer's order."""
        queued = [self._board.prefill_tokens[engine.slot] for engine in candidates.engines]
        warm = [hit >= self._warm_from for hit in hit_ratios(candidates)]
        load = [
            before + candidates.prompt_tokens - held
            for before, held in zip(queued, candidates.warm_tokens, strict=True)
        ]
        if not any(warm) or all(warm) or self._is_saturated(queued, warm, candidates):
            return load
        return [tokens if is_warm else OUT + tokens for tokens, is_warm in zip(load, warm, strict=True)]

    def _is_saturated(self, queued: list[float], warm: list[bool], candidates: Candidates) -> bool:
        best_warm = min(tokens for tokens, is_warm in zip(queued, warm, strict=True) if is_warm)
        best_cold = min(tokens for tokens, is_warm in zip(queued, warm, strict=True) if not is_warm)
        return best_warm - best_cold > self._gate_tokens


class StickyBySlack(Sticky):
    """The same with a gate from the request itself: what is left of a first-token objective after its own cold work on
    the engine with the cached prefix, at the rates the router has learned.
    """

    name: ClassVar[str] = "sticky-by-slack"

    def __init__(self, board: Board, *, ttft_s: float = 2.0) -> None:
        super().__init__(board)
        self._ttft_s = ttft_s

    def _is_saturated(self, queued: list[float], warm: list[bool], candidates: Candidates) -> bool:
        best = min(
            (ahead + work) * pace
            for ahead, work, pace, is_warm in zip(
                candidates.ahead_tokens, candidates.prefill_work, candidates.seconds_per_token, warm, strict=True
            )
            if is_warm
        )
        return best > self._ttft_s

"""NVIDIA Dynamo's router: blocks still to prefill plus blocks in use, one to one; and LMetric's product of the two.

Counted in blocks and requests, without a rate: a block to prefill weighs as much as a block that decodes.
"""

from __future__ import annotations

from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request
from simulator.policies.board import Board


class DynamoCost:
    """Blocks to prefill (queued there, and own less cached ones) + distinct blocks of all that would be in flight."""

    name: ClassVar[str] = "dynamo"

    def __init__(self, board: Board) -> None:
        self._board = board
        board.keeps_blocks = True

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Blocks, of the size that the prompt is cut into."""
        board, prompt = self._board, request.prompt
        block = prompt.size / max(len(prompt.blocks), 1)
        costs = []
        for engine, warm in zip(candidates.engines, candidates.warm_tokens, strict=True):
            held = board.blocks[engine.slot]
            to_prefill = board.prefill_tokens[engine.slot] + candidates.prompt_tokens - warm
            costs.append(to_prefill / block + len(held) + sum(one not in held for one in prompt.blocks))
        return costs


class LMetric:
    """Tokens to prefill before this request's first token x batch size with it, after the paper."""

    name: ClassVar[str] = "lmetric"

    def __init__(self, board: Board) -> None:
        self._board = board

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Tokens x requests."""
        board, prompt = self._board, candidates.prompt_tokens
        return [
            (board.prefill_tokens[engine.slot] + prompt - warm) * (board.requests[engine.slot] + 1)
            for engine, warm in zip(candidates.engines, candidates.warm_tokens, strict=True)
        ]

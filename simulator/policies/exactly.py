"""Lets a policy have its choice: the least of its own numbers, whatever their unit, equals drawn at random.

The router's own rule for near-equals belongs to scores in seconds; others compare hit ratios, blocks or counts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import ClassVar

from routing.candidates import Candidates, Scorer
from routing.request import Request
from simulator.policies.board import Board

NEVER_S = 1e9

Chosen = Callable[[Request, Candidates, int], None]


class Exactly:
    """A scorer that leaves the router one engine to choose. Unlike a real one it has state: its board, and a callback
    for what was chosen.
    """

    name: ClassVar[str] = "policy"

    def __init__(self, policy: Scorer, board: Board, random: Random, *, first_of_equals: bool = False) -> None:
        self._policy = policy
        self._board = board
        self._random = random
        self._first = first_of_equals
        self._on_chosen: Chosen | None = getattr(policy, "chosen", None)

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Zero for the chosen one."""
        costs = self._policy.score(request, candidates)
        lowest = min(costs)
        equals = [at for at, cost in enumerate(costs) if cost == lowest]
        at = equals[0] if self._first else self._random.choice(equals)
        slot = candidates.engines[at].slot
        self._board.place(request.id, slot, candidates.prompt_tokens, candidates.warm_tokens[at], request.prompt.blocks)
        if self._on_chosen:
            self._on_chosen(request, candidates, at)
        seconds = [NEVER_S] * len(costs)
        seconds[at] = 0.0
        return seconds

"""Keeps prefill away from engines with the decode role, where an operator configures it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.facts import Role
from routing.request import Request


@dataclass(frozen=True, slots=True)
class DecodeRolePenalty:
    """Penalty for prefill on a decode engine, beyond the seconds that it takes.

    0 by default: the engine with the lowest TTFT prefills. With a prohibitive penalty all prompts are prefilled
    elsewhere while such an engine is ready, except those of which nothing is left to compute.
    """

    name: ClassVar[str] = "decode_role"
    needs: ClassVar[str] = "has_decode_engines"
    penalty_s: float = 0.0
    """Penalty in seconds."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the penalty for each decode engine that would have to prefill; an empty list where it is 0."""
        if not self.penalty_s or not any(engine.role is Role.DECODE for engine in candidates.engines):
            return []
        price_s = self.penalty_s
        return [
            price_s if engine.role is Role.DECODE and own_s > 0 else 0.0
            for engine, own_s in zip(candidates.engines, candidates.own_s, strict=True)
        ]

"""Keeps prefill away from engines that are there for decoding, where their pods say so and an operator wants it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.facts import Role
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Duty:
    """A price for prefill on a decode engine beyond the seconds that it takes. By default there is none: who has the
    shortest way to the first token does it. A price that nobody pays has all prompts prefilled elsewhere while anybody
    who does that is ready, but for those of which nothing is left to compute.
    """

    name: ClassVar[str] = "duty"
    decode_s: float = 0.0

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """So many seconds for each engine that is there for decoding and would have to prefill."""
        if not self.decode_s or not any(engine.role is Role.DECODE for engine in candidates.engines):
            return []
        price_s = self.decode_s
        return [
            price_s if engine.role is Role.DECODE and own_s > 0 else 0.0
            for engine, own_s in zip(candidates.engines, candidates.own_s, strict=True)
        ]

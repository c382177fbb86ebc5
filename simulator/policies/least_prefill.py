"""Least queued prefill: the engine with the least prefill work before this request, ignoring the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class LeastPrefill:
    """Tokens ahead, as the ledger has them: the one at work counts by what is left of it."""

    name: ClassVar[str] = "least-prefill"

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Tokens."""
        return list(candidates.ahead_tokens)

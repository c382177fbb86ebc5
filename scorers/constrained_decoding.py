"""Extra seconds of constrained answers on engines whose speculation a grammar defeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class ConstrainedDecoding:
    """A request with tools or a schema, times the extra seconds a token that diagnosis found for such requests.

    `weight` multiplies them. Without a finding no engine has any, and the scorer is skipped.
    """

    name: ClassVar[str] = "constrained_decoding"
    needs: ClassVar[str] = "constrained_token_s"
    weight: float = 1.0

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return seconds by which the answer ends later; an empty list for plain requests, and without a finding."""
        if not candidates.constrained_token_s:
            return []
        tokens = self.weight * (candidates.typical_answer_tokens or candidates.output_tokens)
        return [tokens * seconds for seconds in candidates.constrained_token_s]

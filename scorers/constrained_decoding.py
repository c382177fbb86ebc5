"""Extra seconds of answers on engines whose speculation a grammar defeats, or that are needed for such answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class ConstrainedDecoding:
    """Extra seconds per token that diagnosis found for requests of this kind, times the expected tokens.

    Constrained requests (tools, a schema) have them on speculating engines that a finding names; others on the engines
    beside those, where they lack the speculation that helps them. `weight` multiplies both. Without a finding no engine
    has any, and the scorer is skipped.
    """

    name: ClassVar[str] = "constrained_decoding"
    needs: ClassVar[str] = "token_excess_s"
    weight: float = 1.0
    """Weight of an extra second."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return seconds by which the answer ends later; an empty list without a finding."""
        if not candidates.token_excess_s:
            return []
        tokens = self.weight * (candidates.typical_answer_tokens or candidates.output_tokens)
        return [tokens * seconds for seconds in candidates.token_excess_s]

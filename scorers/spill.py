"""Keeps pools of a higher rank cold, such as a cloud, while the first pools answer in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request

COLD_S = 3_600.0
"""Seconds by which an engine of a higher rank is put behind: more than all other terms together."""


@dataclass(frozen=True, slots=True)
class SpillPenalty:
    """Engines of the lowest rank come first while one of them can begin to answer within `max_ttft_s`.

    An objective of a tier counts besides: where admission finds no engine of the lowest rank that keeps it, it takes
    the best one of the next rank. Residency comes before: an engine outside of a request's regions is not a candidate.
    """

    name: ClassVar[str] = "spill"
    needs: ClassVar[str] = "spill_ranks"
    max_ttft_s: float = 5.0
    """Predicted time to first token on the best engine of the lowest rank from which on others are used."""
    per_rank_s: float = 0.5
    """What a rank costs then."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the penalty per engine; an empty list where all candidates have the same rank."""
        ranks = candidates.spill_ranks
        if not ranks or min(ranks) == max(ranks):
            return []
        lowest = min(ranks)
        first_token_s = min(
            overhead + ahead + own
            for rank, overhead, ahead, own in zip(
                ranks, candidates.prefill_overhead_s, candidates.ahead_s, candidates.own_s, strict=True
            )
            if rank == lowest
        )
        each_s = COLD_S if first_token_s <= self.max_ttft_s else self.per_rank_s
        return [each_s * (rank - lowest) for rank in ranks]

"""Keeps pools of a higher rank cold, such as a cloud, while the first pools answer in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

from routing.candidates import Candidates
from routing.request import Request

COLD_S = 3_600.0
"""Seconds by which an engine of a higher rank is put behind: more than all other terms together."""


@dataclass(frozen=True, slots=True)
class SpillPenalty:
    """Penalty for engines of higher rank; those of the lowest rank come first while one answers within `max_ttft_s`.

    An objective of a tier counts besides: where admission finds no engine of the lowest rank that keeps it, it takes
    the best one of the next rank. Where a share of the model's requests is to leave, it leaves before that, so that
    requests which may not leave find room: it goes to a higher rank while that answers in time. All requests of a
    session go the same way. Residency comes before: an engine outside of a request's regions is not a candidate.
    """

    name: ClassVar[str] = "spill"
    needs: ClassVar[str] = "spill_ranks"
    max_ttft_s: float = 5.0
    """Predicted TTFT on the best engine of the lowest rank, from which on higher ranks are used."""
    per_rank_s: float = 0.5
    """Penalty per rank then, in seconds."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the penalty per engine; an empty list where all candidates have the same rank."""
        ranks = candidates.spill_ranks
        if not ranks or min(ranks) == max(ranks):
            return []
        lowest = min(ranks)
        is_leaving = candidates.spill_share > 0 and leaves(request, candidates.spill_share)
        if is_leaving and _best_s(candidates, lambda rank: rank > lowest) <= self.max_ttft_s:
            return [COLD_S if rank == lowest else self.per_rank_s * (rank - lowest) for rank in ranks]
        is_late = _best_s(candidates, lambda rank: rank == lowest) > self.max_ttft_s
        each_s = self.per_rank_s if is_late else COLD_S
        return [each_s * (rank - lowest) for rank in ranks]


def leaves(request: Request, share: float) -> bool:
    """Return whether a request is among the share that leaves the lowest rank: by its session, or its id without."""
    return crc32((request.session or request.id).encode()) < share * 2**32


def _best_s(candidates: Candidates, is_counted: Callable[[int], bool]) -> float:
    """Return the predicted time to first token on the best engine of some ranks."""
    return min(
        overhead + ahead + own
        for rank, overhead, ahead, own in zip(
            candidates.spill_ranks, candidates.prefill_overhead_s, candidates.ahead_s, candidates.own_s, strict=True
        )
        if is_counted(rank)
    )

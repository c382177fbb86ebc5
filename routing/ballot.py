"""What was weighed in one decision, and the few lines of it that a receipt shows; not what became of the request."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from msgspec import Struct

from routing.candidates import Candidates

SHOWN_CANDIDATES = 8
"""Enough to see who nearly won; a receipt of a thousand engines would cost more than the request."""


class CandidateShown(Struct, frozen=True, gc=False):
    """One engine as it was scored. `seconds` holds the term of each scorer that had something to say, by name."""

    engine: str
    chosen: bool
    total_s: float
    seconds: dict[str, float]
    warm_tokens: int
    ahead_tokens: int
    running: int


class Scored(Struct, frozen=True, gc=False):
    """What each scorer said of each candidate: `terms[scorer][candidate]` seconds, and their sums."""

    names: tuple[str, ...]
    terms: tuple[Sequence[float], ...]
    totals: Sequence[float]


class Ballot(Struct, frozen=True, gc=False):
    """Candidates, their scores, and the position of the one chosen."""

    candidates: Candidates
    scored: Scored
    at: int

    def best(self) -> tuple[CandidateShown, ...]:
        """The best few, the chosen one always among them."""
        totals, scored, seen = self.scored.totals, self.scored, self.candidates
        best = nsmallest(SHOWN_CANDIDATES, range(len(totals)), key=totals.__getitem__)
        if self.at not in best:
            best[-1] = self.at
        return tuple(
            CandidateShown(
                engine=seen.engines[at].name,
                chosen=at == self.at,
                total_s=round(totals[at], 6),
                seconds={name: round(term[at], 6) for name, term in zip(scored.names, scored.terms, strict=True)},
                warm_tokens=round(seen.warm_tokens[at]),
                ahead_tokens=round(seen.ahead_tokens[at]),
                running=round(seen.running[at]),
            )
            for at in best
        )

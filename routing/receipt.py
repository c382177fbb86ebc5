"""Why a request went where it went: candidates, predicted and real seconds, predicted and real warm tokens.

A value, made once when the request ends; knows neither where it is kept nor how it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest

from routing.placement import Placement, Usage

SHOWN_CANDIDATES = 8
"""Enough to see who nearly won; a receipt of a thousand engines would cost more than the request."""


@dataclass(frozen=True, slots=True)
class CandidateShown:
    """One engine as it was scored. `seconds` holds each scorer's term by name."""

    engine: str
    chosen: bool
    total_s: float
    seconds: dict[str, float]
    warm_tokens: int
    ahead_tokens: int
    running: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One engine that was tried, in the order of trying."""

    engine: str
    ended: str
    candidates: tuple[CandidateShown, ...]
    candidates_in_all: int
    predicted_prompt_tokens: int
    predicted_warm_tokens: int
    real_warm_tokens: int | None
    predicted_ttft_s: float
    real_ttft_s: float | None


def show_attempt(placement: Placement, ended: str, usage: Usage | None) -> Attempt:
    """The receipt's line for one placement that has ended."""
    predicted = placement.predicted
    first = placement.first_token_s
    return Attempt(
        engine=placement.engine.name,
        ended=ended,
        candidates=_shown(placement),
        candidates_in_all=len(placement.candidates.engines),
        predicted_prompt_tokens=round(predicted.prompt_tokens),
        predicted_warm_tokens=round(predicted.warm_tokens),
        real_warm_tokens=usage.cached_tokens if usage else None,
        predicted_ttft_s=round(predicted.ttft_s, 6),
        real_ttft_s=None if first is None else round(first - placement.placed_s, 6),
    )


def _shown(placement: Placement) -> tuple[CandidateShown, ...]:
    totals, scored, seen = placement.scored.totals, placement.scored, placement.candidates
    best = nsmallest(SHOWN_CANDIDATES, range(len(totals)), key=totals.__getitem__)
    if placement.at not in best:
        best[-1] = placement.at
    return tuple(
        CandidateShown(
            engine=seen.engines[at].name,
            chosen=at == placement.at,
            total_s=round(totals[at], 6),
            seconds={name: round(term[at], 6) for name, term in zip(scored.names, scored.terms, strict=True)},
            warm_tokens=round(seen.warm_tokens[at]),
            ahead_tokens=round(seen.ahead_tokens[at]),
            running=round(seen.running[at]),
        )
        for at in best
    )

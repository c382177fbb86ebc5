"""What was weighed in one decision, and the few lines of it that a receipt shows; not what became of the request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from operator import itemgetter

from msgspec import Struct

from routing.candidates import Candidates
from routing.pods import Engine

SHOWN_CANDIDATES = 8
"""Enough to see who nearly won; a receipt of a thousand engines would cost more than the request."""


def name_of(engine: Engine | None) -> str | None:
    """An engine's name, where there is one."""
    return None if engine is None else engine.name


class CandidateShown(Struct, frozen=True, gc=False):
    """One engine as it was scored. `seconds` holds the term of each scorer that had something to say, by name."""

    engine: str
    chosen: bool
    total_s: float
    seconds: dict[str, float]
    warm_tokens: int
    ahead_tokens: int
    running: int
    prefill: str | None = None
    """Who would do the prefill, where it would be another engine."""


class Few(Struct, frozen=True, gc=False):
    """The best of a ballot, the chosen one among them, as columns: written out only when somebody looks."""

    engines: Sequence[Engine]
    at: int
    names: tuple[str, ...]
    terms: tuple[Sequence[float], ...]
    totals: Sequence[float]
    warm_tokens: Sequence[float]
    ahead_s: Sequence[float]
    seconds_per_token: Sequence[float]
    running: Sequence[float]
    prefillers: Sequence[Engine | None] = ()

    def __iter__(self) -> Iterator[CandidateShown]:
        """Best first."""
        for at in sorted(range(len(self.totals)), key=self.totals.__getitem__):
            yield CandidateShown(
                engine=self.engines[at].name,
                chosen=at == self.at,
                total_s=round(self.totals[at], 6),
                seconds={name: round(term[at], 6) for name, term in zip(self.names, self.terms, strict=True)},
                warm_tokens=round(self.warm_tokens[at]),
                ahead_tokens=round(self.ahead_s[at] / self.seconds_per_token[at]),
                running=round(self.running[at]),
                prefill=name_of(self.prefillers[at]) if self.prefillers else None,
            )


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

    def few(self) -> Few:
        """What a receipt shows of it."""
        seen, scored, at = self.candidates, self.scored, self.at
        if len(seen.engines) <= SHOWN_CANDIDATES:
            return Few(
                seen.engines,
                at,
                scored.names,
                scored.terms,
                scored.totals,
                seen.warm_tokens,
                seen.ahead_s,
                seen.seconds_per_token,
                seen.running,
                seen.prefillers,
            )
        best = nsmallest(SHOWN_CANDIDATES, range(len(scored.totals)), key=scored.totals.__getitem__)
        if at not in best:
            best[-1] = at
        pick = itemgetter(*best)
        return Few(
            pick(seen.engines),
            best.index(at),
            scored.names,
            tuple(map(pick, scored.terms)),
            pick(scored.totals),
            pick(seen.warm_tokens),
            pick(seen.ahead_s),
            pick(seen.seconds_per_token),
            pick(seen.running),
            pick(seen.prefillers) if seen.prefillers else (),
        )


class Foreseen(Struct, frozen=True, gc=False):
    """What a placing would come to."""

    engine: Engine
    prefill: Engine | None
    """Who would do the prefill, where it would be another engine."""
    ttft_s: float
    own_s: float
    """Of the request's own prefill."""
    tpot_s: float
    """A step of the engine with one sequence more."""
    prompt_tokens: float
    warm_tokens: float
    total_s: float
    """Its score: all seconds, those of others too."""


def foreseen(seen: Candidates, scored: Scored, at: int) -> Foreseen:
    """The candidate in a position, told as values."""
    return Foreseen(
        engine=seen.engines[at],
        prefill=seen.prefillers[at] if seen.prefillers else None,
        ttft_s=seen.prefill_overhead_s[at] + seen.ahead_s[at] + seen.own_s[at],
        own_s=seen.own_s[at],
        tpot_s=seen.step_base_s[at] + seen.step_per_sequence_s[at] * (seen.running[at] + 1),
        prompt_tokens=seen.prompt_tokens,
        warm_tokens=seen.warm_tokens[at],
        total_s=scored.totals[at],
    )

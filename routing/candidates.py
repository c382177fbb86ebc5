"""The candidates of one decision, their scores, and the few of them that a receipt shows.

Columns, not objects: one list per fact, one position per engine, so that a decision over a hundred engines is a handful
of passes. A scorer takes `Candidates` and returns seconds, one per position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from operator import attrgetter, itemgetter
from typing import ClassVar, Protocol, runtime_checkable

from msgspec import Struct

from routing.cost import PRIOR_SPREAD, prefill_work
from routing.facts import PromptLengths
from routing.ledger import StreamObjective
from routing.pods import Engine
from routing.request import Request, Usage

NEW_POD_S = 3600.0
"""Age up to which a pod counts as new."""


class Candidates(Struct, gc=False):
    """The engines that may serve a request. All sequences have the same length and order."""

    engines: Sequence[Engine]
    now_s: float
    prompt_tokens: float
    """Predicted tokens of the prompt, from its size."""
    output_tokens: int
    """Predicted tokens of all answers together; 0 where the request generates none."""
    warm_tokens: Sequence[float]
    """Leading prompt tokens that each engine has cached."""
    prefill_work: Sequence[float]
    """Tokens that each engine would have to prefill, weighted by context (`routing.cost.prefill_work`)."""
    own_s: Sequence[float]
    """Seconds that this prefill takes on each engine."""
    ahead_s: Sequence[float]
    """Seconds of prefill queued on each engine before this request."""
    running: Sequence[float]
    """Running sequences on each engine, external ones included."""
    kv_tokens: Sequence[float]
    """KV tokens in use on each engine."""
    kv_capacity: Sequence[float]
    """KV tokens that each engine can hold; infinite if the engine has not reported it."""
    min_kv_capacity: float
    """Smallest of `kv_capacity`."""
    prefill_overhead_s: Sequence[float]
    """Seconds of a first token beside queue and prefill, learned by engine."""
    seconds_per_token: Sequence[float]
    """Seconds of prefill per unit of `prefill_work`, learned by engine."""
    step_base_s: Sequence[float]
    """Seconds of a decode step without sequences, learned by engine."""
    step_per_sequence_s: Sequence[float]
    """Seconds that each sequence adds to a decode step, learned by engine."""
    residence_s: Sequence[float]
    """Mean seconds that a request stays on each engine."""
    last_turn: Sequence[int]
    """Number of the decision that chose each engine last; higher is later."""
    ready_since_s: Sequence[float]
    """Loop time at which each pod became ready."""
    newest_since_s: float
    """Largest of `ready_since_s`."""
    session_at: int | None = None
    """Position of the engine that served the session last, or that stores the response which the request continues."""
    open_steps: Sequence[tuple[int, int, float]] = ()
    """(Position, requests that get their first token with the step, tokens that still fit) of each engine whose last
    step of queued prefill has not begun, so that this request would join it."""
    prefix: int | None = None
    """Last block of the prompt that some engine has cached; None where no engine has any, or all have it."""
    waited_s: float = 0.0
    """Decayed sum of the seconds that requests have waited for engines that hold as much of the prompt as any
    (`routing.demand`)."""
    displaced_share: float = 0.0
    """Predicted tokens that will be computed again per evicted token (`routing.prefix_index`)."""
    engines_in_all: int = 0
    """Number of engines that may serve the request; the candidates are the shortlist of them."""
    holds_adapter: Sequence[bool] = ()
    """Whether each engine used the request's adapter recently; empty if the model is not an adapter."""
    prompts: Sequence[PromptLengths] = ()
    """Prompt lengths that each pod is meant for; empty where all are for any."""
    spill_ranks: Sequence[int] = ()
    """Rank of each pod: lower ones are used first; empty where all are equal."""
    distances_s: Sequence[float] = ()
    """Seconds of a round trip to each pod; empty where all are near."""
    spill_share: float = 0.0
    """Share of the model's requests that should leave the lowest rank; 0 where all ranks are equal."""
    prefillers: Sequence[Engine | None] = ()
    """Prefill engine of each candidate that is a pair, else None; empty without pairs. A pair is listed under its
    decode engine, with the cached tokens, work, own and queued seconds of its prefill engine; the overhead includes the
    KV transfer."""
    prefill_shares: Sequence[float] = ()
    """Decayed share of each engine's time that prefill takes; empty where no other engine could prefill for any."""
    stalls_s: Sequence[float] = ()
    """Mean seconds by which the sequences of each engine were stalled by prefill, or soon will be; empty where these
    and this prompt make no stream late."""
    token_excess_s: Sequence[float] = ()
    """Extra seconds per output token of a request of this kind (constrained or not) on each engine, by diagnosis; empty
    without a finding."""
    lockstep_s: Sequence[float] = ()
    """Seconds that the first token waits for prefill of ranks in lockstep with each engine; empty, as the next three,
    where every engine steps alone."""
    stalled: Sequence[float] = ()
    """Sequences that own prefill stalls, those of other ranks in lockstep included."""
    slowed: Sequence[float] = ()
    """Sequences whose steps one more sequence makes longer."""
    in_step: Sequence[float] = ()
    """Sequences of the busiest rank in lockstep with each engine."""
    draining_streams: Sequence[float] = ()
    """Streams that each engine still decodes after its role became prefill; empty without such an engine."""
    typical_answer_tokens: float = 0.0
    """Geometric mean of output tokens of answers; 0 before the first one."""
    answer_spread: float = PRIOR_SPREAD
    """Standard deviation of the logarithm of output tokens."""
    typical_prefill_s: float = 0.0
    """Typical seconds of a prefill in the fleet (`routing.cost`); 0 without `prefill_shares`."""
    typical_stream_s: float = 0.0
    """Typical seconds of a stream without stalls; 0 without `prefill_shares`."""
    median_stream_s: float = 0.0
    """Median seconds of a stream without stalls; 0 without `prefill_shares`."""
    lacks_kv_room: bool = False
    """Whether some engine may have no room for the request beside what runs there."""
    has_new_pods: bool = False
    """Whether a pod became ready within the last `NEW_POD_S`."""
    has_decode_engines: bool = False
    """Whether the role of some engine is `decode`."""
    burden_s: Sequence[float] = ()
    """Seconds of prefill on the engine that decodes, 0 for pairs; empty without pairs, where it is `own_s`."""

    @property
    def ahead_tokens(self) -> list[float]:
        """Prefill work queued before this request, in tokens."""
        return [ahead / pace for ahead, pace in zip(self.ahead_s, self.seconds_per_token, strict=True)]

    def ttft_s(self, at: int) -> float:
        """Return the seconds to the first token of the candidate in a position."""
        ahead_s = self.ahead_s[at] + (self.lockstep_s[at] if self.lockstep_s else 0.0)
        return self.prefill_overhead_s[at] + ahead_s + self.own_s[at]


@runtime_checkable
class Scorer(Protocol):
    """Seconds to add for each candidate; negative seconds are a discount. A scorer has no state.

    A class may also declare `needs`, the name of a column of `Candidates`: the router skips the scorer in decisions
    where that column has its default. So a scorer of adapters costs nothing where no adapter is requested.
    """

    name: ClassVar[str]

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return seconds per candidate, in order; an empty list where the scorer does not apply."""
        ...


class NoEngineAdmissible(Exception):  # noqa: N818 - not an error
    """Admission allows no engine to take a request now."""


class AdmissionGate(Protocol):
    """Decides which engines may be chosen: called inside a decision, so that admission and routing see one state."""

    stream_objective: StreamObjective | None
    """The objective of the response's tokens on the chosen engine; None if there is none."""

    def admits(self, candidates: Candidates, at: int) -> bool:
        """Return whether the engine in a position may be chosen. Called for the best first, until one is admitted."""
        ...


MAX_SHOWN_CANDIDATES = 8
"""Enough to see the runners-up; a receipt of a thousand engines would cost more than the request."""


_NAME = attrgetter("name")


def engine_name(engine: Engine | None) -> str | None:
    """Return the name of an engine; None for None."""
    return None if engine is None else engine.name


class CandidateShown(Struct, frozen=True, gc=False):
    """One engine as it was scored. `scores_s` holds the term of each scorer that contributed, by name."""

    engine: str
    chosen: bool
    total_s: float
    scores_s: dict[str, float]
    cached_input_tokens: int
    queued_prefill_tokens: int
    running: int
    prefill_engine: str | None = None
    """The engine that would prefill, where that is another one."""


class TopCandidates(Struct, frozen=True, gc=False):
    """The best candidates of a decision and the chosen one, as columns: expanded only when a receipt is read.

    Engines are names: a receipt outlives pods.
    """

    engines: Sequence[str]
    at: int
    names: tuple[str, ...]
    terms: tuple[Sequence[float], ...]
    totals: Sequence[float]
    warm_tokens: Sequence[float]
    ahead_s: Sequence[float]
    seconds_per_token: Sequence[float]
    running: Sequence[float]
    prefillers: Sequence[str | None] = ()

    def __iter__(self) -> Iterator[CandidateShown]:
        """Yield the candidates, best first."""
        for at in sorted(range(len(self.totals)), key=self.totals.__getitem__):
            yield CandidateShown(
                engine=self.engines[at],
                chosen=at == self.at,
                total_s=round(self.totals[at], 6),
                scores_s={name: round(term[at], 6) for name, term in zip(self.names, self.terms, strict=True)},
                cached_input_tokens=round(self.warm_tokens[at]),
                queued_prefill_tokens=round(self.ahead_s[at] / self.seconds_per_token[at]),
                running=round(self.running[at]),
                prefill_engine=self.prefillers[at] if self.prefillers else None,
            )


class ScoreTable(Struct, frozen=True, gc=False):
    """The term of each scorer for each candidate: `terms[scorer][candidate]` seconds, and their sums."""

    names: tuple[str, ...]
    terms: tuple[Sequence[float], ...]
    totals: Sequence[float]


class RoutingDecision(Struct, frozen=True, gc=False):
    """One decision: candidates, their scores, and the position of the one chosen."""

    candidates: Candidates
    scored: ScoreTable
    at: int

    def top(self) -> TopCandidates:
        """Return the best candidates for the receipt; all others can be freed."""
        columns, scored, at = self.candidates, self.scored, self.at
        if len(columns.engines) <= MAX_SHOWN_CANDIDATES:
            return TopCandidates(
                [*map(_NAME, columns.engines)],
                at,
                scored.names,
                scored.terms,
                scored.totals,
                columns.warm_tokens,
                columns.ahead_s,
                columns.seconds_per_token,
                columns.running,
                [*map(engine_name, columns.prefillers)] if columns.prefillers else (),
            )
        best = nsmallest(MAX_SHOWN_CANDIDATES, range(len(scored.totals)), key=scored.totals.__getitem__)
        if at not in best:
            best[-1] = at
        pick = itemgetter(*best)
        return TopCandidates(
            [*map(_NAME, pick(columns.engines))],
            best.index(at),
            scored.names,
            tuple(map(pick, scored.terms)),
            pick(scored.totals),
            pick(columns.warm_tokens),
            pick(columns.ahead_s),
            pick(columns.seconds_per_token),
            pick(columns.running),
            [*map(engine_name, pick(columns.prefillers))] if columns.prefillers else (),
        )


ALONE_SHARE = 0.05
"""Below this share of its own work queued before it, a request's time to first token measures its own work."""


class Prediction(Struct, frozen=True, gc=False):
    """What was predicted when the engine was chosen."""

    prompt_tokens: float
    cached_tokens: float
    """Leading tokens of the prompt in the engine's KV cache."""
    ttft_s: float
    work_tokens: float
    """Prefill work before the first token: queued before it and its own."""
    running: float
    is_alone: bool = False
    """Whether next to nothing was queued before it."""
    own_prefill_s: float = 0.0
    """What the request's own prefill takes the engine, were it idle."""

    def held(self, usage: Usage | None) -> float:
        """Return how many leading tokens the engine held by its own word, or else by this prediction."""
        if usage is None or usage.cached_tokens is None:
            return self.cached_tokens
        return float(min(usage.cached_tokens, self.prompt_tokens))

    def work_with(self, cached_tokens: float, growth: float) -> float:
        """Return the work in tokens had `cached_tokens` been cached; `growth` of prefill as in `prefill_work`."""
        cold, expected = self.prompt_tokens - cached_tokens, self.prompt_tokens - self.cached_tokens
        more = prefill_work(cold, self.prompt_tokens, growth) - prefill_work(expected, self.prompt_tokens, growth)
        return max(self.work_tokens + more, 0.0)


def predict(candidates: Candidates, at: int) -> Prediction:
    """What the engine in a position will take for the request, alone or as the prefill side of a pair."""
    ahead_s, own_s = candidates.ahead_s[at], candidates.own_s[at]
    if candidates.lockstep_s:
        ahead_s += candidates.lockstep_s[at]
    return Prediction(
        prompt_tokens=candidates.prompt_tokens,
        cached_tokens=candidates.warm_tokens[at],
        ttft_s=candidates.ttft_s(at),
        work_tokens=candidates.prefill_work[at] + ahead_s / candidates.seconds_per_token[at],
        running=(candidates.in_step or candidates.running)[at],
        is_alone=ahead_s <= ALONE_SHARE * own_s,
        own_prefill_s=own_s,
    )


class PlacementEstimate(Struct, frozen=True, gc=False):
    """What a placement would cost and take."""

    engine: Engine
    prefill: Engine | None
    """The engine that would prefill, where that is another one."""
    ttft_s: float
    own_prefill_s: float
    """Of the request's own prefill."""
    tpot_s: float
    """A step of the engine with one sequence more."""
    prompt_tokens: float
    cached_tokens: float
    total_s: float
    """Its score: all seconds, those of others too."""


def estimate(columns: Candidates, scored: ScoreTable, at: int) -> PlacementEstimate:
    """Estimate a placement on the candidate in a position."""
    running = (columns.in_step or columns.running)[at]
    return PlacementEstimate(
        engine=columns.engines[at],
        prefill=columns.prefillers[at] if columns.prefillers else None,
        ttft_s=columns.ttft_s(at),
        own_prefill_s=columns.own_s[at],
        tpot_s=columns.step_base_s[at] + columns.step_per_sequence_s[at] * (running + 1),
        prompt_tokens=columns.prompt_tokens,
        cached_tokens=columns.warm_tokens[at],
        total_s=scored.totals[at],
    )

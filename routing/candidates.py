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
    """Expected, from the prompt's size."""
    output_tokens: int
    """Expected of all answers together; 0 where the request generates none."""
    warm_tokens: Sequence[float]
    """How many leading tokens each engine holds already."""
    prefill_work: Sequence[float]
    """Tokens each would still have to prefill, weighted by context (`routing.cost.prefill_work`)."""
    own_s: Sequence[float]
    """What that prefill takes each of them."""
    ahead_s: Sequence[float]
    """What prefill is queued before this request takes them."""
    running: Sequence[float]
    """Sequences there now, ours and foreign."""
    kv_tokens: Sequence[float]
    """KV tokens in use by them."""
    kv_capacity: Sequence[float]
    """KV tokens each engine can hold; infinite if the engine has not reported it."""
    min_kv_capacity: float
    prefill_overhead_s: Sequence[float]
    seconds_per_token: Sequence[float]
    step_base_s: Sequence[float]
    step_per_sequence_s: Sequence[float]
    residence_s: Sequence[float]
    last_turn: Sequence[int]
    ready_since_s: Sequence[float]
    newest_since_s: float
    session_at: int | None = None
    """Position of the engine where the request's session was last, or where the response it continues lives."""
    open_steps: Sequence[tuple[int, int, float]] = ()
    """(Position, requests whose first token comes with it, tokens that still fit) where an engine's last step of queued
    prefill has not begun, so that this request would join it."""
    prefix: int | None = None
    """The last block of the prompt that is cached on an engine; None where it is on none, or on all."""
    waited_s: float = 0.0
    """Decayed sum of the seconds that requests have waited for engines that hold as much of the prompt as any
    (`routing.demand`)."""
    displaced_share: float = 0.0
    """How much must be eventually be computed again for each token that is computed again (`routing.prefix_index`)."""
    engines_in_all: int = 0
    """How many may serve it, of which these are worth scoring."""
    holds_adapter: Sequence[bool] = ()
    """Which engines used the request's adapter recently; empty if the model is not an adapter."""
    prompts: Sequence[PromptLengths] = ()
    """For which prompts each was put up; empty where all are for any."""
    spill_ranks: Sequence[int] = ()
    """The rank of each: lower ones are used first; empty where all have the same."""
    distances_s: Sequence[float] = ()
    """Seconds of a round trip to each; empty where none is far."""
    spill_share: float = 0.0
    """Share of the model's requests that leave the lowest rank; 0 where all ranks are the same."""
    prefillers: Sequence[Engine | None] = ()
    """The engine that prefills for each, where another does; empty where none of them is a pair. A pair is listed under
    its decode engine, with the prefill of the other: cached tokens, work, own and queued seconds, and the hand-over
    among the overhead."""
    prefill_shares: Sequence[float] = ()
    """The decayed share of its time that prefill takes of each engine; empty where another engine could prefill for
    none of them."""
    stalls_s: Sequence[float] = ()
    """Seconds of prefill by which the sequences of each were stalled, or soon will be, by the mean; empty where neither
    they nor this prompt make a stream late."""
    token_excess_s: Sequence[float] = ()
    """Extra seconds that each takes for a token of such a request, constrained by a grammar or not; empty where none is
    known to."""
    lockstep_s: Sequence[float] = ()
    """Seconds that the first token waits for prefill of ranks that step together with each; empty, as the next three,
    where every engine steps alone."""
    stalled: Sequence[float] = ()
    """Sequences that each second of own prefill stalls, those of other ranks included."""
    slowed: Sequence[float] = ()
    """Sequences whose steps grow with one sequence more."""
    in_step: Sequence[float] = ()
    """Sequences of the busiest rank, which sets the pace of all."""
    draining_streams: Sequence[float] = ()
    """Streams that each still decodes after its role became prefill; empty where none does."""
    typical_answer_tokens: float = 0.0
    """The geometric mean of what answers have; 0 before any was seen."""
    answer_spread: float = PRIOR_SPREAD
    """The standard deviation of the logarithms of their tokens."""
    typical_prefill_s: float = 0.0
    typical_stream_s: float = 0.0
    """How long prompts and undisturbed answers take here (`routing.cost`), said where there are shares of prefill."""
    median_stream_s: float = 0.0
    """The same of the median answer."""
    lacks_kv_room: bool = False
    """Whether some engine may have no room for the request beside what runs there."""
    has_new_pods: bool = False
    """Whether a pod became ready within the last `NEW_POD_S`."""
    has_decode_engines: bool = False
    """Whether the role of some engine is `decode`."""
    burden_s: Sequence[float] = ()
    """Prefill on the very engine that decodes, where pairs make it another than own seconds."""

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
    """Seconds to add for each candidate; negative seconds speak for it. A scorer remembers nothing.

    A class may also declare `needs`, the name of a column of `Candidates`: the router skips the scorer in decisions
    where that column has its default. So a scorer of adapters costs nothing where no adapter is requested.
    """

    name: ClassVar[str]

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """One number per candidate, in order; an empty list where it has nothing to say of any of them."""
        ...


class NoEngineAdmissible(Exception):  # noqa: N818 - not an error
    """No engine may take a request now; later one may."""


class AdmissionGate(Protocol):
    """Which engines may be chosen now: called inside a decision, so that admission and routing see the same state."""

    stream_objective: StreamObjective | None
    """The objective of the response's tokens on the chosen engine; None if there is none."""

    def admits(self, candidates: Candidates, at: int) -> bool:
        """Whether the engine in a position may be chosen. Called for the best first, until one is admitted."""
        ...


MAX_SHOWN_CANDIDATES = 8
"""Enough to see the runners-up; a receipt of a thousand engines would cost more than the request."""


_NAME = attrgetter("name")


def engine_name(engine: Engine | None) -> str | None:
    """An engine's name, where there is one."""
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
        """Best first."""
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

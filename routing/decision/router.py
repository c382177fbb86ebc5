"""Puts a request on an engine: look up cached prefixes, score, choose and charge in one synchronous step.

Charges are direct calls in a fixed order: prefill side of a pair, ledger (and through it admission), prefix index,
prefix demand, affinity; observers are notified last. Reads no clock and draws no number: both are arguments, so every
decision can be replayed.

Updates of another replica arrive a few milliseconds late. Until then several routers see the same ledger; if among
equals each took the engine chosen longest ago, a burst would pile up on it. Each replica prefers its own share of the
ring of engines instead, and takes an engine outside it to be busier by this request's own prefill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from math import inf
from operator import add, attrgetter, mul, ne

from msgspec.structs import fields, replace

from routing.cache_lookup import cached_by_lookup
from routing.canary.rollout import CanaryReason, Division, Rollout
from routing.candidates import (
    NEW_POD_S,
    AdmissionGate,
    Candidates,
    NoEngineAdmissible,
    PlacementEstimate,
    RoutingDecision,
    Scorer,
    ScoreTable,
    estimate,
    predict,
)
from routing.cost import CostModel
from routing.decision.placement import Placement
from routing.eligible import MAX_FULLY_SCORED, EligibleEngines, shortlist
from routing.facts import Role
from routing.fleet import eligible_for
from routing.ledger import STEP_TOKENS
from routing.lockstep import step_columns
from routing.observers import Report, report_nowhere
from routing.pairing.pairing import CandidatePairs, Pairing, ScoredOptions
from routing.pairing.prefill_side import PrefillPlacement
from routing.prefix_index import PrefixIndex, cached_and_work, last_block_of_prefix
from routing.request import Request
from routing.state import RoutingState
from routing.stores import with_stores
from routing.tokens import PromptTokenEstimate

TIE_S, MAX_TIE_S = 0.001, 0.02
TIE_SHARE = 0.02
"""Candidates that differ by less than this, or than this share of the best, count as equal: predictions are not more
accurate. The difference is at most `MAX_TIE_S`: a larger one is noticed, however long the prompt takes."""

SESSION_SCORER = "session_affinity"
"""Without this scorer a routing ignores sessions, also among equal candidates, as round robin does."""

ReplicaPosition = tuple[int, int]
"""(rank of this replica, number of replicas)."""

SINGLE_REPLICA: ReplicaPosition = (0, 1)

LOAD_SCORERS = frozenset(
    {
        "prefill_time",
        "interference",
        "stream_stall",
        "hot_prefix_replication",
        "kv_headroom",
        "session_affinity",
        "lora_affinity",
        "slow_start",
        "prompt_length",
        "decode_role",
        "prefill_stall",
        "role_drain",
        "constrained_decoding",
        "spill",
    }
)
"""The scorers that, between engines with the same cached prefix, prefer the shorter queue. With any other all engines
of a fleet are scored, however many they are."""

LONG_PROMPT_TOKENS = 24_000.0
"""Prompts beyond it may stall streams for long by themselves."""

SETTLING_S = 60.0
"""A pod that is newer may be worth less than its empty queue says."""


class Router(RoutingState):
    """One per gateway process: the routing state, and the decisions that read and charge it."""

    def __init__(
        self,
        scorers: Sequence[Scorer],
        *,
        costs: CostModel | None = None,
        index: PrefixIndex | None = None,
        rollout: Rollout | None = None,
        default_gate: AdmissionGate | None = None,
        exact_sizes: bool = False,
        report: Report = report_nowhere,
    ) -> None:
        """`rollout` restricts pods on trial to their share of requests; None without a canary. `default_gate` decides
        what engines may take where no gate of admission does; None: everything.
        """
        super().__init__(costs=costs, index=index, exact_sizes=exact_sizes, report=report)
        self.scorers = tuple(scorers)
        defaults = {column.name: column.default for column in fields(Candidates)}
        needs = [getattr(scorer, "needs", "engines") for scorer in self.scorers]
        self._defaults = [defaults[need] for need in needs]
        """For each scorer, the default of the column that it needs, with which it is skipped. `engines` has none."""
        self._needed = attrgetter(*needs, "engines", "engines")
        """The columns in the same order, and two more: only of several attributes is a tuple made."""
        self._counts_seconds = {scorer.name for scorer in self.scorers} <= LOAD_SCORERS
        self.replica_position = SINGLE_REPLICA
        """This replica's position among those that share its engines."""
        self.rollout = rollout
        self._default_gate = default_gate
        self.pairing = Pairing(self.fleet)
        self.transfers = self.pairing.transfers

    def clear_slot(self, slot: int) -> None:
        super().clear_slot(slot)
        self.transfers.forget((slot,))

    # -- one decision -----------------------------------------------------------------------------------------------

    def place(
        self, request: Request, *, avoid: frozenset[str], now_s: float, draw: float, gate: AdmissionGate | None = None
    ) -> Placement:
        """Choose an engine, or a pair of engines, and charge it.

        `avoid` names pods that have failed this request; `draw` in [0, 1) breaks ties; `gate` decides which may be
        chosen. Raises `RequestRejected` where no engine may serve the model now, and `NoEngineAdmissible` where the
        gate admits none.
        """
        if gate is None:
            gate = self._default_gate
        division = None if self.rollout is None else self.rollout.divide(self.fleet, request, avoid)
        view = self._look(request, avoid if division is None else avoid | division.excluded, now_s)
        try:
            at = choose(view.scored, view.candidates, draw, self.replica_position, gate)
        except NoEngineAdmissible:
            if division is None or division.otherwise is None:
                raise
            view = self._look(request, avoid | division.otherwise, now_s)
            at = choose(view.scored, view.candidates, draw, self.replica_position, gate)
            division = replace(division, otherwise=None)
        candidates, pairs = view.candidates, view.pairs
        engine = candidates.engines[at]
        prefill = None if pairs is None or at < pairs.first else self._charge_prefill(request, pairs, at, now_s)
        self.costs.averages.observe_prefill(candidates.own_s[at])
        held = candidates.warm_tokens[at if pairs is None or prefill is None else pairs.singles[at - pairs.first]]
        charge = self.ledger.charge(
            engine.slot,
            prefill_tokens=candidates.prefill_work[at] if prefill is None else 0.0,
            prefill_s=candidates.own_s[at] if prefill is None else 0.0,
            kv_tokens=candidates.prompt_tokens - held + candidates.output_tokens,
            sequences=request.sequences,
            now_s=now_s,
            pledge=None if gate is None else gate.stream_objective,
            queues=prefill is None,
        )
        trace = self.index.insert(engine.slot, request.prompt)
        if prefill is None and candidates.prefix is not None and not trace.is_pending:
            self.prefix_demand.add(candidates.prefix, _missed_s(candidates, at), now_s)
        if request.session:
            self.sessions.put(request.session, engine.slot)
        if candidates.holds_adapter:
            self.adapters.put((request.model, engine.slot), engine.slot)
        if self.observers is not None:
            self.observers.placed(request, engine, charge)
        decision = RoutingDecision(candidates, view.scored, at)
        placement = Placement(self, request, engine, charge, trace, decision, prefill=prefill, fallback=view.fallback)
        if division is not None and division.reason is not None:
            placement.canary = self._count_canary(division, placement)
        return placement

    def _count_canary(self, division: Division, placement: Placement) -> CanaryReason | None:
        """Count a placed request against the canary's share, and return why it has its side."""
        assert self.rollout is not None  # noqa: S101 - it has made the division
        side = placement.prefill
        pods = (placement.engine.pod,) if side is None else (placement.engine.pod, side.engine.pod)
        is_admitted = division.reason is not CanaryReason.SHARE or division.otherwise is not None
        return self.rollout.placed(division, pods, is_admitted=is_admitted)

    def estimate(self, request: Request, *, avoid: frozenset[str], now_s: float) -> PlacementEstimate:
        """Estimate what `place` would choose now without a gate. Charges nothing. Raises `RequestRejected` likewise."""
        if self.rollout is not None:
            avoid |= self.rollout.divide(self.fleet, request, avoid).excluded
        view = self._look(request, avoid, now_s)
        return estimate(
            view.candidates, view.scored, choose(view.scored, view.candidates, 0.0, self.replica_position, None)
        )

    def _look(self, request: Request, avoid: frozenset[str], now_s: float) -> ScoredOptions:
        """All that may serve a request, scored."""
        eligible = eligible_for(self.fleet, request, avoid)
        pairs = eligible.has_prefillers and request.may_pair
        candidates = self._candidates(request, eligible, now_s, pairs=pairs)
        scored = self._score(request, candidates)
        if not pairs:
            return ScoredOptions(candidates, scored, None, eligible.fallback)
        return self.pairing.add_pairs(request, avoid, ScoredOptions(candidates, scored), self._weigh, self._score)

    def _candidates(self, request: Request, eligible: EligibleEngines, now_s: float, *, pairs: bool) -> Candidates:
        ledger, costs = self.ledger, self.costs
        walked = self.index.match(request.prompt, eligible.mask) if request.reads_cache else []
        engines_in_all = len(eligible.engines)
        if engines_in_all > MAX_FULLY_SCORED and self._may_shorten(request, eligible, now_s):
            queue_rank, session_at = eligible.select(ledger.queue_rank), self._session_at(request, eligible)
            eligible = eligible.narrowed_to(shortlist(eligible, walked, queue_rank, session_at))
            walked = [(mask & eligible.mask, size) for mask, size in walked if mask & eligible.mask]
        pick = eligible.select
        deepest = walked[-1][1] if walked else 0
        prefix = last_block_of_prefix(request.prompt, deepest) if deepest and walked[-1][0] != eligible.mask else None
        ruler = PromptTokenEstimate(self.counters[request.model], request.prompt, deepest, request.tenant)
        prompt_tokens = ruler.tokens(request.prompt.size)
        warm_tokens, work = cached_and_work(walked, eligible, ruler, prompt_tokens, costs.growth.per_token)
        seconds_per_token = pick(costs.seconds_per_token)
        if request.lookup is not None:
            prompt_tokens = float(request.lookup.prompt_tokens)
            warm_tokens, work = cached_by_lookup(
                request.lookup, eligible, warm_tokens, seconds_per_token, costs.growth.per_token
            )
        if self.stores.shares:
            warm_tokens, work = with_stores(self.stores.shares, eligible.slots, warm_tokens, work, prompt_tokens)
        excess_s = self.constrained_excess_s if request.is_constrained else self.plain_excess_s
        if now_s >= ledger.stale_from_s:
            ledger.forget_stale(now_s)
        kv_tokens, output_tokens = pick(ledger.all_kv_tokens), request.expected_output_tokens
        candidates = Candidates(
            engines=eligible.engines,
            engines_in_all=engines_in_all,
            now_s=now_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            warm_tokens=warm_tokens,
            prefill_work=work,
            own_s=list(map(mul, work, seconds_per_token)),
            ahead_s=ledger.queued_s(pick, now_s),
            running=pick(ledger.all_running),
            kv_tokens=kv_tokens,
            kv_capacity=eligible.kv_capacity,
            min_kv_capacity=eligible.min_kv_capacity,
            prefill_overhead_s=pick(costs.prefill_overhead_s),
            seconds_per_token=seconds_per_token,
            step_base_s=pick(costs.step_base_s),
            step_per_sequence_s=pick(costs.step_per_sequence_s),
            residence_s=pick(costs.residence_s),
            last_turn=pick(ledger.last_turn),
            ready_since_s=eligible.ready_since_s,
            newest_since_s=eligible.newest_since_s,
            open_steps=ledger.open_steps(eligible.position_of, now_s),
            prefix=prefix,
            waited_s=0.0 if prefix is None else self.prefix_demand.waited_s(prefix, now_s),
            displaced_share=self.index.reuse.share,
            session_at=self._session_at(request, eligible) if request.session or request.continues else None,
            holds_adapter=[self.adapters.get((request.model, slot)) is not None for slot in eligible.slots]
            if eligible.is_adapter
            else (),
            prompts=eligible.prompts,
            distances_s=eligible.distances_s,
            stalls_s=ledger.stalls_s(eligible.slots) if ledger.stalled or prompt_tokens > LONG_PROMPT_TOKENS else (),
            token_excess_s=[excess_s.get(slot, 0.0) for slot in eligible.slots] if excess_s else (),
            typical_answer_tokens=costs.averages.typical_answer_tokens,
            answer_spread=costs.averages.answer_spread,
            lacks_kv_room=max(kv_tokens) + (prompt_tokens + output_tokens) > eligible.min_kv_capacity,
            has_new_pods=now_s - eligible.newest_since_s < NEW_POD_S,
            has_decode_engines=eligible.has_decode_engines,
        )
        if eligible.spill_ranks:
            candidates.spill_ranks = eligible.spill_ranks
            candidates.spill_share = self.spill_shares.get(request.model, 0.0)
        if pairs:
            candidates.prefill_shares = ledger.prefill_shares(pick, now_s)
            candidates.typical_prefill_s = costs.averages.prefill_s
            candidates.typical_stream_s = costs.averages.stream_s
            candidates.median_stream_s = costs.averages.median_stream_s
        if ledger.step_groups:
            self._couple_columns(candidates, eligible.slots, now_s)
        return candidates

    def _couple_columns(self, candidates: Candidates, slots: Sequence[int], now_s: float) -> None:
        """Let the candidates show what engines that step together cost each other."""
        ledger = self.ledger
        columns = step_columns(
            ledger.step_groups,
            slots,
            ahead_s=candidates.ahead_s,
            own_s=candidates.own_s,
            full_step_s=[STEP_TOKENS * pace_s for pace_s in candidates.seconds_per_token],
            queued_s=ledger.group_queues_s(now_s),
            running=ledger.all_running,
        )
        candidates.lockstep_s, candidates.stalled = columns.lockstep_s, columns.stalled
        candidates.slowed, candidates.in_step = columns.slowed, columns.in_step

    def _may_shorten(self, request: Request, eligible: EligibleEngines, now_s: float) -> bool:
        """Whether the shortest queues and longest cached prefixes suffice: not where other terms decide."""
        return (
            self._counts_seconds
            and request.lookup is None
            and not eligible.is_adapter
            and not eligible.spill_ranks
            and not eligible.distances_s
            and not self.ledger.step_groups
            and not (request.is_constrained and self.constrained_excess_s)
            and now_s - eligible.newest_since_s > SETTLING_S
        )

    def _score(self, request: Request, candidates: Candidates) -> ScoreTable:
        names, terms = [], []
        for scorer in compress(self.scorers, map(ne, self._needed(candidates), self._defaults)):
            seconds = scorer.score(request, candidates)
            if seconds:
                names.append(scorer.name)
                terms.append(seconds)
        totals: Iterable[float] = terms[0] if terms else [0.0] * len(candidates.engines)
        for seconds in terms[1:]:
            totals = map(add, totals, seconds)
        return ScoreTable(tuple(names), tuple(terms), list(totals))

    def _session_at(self, request: Request, eligible: EligibleEngines) -> int | None:
        slot = None
        if request.continues:
            slot = self.responses.get(request.continues)
        elif request.session:
            slot = self.sessions.get(request.session)
        return None if slot is None else eligible.position_of.get(slot)

    def _weigh(self, request: Request, eligible: EligibleEngines, now_s: float) -> tuple[Candidates, ScoreTable]:
        """Return the prefill engines of pairs as candidates, and their scores."""
        candidates = self._candidates(request, eligible, now_s, pairs=True)
        handed_over = self.ledger.handed_over
        streams = [handed_over[one.slot] if one.role is Role.PREFILL else 0 for one in candidates.engines]
        if any(streams):
            candidates.draining_streams = streams
        return candidates, self._score(request, candidates)

    def _charge_prefill(self, request: Request, pairs: CandidatePairs, at: int, now_s: float) -> PrefillPlacement:
        """Put the first half of a request on its pair's prefill engine."""
        match, prefill_candidates = pairs.matches[at - pairs.first], pairs.prefill
        engine = prefill_candidates.engines[match.at]
        charge = self.ledger.charge(
            engine.slot,
            prefill_tokens=prefill_candidates.prefill_work[match.at],
            prefill_s=prefill_candidates.own_s[match.at],
            kv_tokens=prefill_candidates.prompt_tokens - prefill_candidates.warm_tokens[match.at] + 1,
            sequences=1,
            now_s=now_s,
        )
        trace = self.index.insert(engine.slot, request.prompt)
        if prefill_candidates.prefix is not None and not trace.is_pending:
            self.prefix_demand.add(prefill_candidates.prefix, _missed_s(prefill_candidates, match.at), now_s)
        # The session, and what was looked up of the prompt, belong to the decode engine.
        prefill_request = replace(request, session=None, lookup=None)
        if self.observers is not None:
            self.observers.placed(prefill_request, engine, charge)
        decode = pairs.decode[at - pairs.first].slot
        return PrefillPlacement(
            self,
            self.transfers,
            prefill_request,
            engine,
            charge,
            trace,
            predict(prefill_candidates, match.at),
            match.transfer,
            decode_slot=decode,
            placed_s=now_s,
        )


def _missed_s(candidates: Candidates, at: int) -> float:
    """Return how many seconds sooner the first token would come if all engines held the longest cached prefix; negative
    if the chosen engine has yet to compute it: the cost of that.
    """
    own_s, ahead_s = candidates.own_s, candidates.ahead_s
    min_s = min(own_s)
    if own_s[at] > min_s + TIE_S:
        return min_s - own_s[at]
    return ahead_s[at] - min(ahead_s)


def choose(
    scored: ScoreTable, candidates: Candidates, draw: float, position: ReplicaPosition, gate: AdmissionGate | None
) -> int:
    """Return the position of the best candidate that the gate admits. Raises `NoEngineAdmissible` where it admits none.

    Engines that other replicas may be choosing at this moment are penalised, but not where admission bounds what an
    engine takes: a worse engine costs more there than a rare collision.
    """
    if gate is not None and gate.stream_objective is not None:
        position = SINGLE_REPLICA
    totals = scored.totals if position[1] < 2 else penalised(scored.totals, candidates.own_s, position)
    uses_sessions = SESSION_SCORER in scored.names
    at = _best(totals, candidates, draw, position, uses_sessions=uses_sessions)
    if gate is None or gate.admits(candidates, at):
        return at
    return _best(_opened(totals, candidates, gate), candidates, draw, position, uses_sessions=uses_sessions)


def _best(
    totals: Sequence[float], candidates: Candidates, draw: float, position: ReplicaPosition, *, uses_sessions: bool
) -> int:
    """Return the position with the fewest seconds. Among equals: the engine of the session, where the routing uses
    sessions; otherwise the engine of this replica's share that was chosen longest ago, so that uncached prompts spread.
    """
    last_turn, session_at = candidates.last_turn, candidates.session_at if uses_sessions else None
    minimum = min(totals)
    bound = minimum + min(max(TIE_S, TIE_SHARE * minimum), MAX_TIE_S)
    if session_at is not None and totals[session_at] <= bound:
        return session_at
    if len([total for total in totals if total <= bound]) == 1:
        return totals.index(minimum)
    near: Sequence[int] = [place for place, total in enumerate(totals) if total <= bound]
    near = own_share(near, len(totals), position)
    oldest = min(last_turn[place] for place in near)
    equals = [place for place in near if last_turn[place] == oldest]
    return equals[int(draw * len(equals))]


def _opened(totals: Sequence[float], candidates: Candidates, gate: AdmissionGate) -> list[float]:
    """Return the same seconds, infinite where the gate does not admit; candidates that cannot win are not tested."""
    left, bound = [inf] * len(totals), inf
    for place in sorted(range(len(totals)), key=totals.__getitem__):
        if totals[place] > bound:
            break
        if gate.admits(candidates, place):
            left[place] = totals[place]
            bound = min(bound, totals[place] + MAX_TIE_S)
    if bound == inf:
        raise NoEngineAdmissible
    return left


def replica_position(own: int, others: Iterable[int]) -> ReplicaPosition:
    """Return this replica's position in the order of replica ids; no two replicas have the same."""
    names = sorted({own, *others})
    return names.index(own), len(names)


def own_share(places: Sequence[int], engines: int, position: ReplicaPosition) -> Sequence[int]:
    """Return the places, on a ring of `engines`, in this replica's share, or else in the next share with any."""
    rank, count = position
    if count < 2:
        return places
    share = max(1.0, engines / count)
    start = rank * engines / count
    steps = [(place - start) % engines // share for place in places]
    minimum = min(steps)
    return [place for place, step in zip(places, steps, strict=True) if step == minimum]


def penalised(totals: Sequence[float], own_s: Sequence[float], position: ReplicaPosition) -> Sequence[float]:
    """Return the seconds of each engine; outside this replica's share the request's own prefill is added once more.

    Another replica may be placing a similar request there, and its update would arrive too late. Where the prompt is
    cached its own prefill is short, so cached tokens still decide.
    """
    if position[1] < 2:
        return totals
    ours = set(own_share(range(len(totals)), len(totals), position))
    return [
        total if place in ours else total + own for place, (total, own) in enumerate(zip(totals, own_s, strict=True))
    ]

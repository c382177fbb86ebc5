"""Whether a request may be placed now, has to wait, or cannot meet its objective. Time and chance are arguments.

First token: overhead + queued before it + own prefill, of the very candidates that routing looks at, must fit what is
left of its TTFT objective. Tokens: an engine takes only so much prefill as the streams that decode there can bear
(`stall.py`). Higher tiers find as many engines open as they are expected to need. A request that could not start in
time behind all that waits at or above its rank is rejected on arrival, as in Mooncake's early rejection (Qin et al.,
FAST '25), but by what will be free when its turn has come. A rejected request that returns is recognised, and its
objective runs since it first came.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import count
from math import inf

from routing.candidates import Candidates, NoEngineAdmissible
from routing.cost import CostModel, prefill_work
from routing.decision.placement import Placement
from routing.decision.router import ReplicaPosition, Router
from routing.eligible import EligibleEngines
from routing.ledger import STEP_TOKENS, StreamObjective
from routing.pods import Engine
from routing.rejection import Reason, RequestRejected
from routing.request import Request, Usage
from routing.tokens import ExactCounter, TokenCounter
from tenancy.forecast import OutputLengthForecast
from tenancy.objective import LatencyObjective, Tier, UnattainableAction
from tenancy.peers import Peers, admitted_as
from tenancy.queue import IDLE, ModelQueue, TierQueue, WaitingRequest, open_within_s, weighted_tokens
from tenancy.share import UNLINKED_LOWER_PART, BudgetShare
from tenancy.stall import DecodeStalls
from tenancy.tenants import Caller

RETURNING_MEMORY_S = 120.0
"""No client in wide use waits longer before it comes again."""

MAX_RETURNING = 1 << 16

RequestFingerprint = tuple[str | None, str, int, int]
"""What identifies a returning request: tenant, model, and its prompt's last block and size."""


def request_fingerprint(request: Request, tenant: str | None) -> RequestFingerprint | None:
    """None for a prompt too short to be recognised."""
    prompt = request.prompt
    return (tenant, request.model, prompt.blocks[-1], prompt.size) if prompt.blocks else None


class RejectedRequests:
    """Requests rejected within the last two minutes, and when each first arrived."""

    def __init__(self) -> None:
        self.arrivals: OrderedDict[RequestFingerprint, float] = OrderedDict()
        """When each first arrived, the one rejected longest ago first."""

    def first_s(self, face: RequestFingerprint | None, now_s: float) -> float:
        """When a request came first: now, where it is not known."""
        return now_s if face is None else self.arrivals.get(face, now_s)

    def rejected(self, face: RequestFingerprint | None, came_s: float, now_s: float) -> None:
        """Remember a rejected request: it may return."""
        first_s = self.arrivals
        while first_s and (len(first_s) >= MAX_RETURNING or next(iter(first_s.values())) < now_s - RETURNING_MEMORY_S):
            first_s.popitem(last=False)
        if face is not None:
            first_s.setdefault(face, came_s)

    def served(self, face: RequestFingerprint | None) -> None:
        """It was served: an equal request that arrives from now on is a new one."""
        if face is not None:
            self.arrivals.pop(face, None)


MAX_TRANSIT_SHARE = 0.1
"""Share of its TTFT taken to be lost before a request asks to be placed: it is read, and may wait for its
accounts. A prompt that only just fits is then served late, not refused on idle engines.
"""

MIN_OUTPUT_QUANTILE = 0.01
"""Answers that are shorter than a request is counted on to be."""

DEFAULT_PREFILL_SHARE = 0.5
"""Of an engine's time, where nothing has been seen of what a tier gets."""

MAX_WAITING = 4_096
MAX_WAITING_BYTES = 512 << 20
"""Bytes of prompts: the bodies of waiting requests are kept."""

CLIENT_ATTEMPTS = 3
"""How often the usual client asks before it gives up. Each coming gets its part of the time that a request may wait, so
a request let in last is in time for one that has waited since the first, even if it is not recognised again.
"""

MAX_RETRY_AFTER_S = 60.0
"""Upper bound of Retry-After."""

SPEED_TTL_S = 1.0
"""How long the fastest engine's speed is cached: learned paces change slowly."""

SHARE_TTL_S = 1.0
"""Between two looks at which tiers have demand, where a share of each engine is kept to."""

JITTER = 0.25
"""Retry-After is shortened by up to this share at random, so that rejected clients do not return together."""


class AdmissionFilter:
    """Decides which candidates of one decision may take one waiting request now."""

    __slots__ = ("_candidates", "_claims", "_left_s", "_now_s", "_stalls", "_waiter", "stream_objective")

    def __init__(self, admission: Admission, waiter: WaitingRequest, now_s: float) -> None:
        objective = waiter.objective
        self._stalls = admission.stalls
        self._waiter = waiter
        self._now_s = now_s
        left_s = waiter.arrived_s + objective.ttft_s - now_s
        # It is late whatever happens: now or never.
        self._left_s = left_s if left_s >= 0 and not waiter.is_unattainable else inf
        self._candidates: Candidates | None = None
        self._claims: dict[str, bool] = {}
        sure = admission.forecast.tokens(waiter.tenant, waiter.request.model, MIN_OUTPUT_QUANTILE)
        self.stream_objective: StreamObjective | None = StreamObjective(
            objective.tpot_s, sure, None if admission.peers is None else admitted_as(waiter)
        )

    def admits(self, candidates: Candidates, at: int) -> bool:
        """Whether an engine may take it: in time, within its KV, past higher tiers, and as far as who decodes there can
        bear it.
        """
        self._candidates = candidates
        waiter, own_s, ahead_s = self._waiter, candidates.own_s[at], candidates.ahead_s[at]
        if self._stalls.share is not None:
            ahead_s /= self._stalls.share.share
        # The engine's own queue is outside our order: at most what the engine takes into one step.
        if ahead_s > STEP_TOKENS * candidates.seconds_per_token[at]:
            return False
        if candidates.lockstep_s and not self._fits_group(candidates, at, ahead_s):
            return False
        if (
            candidates.prefill_overhead_s[at] + ahead_s + own_s * (1 - waiter.objective.ttft_uncached_factor)
            > self._left_s
        ):
            return False
        held = candidates.kv_tokens[at]
        if held > 0 and held + (candidates.prompt_tokens + waiter.answer_tokens) > candidates.kv_capacity[at]:
            return False
        if ahead_s + own_s > waiter.queue.tightest_s and self._is_claimed(candidates, ahead_s, ahead_s + own_s):
            return False
        prefill = candidates.prefillers[at] if candidates.prefillers else None
        burden_s = candidates.burden_s[at] if candidates.burden_s else own_s
        return self._is_borne(candidates.engines[at], burden_s) and (prefill is None or self._is_borne(prefill, own_s))

    def _fits_group(self, candidates: Candidates, at: int, ahead_s: float) -> bool:
        """Whether the first token comes in time in the steps of other ranks, and the streams there can bear it."""
        own_s = candidates.own_s[at]
        wait_s = candidates.prefill_overhead_s[at] + ahead_s + candidates.lockstep_s[at]
        if wait_s + own_s * (1 - self._waiter.objective.ttft_uncached_factor) > self._left_s:
            return False
        burden_s = candidates.burden_s[at] if candidates.burden_s else own_s
        return self._stalls.is_borne_beside(candidates.engines[at].slot, burden_s, self._now_s)

    def min_ttft_s(self) -> tuple[float, float]:
        """The least seconds to a first token that a candidate of the last decision would need if it were idle, and what
        of them exceeds the objective's allowance for a cold prompt. Zeros without a decision.
        """
        candidates, per_cold = self._candidates, self._waiter.objective.ttft_uncached_factor
        if candidates is None:
            return 0.0, 0.0
        pairs = list(zip(candidates.prefill_overhead_s, candidates.own_s, strict=True))
        return min(fixed + own for fixed, own in pairs), min(fixed + own * (1 - per_cold) for fixed, own in pairs)

    def _is_borne(self, engine: Engine, prefill_s: float) -> bool:
        """Whether the streams that decode on an engine tolerate this much prefill: on both engines of a pair."""
        stalls, slot = self._stalls, engine.slot
        if stalls.share is not None and not stalls.has_share(slot, self._waiter.objective.tier.priority, self._now_s):
            return False
        return prefill_s <= stalls.room_s.get(slot, inf) or prefill_s <= stalls.room_now_s(slot, self._now_s)

    def _is_claimed(self, candidates: Candidates, before_s: float, after_s: float) -> bool:
        """Whether a higher tier needs an engine open that would no longer be. A tier below its floor ignores
        that.
        """
        waiter, tier = self._waiter, self._waiter.objective.tier
        is_late = waiter.start_by_s < self._now_s
        if waiter.tier_queue.credit_s > 0 and not is_late:
            return False
        for line in waiter.queue.tier_queues.values():
            if before_s <= open_within_s(line.tier) < after_s and (is_late or line.tier.priority > tier.priority):
                claims = self._claims.get(line.tier.name)
                if claims is None:
                    claims = self._claims[line.tier.name] = line.claims(candidates.ahead_s, self._now_s)
                if claims:
                    return True
        return False


class ModelCapacity:
    """Where one model's requests go while the fleet is unchanged: the engines, and the queue before them."""

    __slots__ = ("_eligible", "counter", "engines", "overhead_s", "queue", "refresh_at_s", "seconds_per_token")

    def __init__(self, queue: ModelQueue, eligible: EligibleEngines, counter: TokenCounter | ExactCounter) -> None:
        self.queue = queue
        self.counter = counter
        self.engines = len(eligible.engines)
        self.overhead_s = self.seconds_per_token = 0.0
        """Of the fastest engine."""
        self.refresh_at_s = -inf
        self._eligible = eligible

    def refresh(self, costs: CostModel, now_s: float) -> None:
        """See how fast engines are."""
        pick = self._eligible.select
        self.overhead_s = min(pick(costs.prefill_overhead_s), default=0.0)
        self.seconds_per_token = min(pick(costs.seconds_per_token), default=0.0)
        self.refresh_at_s = now_s + SPEED_TTL_S


def _hopeless(waiter: WaitingRequest, predicted_s: float) -> RequestRejected:
    """Return the rejection of a request whose objective no engine, idle or not, could meet."""
    tier, objective_s = waiter.objective.tier, waiter.objective.ttft_objective_s(waiter.own_s)
    message = (
        f"The predicted TTFT on an idle engine is {predicted_s:.3g} s; tier `{tier.name}` allows "
        f"{objective_s:.3g} s. Shorten the prompt or use a tier with a longer TTFT objective."
    )
    return RequestRejected(
        Reason.OVERLOADED, message, hopeless=True, predicted_ttft_s=predicted_s, slo_ttft_s=objective_s
    )


class Admission:
    """One per router."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.forecast = OutputLengthForecast()
        self.stalls = DecodeStalls(router.ledger, router.costs)
        self.tiers: Mapping[str, Tier] = {}
        """Tiers of the policy: reserved room is kept for a tier before its first request."""
        self.queues: dict[str, ModelQueue] = {}
        """By group of engines: named by the first of the models that they serve, and the regions asked for."""
        self.returning = RejectedRequests()
        self.peers: Peers | None = None
        """None while this gateway is alone."""
        self.unlinked_part = 1.0
        """This gateway's part of each engine, and its peers', beside gateways that send them nothing."""
        self._renew_share_at_s = inf
        self._numbers = count()
        self._grounds: dict[tuple[str, frozenset[str] | None], ModelCapacity] = {}
        self._fleet_version = -1
        router.ledger.attach(self.stalls)

    def set_tiers(self, tiers: Mapping[str, Tier]) -> None:
        """Go by the tiers of another policy from now on. No engine is kept for those that it has no more."""
        before, self.tiers = self.tiers, tiers
        for queue in self.queues.values():
            for name, line in queue.tier_queues.items():
                if name in before or name in tiers:
                    line.is_removed = name not in tiers

    def share_engines(self, gateways: int) -> None:
        """Keep to an equal share of each engine, as one of so many gateways that send each other nothing."""
        self.unlinked_part, self._renew_share_at_s = 1 / gateways, inf if gateways == 1 else -inf

    def unlinked_share(self, now_s: float) -> BudgetShare | None:
        """Return the share of this gateway and its peers beside gateways that send them nothing; None without any."""
        if self.unlinked_part == 1.0:
            return None
        lines = [line for queue in self.queues.values() for line in queue.tier_queues.values()]
        live = [line.tier for line in lines if line.demand.engines(now_s) > IDLE]
        tpot_s = min((tier.tpot_s for tier in live), default=inf)
        priorities = sorted({tier.priority for tier in live}, reverse=True)
        return BudgetShare(self.unlinked_part, tpot_s, priorities, now_s, lower_part=UNLINKED_LOWER_PART)

    def _renew_share(self, now_s: float) -> None:
        """Go by the tiers that have demand now. A share that is kept while peers are missing is not touched."""
        self._renew_share_at_s = now_s + SHARE_TTL_S
        share = self.unlinked_share(now_s)
        if share is not None and (self.peers is None or not self.peers.misses_any):
            self.stalls.keep_to(share, now_s)

    @property
    def engine_count(self) -> int:
        """How many engines there are."""
        return self._router.fleet.slot_count

    @property
    def replica_position(self) -> ReplicaPosition:
        """This gateway's place among those that share its engines, and how many they are."""
        return self._router.replica_position

    def arrive(
        self,
        request: Request,
        caller: Caller,
        objective: LatencyObjective,
        *,
        came_s: float,
        now_s: float,
        draw: float,
        late_by_s: float | None = None,
        was_placed: bool = True,
    ) -> WaitingRequest:
        """One that asks to be placed. Raises `RequestRejected` where it could not be served in time.

        `late_by_s`: until then it is served late rather than rejected, because it had been placed and has lost its pod,
        or, with `was_placed` False, has waited for its model's first pod: then its tenant pays for its prompt.
        """
        if self.peers is not None:
            self.peers.refresh(now_s)
        waiter = self._waiter(
            request, caller, objective, came_s, now_s, late_by_s, was_placed=late_by_s is not None and was_placed
        )
        queue, line = waiter.queue, waiter.tier_queue
        line.demand.add(waiter.own_s, now_s)
        if now_s >= self._renew_share_at_s:
            self._renew_share(now_s)
        if queue.waiting or queue.has_peers_waiting:
            self._check(waiter, queue, line, now_s, draw)
        line.fair_share.enter(waiter.tenant)
        return waiter

    def place(self, waiter: WaitingRequest, avoid: frozenset[str], *, now_s: float, draw: float) -> Placement:
        """Put it on an engine. Raises `NoEngineAdmissible`, or `RequestRejected` as the router does, or where an idle
        engine could not meet the objective either and the tier rejects that.
        """
        tenant, gate = waiter.caller.tenant, AdmissionFilter(self, waiter, now_s)
        try:
            placement = self._router.place(waiter.request, avoid=avoid, now_s=now_s, draw=draw, gate=gate)
        except NoEngineAdmissible:
            if not self._gives_up(waiter, gate, now_s):
                raise
            gate = AdmissionFilter(self, waiter, now_s)
            placement = self._router.place(waiter.request, avoid=avoid, now_s=now_s, draw=draw, gate=gate)
        waiter.queue.serve(waiter.tier_queue, waiter, now_s)
        predicted = placement.predicted
        # Its tenant has paid for the prompt of one that has lost its pod.
        cold_tokens = 0.0 if waiter.was_placed else predicted.prompt_tokens - predicted.cached_tokens
        waiter.charged = weighted_tokens(cold_tokens, waiter.answer_tokens)
        waiter.tier_queue.fair_share.serve(tenant.name, waiter.charged, tenant.weight)
        if self.returning.arrivals:
            self.returning.served(request_fingerprint(waiter.request, tenant.name))
        return placement

    def _gives_up(self, waiter: WaitingRequest, gate: AdmissionFilter, now_s: float) -> bool:
        """Whether a request that no engine may take now is no longer held to its first-token objective, because idle
        engines could not meet it either. Raises `RequestRejected` where its tier rejects such requests.
        """
        objective = waiter.objective
        if waiter.is_unattainable or objective.ttft_s == inf:
            return False
        needed_s, beyond_cold_s = gate.min_ttft_s()
        if beyond_cold_s <= waiter.headroom_s:
            return False
        is_rejected = objective.tier.on_unattainable is UnattainableAction.REJECT and not waiter.was_placed
        if is_rejected and beyond_cold_s > objective.ttft_s:
            raise _hopeless(waiter, now_s - waiter.arrived_s + needed_s)
        waiter.is_unattainable = True
        if not waiter.was_placed:
            waiter.tier_queue.postpone(waiter, now_s)
        return True

    def settle(self, waiter: WaitingRequest, placement: Placement, usage: Usage | None, now_s: float) -> None:
        """Settle a request about to be released. `usage` is None if the engine has not answered in full."""
        line, expected = waiter.tier_queue, waiter.charged
        if usage is None:
            was_served = placement.first_token_s is not None
            had = expected if was_served else 0.0
            if placement.was_left and not placement.is_untimed:
                had = self._had_by(waiter, placement, now_s)
            line.fair_share.serve(waiter.tenant, had - expected, waiter.weight)
            return
        cold_tokens = 0 if waiter.was_placed else usage.prompt_tokens - (usage.cached_tokens or 0)
        real = weighted_tokens(cold_tokens, usage.completion_tokens)
        line.fair_share.serve(waiter.tenant, real - expected, waiter.weight)
        each = usage.completion_tokens // waiter.request.sequences
        if waiter.was_placed:  # Perhaps only the rest of an answer: it shows neither its length nor its pace.
            return
        self.forecast.observe(waiter.tenant, waiter.request.model, each)
        if (
            placement.is_untimed
            or self._router.peers_missing_s is not None
            or placement.placed_s < self._router.peers_found_s
        ):
            return
        ledger = self._router.ledger
        running = (placement.predicted.running + ledger.in_step(placement.engine.slot, ledger.all_running)) / 2
        self.stalls.learn(placement.charge, running, each, now_s)

    def _had_by(self, waiter: WaitingRequest, placement: Placement, now_s: float) -> float:
        """Return what a request has had when its client leaves, in weighted tokens: the part of its prompt for which
        there was time, and the tokens for which there was time at the pace of its engine.
        """
        predicted, request, first_s = placement.predicted, waiter.request, placement.first_token_s
        cold_tokens = 0.0 if waiter.was_placed else predicted.prompt_tokens - predicted.cached_tokens
        if first_s is None:
            left_s, own_s = placement.placed_s + predicted.ttft_s - now_s, predicted.own_prefill_s
            done = 1 - left_s / own_s if own_s > 0 else float(left_s <= 0)
            return weighted_tokens(cold_tokens * min(max(done, 0.0), 1.0), 0.0)
        tokens = (now_s - first_s) / self.stalls.step_s(placement.engine.slot)
        if request.max_tokens is not None:
            tokens = min(tokens, request.max_tokens)
        return weighted_tokens(cold_tokens, tokens * request.sequences)

    def leave(self, waiter: WaitingRequest) -> None:
        """It has ended, or has gone. Safe to call again."""
        if waiter.is_over:
            return
        waiter.is_over = True
        waiter.tier_queue.fair_share.leave(waiter.tenant)

    def overload_rejection(self, waiter: WaitingRequest, now_s: float, late_s: float, draw: float) -> RequestRejected:
        """That its objective cannot be kept, and when it might be."""
        face = request_fingerprint(waiter.request, waiter.tenant)
        self.returning.rejected(face, waiter.arrived_s, now_s)
        if self.peers is not None and face is not None:
            self.peers.publish_rejected(face, waiter.arrived_s, now_s)
        patience_s = min(max(waiter.start_by_s - waiter.arrived_s, 0.0), MAX_RETRY_AFTER_S)
        after_s = min(max(late_s, patience_s / CLIENT_ATTEMPTS), patience_s) * (1 - JITTER * draw)
        message = (
            f"The latency objective of tier `{waiter.objective.tier.name}` cannot be met now: the fleet is overloaded."
        )
        wait_s = max(0.0, late_s + waiter.start_by_s - now_s)
        return RequestRejected(
            Reason.OVERLOADED,
            message,
            retry_after_s=after_s,
            predicted_ttft_s=now_s - waiter.arrived_s + wait_s + waiter.idle_ttft_s,
            slo_ttft_s=waiter.objective.ttft_objective_s(waiter.own_s),
        )

    def _ground(self, request: Request) -> ModelCapacity:
        """Models that are served by the same engines, adapters say, wait in the same queue."""
        fleet, model, regions = self._router.fleet, request.model, request.regions
        if fleet.version != self._fleet_version:
            self._grounds.clear()
            self._fleet_version = fleet.version
        ground = self._grounds.get((model, regions))
        if ground is None:
            group = min((min(pod.models) for pod in fleet.pods if model in pod.models), default=model)
            name = " ".join([group, *sorted(regions or ())])
            queue = self.queues.get(name)
            if queue is None:
                queue = self.queues[name] = ModelQueue(name)
            eligible, counter = fleet.eligible(model, regions), self._router.counters[model]
            ground = self._grounds[model, regions] = ModelCapacity(queue, eligible, counter)
        return ground

    def _line(self, queue: ModelQueue, tier: Tier, engines: int, now_s: float) -> TierQueue:
        line = queue.tier_queues.get(tier.name)
        if line is None or line.tier is not tier:
            guess = DEFAULT_PREFILL_SHARE * max(engines, 1)  # None is ready where its first pod still starts.
            for other in self.tiers.values():
                queue.tier_queue(other, guess, now_s)
            line = queue.tier_queue(tier, guess, now_s)
        return line

    def _check(self, waiter: WaitingRequest, queue: ModelQueue, line: TierQueue, now_s: float, draw: float) -> None:
        late_s = now_s - waiter.start_by_s
        # Where no request goes before it, or its tenant has had less than its share, it will be the next.
        if not waiter.was_placed and queue.must_wait(waiter.objective.tier) and not line.is_below_fair_share(waiter):
            comings = 0 if waiter.has_waited else max(0, CLIENT_ATTEMPTS - 1 - waiter.request.retry_count)
            late_s += line.wait_s(waiter, now_s) + comings * (waiter.start_by_s - waiter.arrived_s) / CLIENT_ATTEMPTS
        if late_s > 0:
            raise self.overload_rejection(waiter, now_s, late_s, draw)
        if self.is_full_for(waiter) and queue.displaced_by(waiter) is None:
            raise self.full_rejection(waiter, now_s, draw)

    def is_full_for(self, waiter: WaitingRequest) -> bool:
        """Whether its queue has no room for a request that is to wait."""
        queue = waiter.queue
        return queue.waiting >= MAX_WAITING or queue.size + waiter.request.prompt.size > MAX_WAITING_BYTES

    def full_rejection(self, waiter: WaitingRequest, now_s: float, draw: float) -> RequestRejected:
        """That its queue has no room: neither beside higher tiers, nor beside tenants of its tier with less."""
        rejection = self.overload_rejection(waiter, now_s, waiter.queue.backlog_s, draw)
        return RequestRejected(Reason.QUEUE_FULL, "The admission queue is full.", retry_after_s=rejection.retry_after_s)

    def _waiter(
        self,
        request: Request,
        caller: Caller,
        objective: LatencyObjective,
        came_s: float,
        now_s: float,
        late_by_s: float | None,
        *,
        was_placed: bool,
    ) -> WaitingRequest:
        costs, tenant, ground = self._router.costs, caller.tenant.name, self._ground(request)
        if now_s >= ground.refresh_at_s:
            ground.refresh(costs, now_s)
        tokens = request.prompt.size / ground.counter.size_per_token_of(tenant)
        own_s = prefill_work(tokens, tokens, costs.growth.per_token) * ground.seconds_per_token
        if request.retry_count:
            face = request_fingerprint(request, tenant)
            came_s = self.returning.first_s(face, came_s)
            if self.peers is not None and face is not None:
                came_s = min(came_s, self.peers.first_s(face, came_s))
        headroom_s = objective.ttft_s - min(max(now_s - came_s, 0.0), MAX_TRANSIT_SHARE * objective.ttft_s)
        idle_ttft_s = own_s + ground.overhead_s
        leave_by_s = now_s + objective.max_queue_s if late_by_s is None else late_by_s
        start_by_s = min(came_s + objective.ttft_objective_s(own_s) - idle_ttft_s, leave_by_s)
        if idle_ttft_s - objective.ttft_uncached_factor * own_s > headroom_s:
            # Unless an engine holds part of it, no wait is short enough: its turn will show.
            start_by_s = leave_by_s
        due_s = start_by_s
        if late_by_s is not None:
            start_by_s, due_s = late_by_s, came_s
        each = self.forecast.mean(tenant, request.model)
        answer_tokens = request.sequences * (each if request.max_tokens is None else min(each, request.max_tokens))
        service = weighted_tokens(tokens, answer_tokens)
        cost_s = service * ground.seconds_per_token
        number = next(self._numbers)
        waiter = WaitingRequest(
            number,
            request,
            caller,
            objective,
            came_s,
            own_s,
            service,
            cost_s,
            start_by_s,
            leave_by_s,
            due_s,
            was_placed=was_placed,
            has_waited=late_by_s is not None and not was_placed,
            answer_tokens=answer_tokens,
        )
        waiter.headroom_s, waiter.idle_ttft_s = headroom_s, idle_ttft_s
        waiter.queue = ground.queue
        waiter.tier_queue = self._line(ground.queue, objective.tier, ground.engines, now_s)
        return waiter

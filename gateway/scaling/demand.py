"""Counts the demand for engines at one gateway: requests placed, answered and rejected. Exists only where it is on."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from math import exp, inf

from msgspec import Struct

from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.record import Outcome
from gateway.pipeline.request_context import RequestContext
from gateway.scaling.figures import (
    MAX_REJECTED,
    MAX_RESIDENCIES,
    MAX_TIERS,
    NO_SUMS,
    GatewayFigures,
    RejectedFigures,
    TierFigures,
)
from routing.affinity import hashed_id
from routing.blocks import Prompt
from routing.cost import RunningMean, prefill_work
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.fleet import Fleet
from routing.rejection import Reason
from routing.request import Request
from tenancy.objective import LatencyObjective

COUNTED = frozenset({Reason.OVERLOADED, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT, Reason.NO_POD_READY, Reason.POD_BUSY})
"""Rejections that more engines would have avoided. Those by a limit or a budget, or of a client's mistake, are not."""

MAX_OPEN = 1 << 17
"""Requests that are counted as running."""

MAX_REMEMBERED = 1 << 14
"""Rejected requests whose later placement is noticed."""

MAX_TENANTS = 4_096
"""Tenants whose admitted work is known."""

TENANT_MEMORY_S = 30.0

MIN_ANSWERS = 5.0
"""Answers of a tier after which their mean length is expected of the next."""

TierKey = tuple[str, str]
"""Model, as its pods' first base model, and tier."""


class ModelGroups:
    """Maps each model to the base model whose engines serve it, once per version of the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = -1
        self._groups: dict[str, str] = {}

    def of(self, model: str) -> str | None:
        """Return the base model's name; None for a name that no pod serves and no configuration names."""
        fleet = self._fleet
        if self._version != fleet.version:
            self._version, self._groups = fleet.version, {}
            for pod in fleet.pods:
                base = min(pod.models - pod.adapters, default=None)
                for served in pod.models if base is not None else ():
                    self._groups.setdefault(served, base or served)
        found = self._groups.get(model)
        return found if found is not None else model if model in fleet.configured_models else None


def fingerprint_of(tenant: str | None, model: str, prompt: Prompt) -> int:
    """Return what identifies a request that a client sends again: a hash of tenant, model, and its prompt's end."""
    last = prompt.blocks[-1] if prompt.blocks else 0
    return hashed_id(f"{tenant}\0{model}\0{last}\0{prompt.size}")


class TenantWork(Struct, gc=False):
    """What a tenant was admitted, as sums that decay."""

    requests: float = 0.0
    prefill_tokens: float = 0.0
    output_tokens: float = 0.0
    at_s: float = 0.0

    def add(self, requests: float, prefill_tokens: float, output_tokens: float, now_s: float) -> None:
        """Add work, after what has decayed since the last."""
        share = exp((self.at_s - now_s) / TENANT_MEMORY_S)
        self.requests = self.requests * share + requests
        self.prefill_tokens = self.prefill_tokens * share + prefill_tokens
        self.output_tokens = self.output_tokens * share + output_tokens
        self.at_s = now_s

    def per_s(self, now_s: float) -> tuple[float, float, float]:
        """Return the rates: requests, uncached prompt tokens and output tokens per second."""
        self.add(0.0, 0.0, 0.0, now_s)
        return tuple(  # type: ignore[return-value]
            each / TENANT_MEMORY_S for each in (self.requests, self.prefill_tokens, self.output_tokens)
        )


class _Open(Struct, gc=False):
    key: TierKey
    sequences: int
    engine: str
    slot: int
    running: float
    """Sequences beside it when it was placed."""
    prefilled_s: float
    """Prefill that its engine had been given by then, its own included."""


class DemandMeter:
    """The counts of one gateway process."""

    def __init__(self, router: Router, *, clock: Callable[[], float]) -> None:
        self.groups = ModelGroups(router.fleet)
        self._router = router
        self._clock = clock
        self._tiers: dict[TierKey, TierFigures] = {}
        self._answers: dict[TierKey, RunningMean] = {}
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._rejected: deque[tuple[float, RejectedFigures]] = deque(maxlen=MAX_REJECTED)
        self._remembered: OrderedDict[int, None] = OrderedDict()
        self._served: deque[int] = deque(maxlen=MAX_REJECTED)
        self._tenants: OrderedDict[str, TenantWork] = OrderedDict()

    def __repr__(self) -> str:
        return f"<DemandMeter of {len(self._tiers)} tiers, {len(self._open)} open>"

    def placed(self, request: Request, tenant: str | None, tier: str, placement: Placement) -> None:
        """Count a request that was placed on an engine: once for each model, however often it is placed."""
        key, opened = self._key(request.model, tier), self._open.get(request.id)
        if opened is not None and opened.key == key:
            return
        figures = self._figures(key)
        if key is None or figures is None:
            return
        if opened is not None:  # Another model of its cascade answers now.
            self._end(self._open.pop(request.id))
        predicted = placement.predicted
        cold_tokens = max(0.0, predicted.prompt_tokens - predicted.cached_tokens)
        # As the engines' speed is learned: long contexts take more time for each token.
        work_tokens = prefill_work(cold_tokens, predicted.prompt_tokens, self._router.costs.growth.per_token)
        figures.requests += 1
        figures.prefill_tokens += work_tokens
        figures.prefill_squares += work_tokens * work_tokens
        output_tokens = self.expected_output(key, request)
        figures.output_tokens += output_tokens
        figures.running += request.sequences
        if request.regions is not None:
            _add_resident(figures, request.regions, work_tokens, output_tokens)
        self._admit(tenant or "", cold_tokens, output_tokens)
        if len(self._open) >= MAX_OPEN:
            self._end(self._open.popitem(last=False)[1])
        engine = placement.engine
        prefilled_s = self._router.ledger.total_prefill_s[engine.slot]
        self._open[request.id] = _Open(key, request.sequences, engine.name, engine.slot, predicted.running, prefilled_s)
        if self._remembered:
            face = fingerprint_of(tenant, key[0], request.prompt)
            if self._remembered.pop(face, self) is None:
                self._served.append(face)

    def on_outcome(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        opened = self._open.pop(outcome.id, None)
        if opened is not None:
            self._end(opened)
            self._learn_step(opened, outcome)
        key = opened.key if opened is not None else self._key(outcome.model, outcome.tier)
        if outcome.coalesced_with is not None or key is None:
            return
        figures = self._figures(key)
        if figures is None:
            return
        usage = outcome.usage
        if usage is not None and outcome.reason is None:
            figures.answered += 1
            figures.context_tokens += usage.prompt_tokens + usage.completion_tokens / 2
            answers = self._answers.get(key)
            if answers is None:
                answers = self._answers[key] = RunningMean()
            answers.observe(usage.completion_tokens)
        if outcome.slo_met is not None:
            figures.finished += 1
            figures.met += outcome.slo_met
        if outcome.reason in COUNTED:
            self._reject(key, outcome)

    def _learn_step(self, opened: _Open, outcome: Outcome) -> None:
        """Learn what a decode step takes without prefill: what was given to the engine since has stalled the stream,
        but for what still waits there. Streams of pairs are learned where they end.
        """
        attempt = outcome.attempts[0] if len(outcome.attempts) == 1 else None
        if attempt is None or attempt.engine != opened.engine or attempt.prefill_engine is not None:
            return
        if outcome.usage is None or outcome.decode_s is None or outcome.reason is not None:
            return
        ledger, slot = self._router.ledger, opened.slot
        engine = self._router.fleet.engine(opened.engine)
        if engine is None or engine.slot != slot:
            return
        waiting_s = ledger.queued_s(lambda column: column[slot : slot + 1], self._clock())[0]
        self._router.decode_pace.observe(
            slot,
            (opened.running + ledger.all_running[slot]) / 2,
            outcome.usage.completion_tokens // opened.sequences - 1,
            outcome.decode_s,
            stalled_s=ledger.total_prefill_s[slot] - opened.prefilled_s - waiting_s,
        )

    def expected_output(self, key: TierKey, request: Request) -> float:
        """Return the output tokens that a request is expected to need, all sequences together."""
        answers = self._answers.get(key)
        if answers is None or answers.total_weight < MIN_ANSWERS or not request.expected_output_tokens:
            return float(request.expected_output_tokens)
        allowed = inf if request.max_tokens is None else request.max_tokens * request.sequences
        return min(answers.value, allowed)

    def take(
        self, queued: Mapping[TierKey, TierFigures], held: Mapping[str, int], tenants: Iterable[str] = ()
    ) -> GatewayFigures:
        """Return the figures of this moment, with what waits; rejections are returned once.

        `tenants`: those whose admitted work is included.
        """
        for key in queued:
            self._figures(key)
        tiers = []
        for key, figures in self._tiers.items():
            stock = queued.get(key)
            figures.queued_requests = stock.queued_requests if stock else 0.0
            figures.queued_prefill_tokens = stock.queued_prefill_tokens if stock else 0.0
            figures.queued_output_tokens = stock.queued_output_tokens if stock else 0.0
            figures.oldest_queued_s = stock.oldest_queued_s if stock else 0.0
            tiers.append(figures)
        now_s = self._clock()
        rejected = [
            RejectedFigures(
                each.fingerprint,
                each.tenant,
                each.tier,
                each.model,
                each.prefill_tokens,
                each.output_tokens,
                now_s - at_s,
                each.is_without_pod,
            )
            for at_s, each in self._rejected
        ]
        served = list(self._served)
        self._rejected.clear()
        self._served.clear()
        works = {name: self._tenants[name].per_s(now_s) for name in tenants if name in self._tenants}
        return GatewayFigures(tiers, dict(held), rejected, served, tenants=works)

    def remember(self, fingerprint: int) -> None:
        """Note a request that was rejected here or at a peer: its placement makes it count as served."""
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        self._remembered[fingerprint] = None

    def _admit(self, tenant: str, prefill_tokens: float, output_tokens: float) -> None:
        work = self._tenants.get(tenant)
        if work is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._tenants.popitem(last=False)
            work = self._tenants[tenant] = TenantWork()
        else:
            self._tenants.move_to_end(tenant)
        work.add(1.0, prefill_tokens, output_tokens, self._clock())

    def _reject(self, key: TierKey, outcome: Outcome) -> None:
        face = fingerprint_of(outcome.tenant, key[0], outcome.prompt)
        answers = self._answers.get(key)
        output = answers.value if answers is not None else 0.0
        is_without_pod = outcome.reason is Reason.NO_POD_READY
        # Bytes per token are learned per model by the router; four is near enough for work that was not served.
        tokens = outcome.prompt_bytes / 4
        entry = RejectedFigures(face, outcome.tenant or "", key[1], key[0], tokens, output, 0.0, is_without_pod)
        self._rejected.append((self._clock(), entry))
        self.remember(face)

    def _key(self, model: str, tier: str) -> TierKey | None:
        group = self.groups.of(model)
        return None if group is None else (group, tier)

    def _figures(self, key: TierKey | None) -> TierFigures | None:
        if key is None:
            return None
        found = self._tiers.get(key)
        if found is None and len(self._tiers) < MAX_TIERS:
            found = self._tiers[key] = TierFigures(*key)
        return found

    def _end(self, opened: _Open) -> None:
        figures = self._tiers[opened.key]
        figures.running = max(0.0, figures.running - opened.sequences)


def _add_resident(figures: TierFigures, regions: frozenset[str], prefill_tokens: float, output_tokens: float) -> None:
    """Count work that residency bounds; that of further sets of regions is not counted apart."""
    name = ",".join(sorted(regions))
    known = figures.resident.get(name)
    if known is not None or len(figures.resident) < MAX_RESIDENCIES:
        requests, prefill, output = known or NO_SUMS
        figures.resident[name] = requests + 1, prefill + prefill_tokens, output + output_tokens


class MeteredAdmissionQueue(AdmissionQueue):
    """An admission queue whose placements are counted: instead of the plain one where supply decisions are on."""

    meter: DemandMeter

    async def place(
        self,
        context: RequestContext,
        objective: LatencyObjective,
        avoid: frozenset[str],
        since_s: float,
        *,
        late_by_s: float | None = None,
    ) -> Placement:
        """Place a request, and count it."""
        placement = await super().place(context, objective, avoid, since_s, late_by_s=late_by_s)
        self.meter.placed(context.request, context.caller.tenant.name, objective.tier.name, placement)
        return placement

    def queued_figures(self) -> dict[TierKey, TierFigures]:
        """Return what waits now, by model and tier: for its turn, or for a pod."""
        found: dict[TierKey, TierFigures] = {}
        now_s, groups = self._clock(), self.meter.groups
        waiting = [
            (queued.context.request, queued.waiter.objective, queued.waiter.arrived_s)
            for queued in self._queued.values()
        ]
        if self.starts is not None:
            waiting += [(held.context.request, held.objective, held.since_s) for held in self.starts.held.values()]
        for request, objective, since_s in waiting:
            group = groups.of(request.model)
            if group is None:
                continue
            key = group, objective.tier.name
            figures = found.get(key)
            if figures is None:
                figures = found[key] = TierFigures(*key)
            tokens = request.prompt.size / self._router.counters[request.model].size_per_token
            figures.queued_requests += 1
            figures.queued_prefill_tokens += tokens
            figures.queued_output_tokens += self.meter.expected_output(key, request)
            figures.oldest_queued_s = max(figures.oldest_queued_s, now_s - since_s)
        return found

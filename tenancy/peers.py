"""What peers admit, hold back and reject, so that several gateways admit as one. Time is an argument.

Each gateway publishes, by queue and tier, its demand and what waits, and receives the same of its peers. What
waits at a peer counts in the order of the queue; what a peer has placed counts as service of its tier and tenant.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Protocol

from routing.affinity import hashed_id
from routing.ledger import AdmittedAs, Charge
from routing.replica_state import QueueUpdate, RejectedUpdate, SettledUpdate, StateUpdate, TenantWaiting, TierWaiting
from tenancy.forecast import OutputLengthForecast
from tenancy.objective import Tier
from tenancy.queue import IDLE, ModelQueue, TierQueue, WaitingRequest, weighted_tokens
from tenancy.share import BudgetShare, share_of_engines
from tenancy.stall import PEER_SAME_STEP_S, DecodeStalls

WAITING_TTL_S = 0.25
"""How long what waits at a peer counts after its last update: a peer with waiting requests sends more often."""

PUBLISH_S = 0.01
"""Between two updates of what waits, while the same tiers do."""

DEMAND_PUBLISH_S, MAX_UNPUBLISHED_S = 0.1, 1.0
"""Between two updates of demand while nothing waits: the first where it has changed by `CHANGED_SHARE`."""

CHANGED_SHARE, CHANGED_ENGINES = 0.05, 0.02
"""Of the demand of a tier: a smaller change, or one by fewer engines, makes no difference to shares."""

GRANTS_AT_ONCE = 3
"""Gateways that grant at the same time, on average: with more, engines are given what all others are giving them too;
with fewer, what engines can take is left for later."""

MAX_REJECTED = 1 << 16
REJECTED_TTL_S = 120.0

MAX_TENANTS = 64
"""Per tier, of those with waiting requests."""

MAX_TIERS = 256
"""Per peer: queues times tiers."""


def admitted_as(waiter: WaitingRequest) -> AdmittedAs:
    """As what a request is admitted."""
    return AdmittedAs(
        waiter.queue.name,
        waiter.objective.tier.name,
        waiter.tenant,
        waiter.weight,
        waiter.own_s,
        waiter.answer_tokens,
    )


class SharedQueues(Protocol):
    """What of admission is shared."""

    forecast: OutputLengthForecast
    queues: dict[str, ModelQueue]
    stalls: DecodeStalls
    tiers: Mapping[str, Tier]
    unlinked_part: float

    @property
    def engine_count(self) -> int:
        """How many engines there are."""
        ...

    @property
    def replica_position(self) -> tuple[int, int]:
        """This gateway's place among those that share its engines, and how many they are."""
        ...

    def unlinked_share(self, now_s: float) -> BudgetShare | None:
        """Return the share of this gateway and its peers beside gateways that send them nothing; None without any."""
        ...


class PeerWaiting:
    """What waits at one peer, as of its last update."""

    __slots__ = ("at_s", "tiers")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.tiers: tuple[TierWaiting, ...] = ()


class Peers:
    """The other gateways, as one gateway's admission counts them."""

    def __init__(self, admission: SharedQueues, publish: Callable[[StateUpdate], None]) -> None:
        admission.stalls.same_step_s = PEER_SAME_STEP_S
        self._admission = admission
        self._publish = publish
        self._waiting: dict[int, PeerWaiting] = {}
        self._lost: dict[int, tuple[TierWaiting, ...]] = {}
        """What missing peers that are gone had asked for."""
        self._silent_from_s = inf
        self._on_silence: Callable[[float], None] = lambda _: None
        self._missing: frozenset[int] = frozenset()
        self._own_demand: dict[tuple[str, str], float] = {}
        """By queue and tier: engines that arrivals here kept in prefill when the first peer was missed."""
        self._rejected: OrderedDict[int, float] = OrderedDict()
        self._published_waiting = 0
        self._published_demand: list[float] = []
        """Of all tiers in the order of the queues."""
        self._published_s = -inf
        self._is_changed = False
        self._expires_s = inf
        self._found_s = -inf
        """When the last missing peer was found: streams placed before say nothing of steps without stalls."""
        self._present: dict[int, tuple[TierQueue, AdmittedAs, float]] = {}
        """Requests of peers that count for their tenants, by number of their charge here: what they were charged."""

    # -- what this gateway publishes -----------------------------------------------------------------------------------

    def publish_waiting(self, now_s: float, *, is_requested: bool = False) -> None:
        """Publish what waits here: at once where a tier has begun or ceased to wait, otherwise now and then; where
        nothing waits, when demand has changed, and once a second. `is_requested`: now in any case.
        """
        lines = [(queue.name, line) for queue in self._admission.queues.values() for line in queue.tier_queues.values()]
        waiting = sum(1 << number for number, (_, line) in enumerate(lines) if line.waiting)
        since_s = inf if is_requested else now_s - self._published_s
        if waiting == self._published_waiting and since_s < (PUBLISH_S if waiting else DEMAND_PUBLISH_S / 2):
            return
        demand = [line.demand.engines(now_s) for _, line in lines]
        if not (waiting or self._published_waiting) and since_s < MAX_UNPUBLISHED_S and not self._has_changed(demand):
            return
        self._published_waiting, self._published_demand, self._published_s = waiting, demand, now_s
        self._publish(QueueUpdate(tuple([_shown(name, line, now_s) for name, line in lines[:MAX_TIERS]])))

    def _has_changed(self, demand: Sequence[float]) -> bool:
        """Return whether the demand of any tier is another than peers know."""
        known = self._published_demand
        return len(demand) != len(known) or any(
            abs(now - before) > max(CHANGED_ENGINES, CHANGED_SHARE * before)
            for now, before in zip(demand, known, strict=True)
        )

    def publish_rejected(self, face: object, arrived_s: float, now_s: float) -> None:
        """Publish that a request was rejected and may return elsewhere."""
        self._publish(RejectedUpdate(hashed_id(repr(face)), now_s - arrived_s))

    def first_s(self, face: object, came_s: float) -> float:
        """When a request came first to any peer; `came_s` where it is not known."""
        return self._rejected.get(hashed_id(repr(face)), came_s)

    # -- what peers publish --------------------------------------------------------------------------------------------

    def placed(self, charge: Charge, now_s: float) -> None:
        """A peer has charged a request to an engine."""
        report = charge.objective.admitted if charge.objective is not None else None
        if report is None:
            return
        queue = self._admission.queues.get(report.queue)
        line = queue.tier_queues.get(report.tier) if queue is not None else None
        if queue is None or line is None:
            return
        service = weighted_tokens(charge.prefill_tokens, report.answer_tokens)
        seconds_per_token = charge.prefill_s / charge.prefill_tokens if charge.prefill_tokens else 0.0
        line.fair_share.enter(report.tenant)
        line.fair_share.serve(report.tenant, service, report.weight)
        self._present[charge.number] = line, report, service
        queue.serve_at_peer(line, report.own_s, service * seconds_per_token, now_s)

    def settled(self, charge: Charge, model: str, update: SettledUpdate, now_s: float) -> None:
        """An engine has answered a peer's request in full."""
        line, report, charged = self._present.get(charge.number, (None, None, 0.0))
        if line is None or report is None or not update.prompt_tokens:
            return
        real = weighted_tokens(update.prompt_tokens - (update.cached_tokens or 0), update.completion_tokens)
        line.fair_share.serve(report.tenant, real - charged, report.weight)
        if model:
            tokens = update.completion_tokens // charge.sequences
            self._admission.forecast.observe(report.tenant, model, tokens)
            is_of_now = not self._missing and charge.charged_s >= self._found_s
            if is_of_now and update.decode_s is not None:  # Else its gateway knows that it teaches nothing.
                self._admission.stalls.learn(charge, update.running, tokens, now_s)

    def ended(self, charge: Charge, now_s: float) -> None:
        """A peer's request has left its engine."""
        line, report, _ = self._present.pop(charge.number, (None, None, 0.0))
        if line is not None and report is not None:
            line.fair_share.leave(report.tenant)

    def waits(self, replica_id: int, update: QueueUpdate, now_s: float) -> None:
        """What waits at a peer now."""
        peer = self._waiting.get(replica_id)
        if peer is None:
            peer = self._waiting[replica_id] = PeerWaiting()
        peer.at_s, peer.tiers = now_s, update.tiers[:MAX_TIERS]
        self._is_changed = True

    def rejected(self, update: RejectedUpdate, now_s: float) -> None:
        """A peer has rejected a request."""
        arrivals = self._rejected
        while arrivals and (len(arrivals) >= MAX_REJECTED or next(iter(arrivals.values())) < now_s - REJECTED_TTL_S):
            arrivals.popitem(last=False)
        arrivals.setdefault(update.fingerprint, now_s - update.age_s)

    def gone(self, replica_id: int, now_s: float) -> None:
        """A peer is gone, and what waited there with it."""
        peer = self._waiting.pop(replica_id, None)
        if peer is not None:
            self._is_changed = True
            self._lost[replica_id] = peer.tiers

    def received(self, silent_from_s: float, on_silence: Callable[[float], None]) -> None:
        """A peer has sent something: all of them are silent if this is not called again until then."""
        self._silent_from_s, self._on_silence = silent_from_s, on_silence

    def miss(self, replica_ids: Collection[int], since_s: float, now_s: float) -> None:
        """These peers are missing: until they are back this gateway, together with the peers that are present, keeps to
        its share of each engine. Shares follow the demand that all had published when the first was missed.
        """
        for replica_id in [each for each in self._lost if each not in replica_ids]:
            del self._lost[replica_id]
        stalls, missing = self._admission.stalls, frozenset(replica_ids)
        if missing == self._missing:
            return
        self._missing = missing
        if not missing:
            self._found_s, self._own_demand = now_s, {}
            share = self._admission.unlinked_share(now_s)
            if share is None:
                stalls.share = None
            else:
                stalls.keep_to(share, now_s)
            return
        if not self._own_demand:
            self._own_demand = {
                (queue.name, line.tier.name): line.demand.engines(now_s)
                for queue in self._admission.queues.values()
                for line in queue.tier_queues.values()
            }
        stalls.keep_to(self._share(since_s), since_s)

    @property
    def misses_any(self) -> bool:
        """Whether peers are missing."""
        return bool(self._missing)

    def _share(self, since_s: float) -> BudgetShare:
        """Return the share of this gateway and of the peers that are present."""
        lost = [*self._lost.values(), *(self._waiting[each].tiers for each in self._missing if each in self._waiting)]
        present = [peer.tiers for each, peer in self._waiting.items() if each not in self._missing]
        tiers = dict(self._admission.tiers)
        for queue in self._admission.queues.values():
            tiers.update((name, line.tier) for name, line in queue.tier_queues.items())
        here, all_of = dict(self._own_demand), dict(self._own_demand)
        for report in (*lost, *present):
            for each in report:
                key = each.queue, each.tier
                all_of[key] = all_of.get(key, 0.0) + each.engines
        for report in present:
            for each in report:
                here[each.queue, each.tier] = here.get((each.queue, each.tier), 0.0) + each.engines
        wanted = sorted(
            ((tiers[key[1]], here.get(key, 0.0), demand) for key, demand in all_of.items() if key[1] in tiers),
            key=lambda each: -each[0].priority,
        )
        even = (1 + len(present)) / (1 + len(present) + max(len(lost), len(self._missing)))
        share = share_of_engines(even, [each[1:] for each in wanted], self._admission.engine_count)
        share *= self._admission.unlinked_part
        live = [tier for tier, _, demand in wanted if demand > IDLE]
        tpot_s = min((tier.tpot_s for tier in live), default=inf)
        priorities = sorted({tier.priority for tier in live}, reverse=True)
        place, count = self._admission.replica_position
        return BudgetShare(share, tpot_s, priorities, since_s, (place + 1) / count)

    def refresh(self, now_s: float) -> None:
        """Have the queues count what peers have reported since the last call, and no longer what is too old."""
        if now_s >= self._silent_from_s:
            self._silent_from_s = inf
            self._on_silence(now_s)
        if self._is_changed or now_s >= self._expires_s:
            self._count(now_s)

    def may_grant(self, queue: ModelQueue, now_s: float, draw: float) -> bool:
        """Whether a waiting request may be granted now, by a draw in [0, 1): all gateways see at the same time that an
        engine can take more, and about `GRANTS_AT_ONCE` of those that wait take it, however many wait.
        """
        if len(self._waiting) < GRANTS_AT_ONCE:
            return True
        waiting = 1 + self._contenders(queue, now_s)
        return waiting <= GRANTS_AT_ONCE or draw * waiting < GRANTS_AT_ONCE

    def _contenders(self, queue: ModelQueue, now_s: float) -> int:
        """Peers that would grant from a queue what is granted from it here: of no lower a tier than waits here, or owed
        of its floor.
        """
        lines = queue.tier_queues
        highest = max((line.tier.priority for line in lines.values() if line.waiting), default=inf)
        rivals = {name for name, line in lines.items() if line.tier.priority >= highest or line.credit_s > 0}
        return sum(
            peer.at_s + WAITING_TTL_S > now_s
            and any(each.waiting and each.queue == queue.name and each.tier in rivals for each in peer.tiers)
            for peer in self._waiting.values()
        )

    def _count(self, now_s: float) -> None:
        self._is_changed, self._expires_s = False, inf
        sums: dict[str, _Sums] = {}
        for peer in self._waiting.values():
            is_fresh = peer.at_s + WAITING_TTL_S > now_s
            if is_fresh and any(each.waiting for each in peer.tiers):
                self._expires_s = min(self._expires_s, peer.at_s + WAITING_TTL_S)
            for each in peer.tiers:
                sums.setdefault(each.queue, _Sums()).add(each, is_fresh=is_fresh)
        for name, queue in self._admission.queues.items():
            found = sums.get(name) or _Sums()
            queue.set_peers(found.demand, found.waiting, found.work_s, found.service, now_s)


class _Sums:
    """What all peers ask for and hold back in one queue, by tier."""

    def __init__(self) -> None:
        self.demand: dict[str, float] = {}
        self.waiting: dict[str, int] = {}
        self.work_s: dict[str, dict[str | None, float]] = {}
        self.service: dict[str, dict[str | None, float]] = {}

    def add(self, report: TierWaiting, *, is_fresh: bool) -> None:
        self.demand[report.tier] = self.demand.get(report.tier, 0.0) + report.engines
        if not report.waiting or not is_fresh:
            return
        self.waiting[report.tier] = self.waiting.get(report.tier, 0) + report.waiting
        work_s, service = self.work_s.setdefault(report.tier, {}), self.service.setdefault(report.tier, {})
        for each in report.tenants:
            work_s[each.tenant] = work_s.get(each.tenant, 0.0) + each.work_s
            service[each.tenant] = service.get(each.tenant, 0.0) + each.service


def _shown(queue: str, line: TierQueue, now_s: float) -> TierWaiting:
    tenants = tuple([TenantWaiting(*each) for each in islice(line.waiting_tenants(), MAX_TENANTS)])
    return TierWaiting(queue, line.tier.name, line.demand.engines(now_s), line.waiting, tenants)

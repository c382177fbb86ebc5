"""The queue of one model's requests: order between tiers, fair shares inside a tier, and what tiers ask for and get.

Between tiers by priority, but that each has a floor: of all that is served while it waits, its reserved part is its own
first, which makes a trickle of the lowest. Inside a tier by virtual token counters with weights, as VTC (Sheng et al.,
OSDI '24) counts service: a tenant's counter is what it was served over its weight, the least goes first, and a tenant
that was idle starts at the least counter of those present. Inside a tenant by deadline. Independent of engines and
futures; time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, exp, inf, sqrt

from routing.request import Request
from tenancy.objective import LatencyObjective, Tier
from tenancy.tenants import Caller

DEMAND_MEMORY_S = 10.0
"""The length of a few responses: objectives in seconds require demand that follows load in seconds."""

MIN_OBSERVED_S = 2.0
"""What the first requests say is as if they had come in this time."""

MIN_RATE_MEMORY_S, MAX_RATE_MEMORY_S = 2.0, 30.0
"""Bounds of what a rate remembers: some requests at least, and no other time of the day."""

IDLE = 0.01
"""Engines kept busy by a tier that asks for next to nothing."""


class TierDemand:
    """The demand of one tier."""

    __slots__ = ("_at_s", "_born_s", "_demand_s", "of_peers")

    def __init__(self, now_s: float) -> None:
        self.of_peers = 0.0
        """Engines that arrivals at peers keep in prefill."""
        self._demand_s = 0.0
        self._at_s = self._born_s = now_s

    def add(self, prefill_s: float, now_s: float) -> None:
        self._demand_s = self._demand_s * exp((self._at_s - now_s) / DEMAND_MEMORY_S) + prefill_s
        self._at_s = now_s

    def engines(self, now_s: float) -> float:
        """How many engines it keeps in prefill, on average."""
        over_s = DEMAND_MEMORY_S * (1 - exp(-max(now_s - self._born_s, MIN_OBSERVED_S) / DEMAND_MEMORY_S))
        return self._demand_s * exp((self._at_s - now_s) / DEMAND_MEMORY_S) / over_s

    def wanted(self, now_s: float) -> int:
        """Engines that it wants to find open: its load and the root of it, the rule by which service desks are
        staffed for random arrivals (Halfin and Whitt, 1981).
        """
        busy = self.engines(now_s) + self.of_peers
        return ceil(busy + sqrt(busy)) if busy > IDLE else 0


class ServiceRate:
    """Service rate of a tier while it waits, from which follows how soon a request that waits now will be served.

    A wait of some seconds is predicted from the service of as many seconds.
    """

    __slots__ = ("_at_s", "_memory_s", "_over_s", "_served_s")

    def __init__(self, guess: float, memory_s: float, now_s: float) -> None:
        self._served_s, self._over_s, self._at_s = guess, 1.0, now_s
        self._memory_s = min(max(memory_s, MIN_RATE_MEMORY_S), MAX_RATE_MEMORY_S)

    def advance(self, now_s: float, *, is_waiting: bool) -> None:
        if is_waiting:
            fade = exp((self._at_s - now_s) / self._memory_s)
            self._served_s *= fade
            self._over_s = self._over_s * fade + now_s - self._at_s
        self._at_s = now_s

    def serve(self, prefill_s: float) -> None:
        self._served_s += prefill_s

    @property
    def per_s(self) -> float:
        return self._served_s / self._over_s


INPUT_PRICE, OUTPUT_PRICE = 1.0, 2.0
"""What a cold token and a generated one count, as in VTC."""


def weighted_tokens(cold_tokens: float, output_tokens: float) -> float:
    """Service in weighted tokens."""
    return INPUT_PRICE * cold_tokens + OUTPUT_PRICE * output_tokens


BYTES_PER_PLACE = 1 << 17
"""Bytes of prompts that count as one waiting request in the room that a tenant holds."""

SPARE = 64
"""Counters and entries of a heap beyond twice those that are needed, before the others are removed."""


class FairShare:
    """Counters of one tier's tenants. Bounded by the tenants with open requests."""

    def __init__(self) -> None:
        self._counters: dict[str | None, float] = {}
        """Those of tenants without open requests count as `_level` at least, and are removed now and then."""
        self._open: dict[str | None, int] = {}
        self._heap: list[tuple[float, int, str | None]] = []
        """A heap of the counters of tenants with open requests, as they were: none stands too high."""
        self._noted: dict[str | None, float] = {}
        """As what each of these counters stands there."""
        self._entries = 0
        """Entries ever made, so that they have an order."""
        self._level = 0.0
        """The least counter of the tenants that were last present."""

    def served(self, tenant: str | None) -> float:
        """What it has had, over its weight."""
        had = self._counters.get(tenant, self._level)
        return had if tenant in self._open else max(had, self._level)

    def min_of_others(self, tenant: str | None) -> float | None:
        """The least counter of the others that are here; None where there are none."""
        if tenant not in self._open:
            return self._min_open()
        return min((self._counters[other] for other in self._open if other != tenant), default=None)

    def enter(self, tenant: str | None) -> None:
        """One more request of a tenant waits or runs."""
        count = self._open.get(tenant, 0)
        if count == 0:
            lowest = self._min_open()
            self._level = self._level if lowest is None else lowest
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._level)
            self._note(tenant)
        self._open[tenant] = count + 1

    def leave(self, tenant: str | None) -> None:
        """One less. A tenant with none left is forgotten, unless it has had more than others."""
        count = self._open[tenant] - 1
        if count:
            self._open[tenant] = count
            return
        del self._open[tenant]
        lowest = self._min_open()
        if lowest is None:
            self._level = max(self._level, self._counters[tenant])
            self._counters.clear()
            return
        self._level = lowest
        if self._counters[tenant] <= lowest:
            del self._counters[tenant]
        if len(self._counters) > 2 * len(self._open) + SPARE:
            self._counters = {who: had for who, had in self._counters.items() if who in self._open or had > lowest}

    def serve(self, tenant: str | None, tokens: float, weight: float) -> None:
        """Add to a tenant's service what it was given beyond, or below, the expected."""
        if tenant in self._counters:
            self._counters[tenant] += tokens / weight
            if tokens < 0 and self._counters[tenant] < self._noted.get(tenant, -inf):
                self._note(tenant)

    def _note(self, tenant: str | None) -> None:
        """Enter a counter that is new, or lower than it stands there; one that has risen is found by `_min_open`."""
        self._entries += 1
        self._noted[tenant] = had = self._counters[tenant]
        heappush(self._heap, (had, self._entries, tenant))
        if len(self._heap) > 2 * len(self._open) + SPARE:
            self._noted = {who: self._counters[who] for who in (*self._open, tenant)}
            self._heap = [(had, number, who) for number, (who, had) in enumerate(self._noted.items())]
            heapify(self._heap)

    def _min_open(self) -> float | None:
        """The least counter of tenants with open requests; None where there are none."""
        heap = self._heap
        while heap:
            had, number, tenant = heap[0]
            if tenant not in self._open:
                heappop(heap)
                self._noted.pop(tenant, None)
            elif self._counters[tenant] > had:
                self._noted[tenant] = self._counters[tenant]
                heapreplace(heap, (self._counters[tenant], number, tenant))
            else:
                return self._counters[tenant]
        return None


MIN_FLOOR = 0.03
"""The floor of a tier that has reserved less: a waiting tier is never starved."""

MAX_CREDIT_S = 2.0
"""Service that a floor saves up at most, so that a tier that could not be served for a while does not burst."""


OPEN_S = 1.0
"""A tier with reserved engines but without a first-token objective finds one open where no more prefill is queued."""


def open_within_s(tier: Tier) -> float:
    """Return the queued prefill, in seconds, up to which an engine is open for a tier."""
    return OPEN_S if tier.guaranteed_share and tier.ttft_s == inf else tier.ttft_s


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """One request that asks to be placed."""

    number: int
    request: Request
    caller: Caller
    objective: LatencyObjective
    arrived_s: float
    """When its objective began to run: at its first arrival, if it was rejected and sent again."""
    own_s: float
    """Its own prefill, on an engine that holds nothing of it."""
    weighted_tokens: float
    """What it is expected to cost, answer included, in weighted tokens."""
    cost_s: float
    """The same as prefill of as many tokens."""
    start_by_s: float
    """When its prefill must begin for its objective to be met."""
    leave_by_s: float
    """When it has waited as long as it may."""
    due_s: float
    """By what it is ordered inside its tenant: `start_by_s`; where it had been placed before, when it came."""
    was_placed: bool = False
    """It has lost its pod: it is served late rather than refused, and before those of its tenant that are new."""
    has_waited: bool = False
    """It has waited for the first pod of its model: no further try of its client is allowed for."""
    answer_tokens: float = 0.0
    """Of all its answers together, on average."""
    charged: float = 0.0
    """Service that its tenant was charged when it was placed."""
    has_left: bool = False
    """Whether it has left the queue, or was never in it."""
    is_over: bool = False
    """Whether its tenant has one request less for it already."""
    is_queued: bool = False
    headroom_s: float = inf
    """Seconds of its first-token objective predicted to be left when it was queued for placement."""
    idle_ttft_s: float = 0.0
    """Seconds to its first token on an idle engine that holds nothing of it."""
    is_unattainable: bool = False
    """No engine that may serve it could meet its first-token objective, even an idle one: it is not held to it."""
    tenant: str | None = field(init=False)
    weight: float = field(init=False)
    """Of its tenant."""
    queue: ModelQueue = field(init=False, repr=False)
    tier_queue: TierQueue = field(init=False, repr=False)
    """Where it stands, or would."""

    def __post_init__(self) -> None:
        self.tenant, self.weight = self.caller.tenant.name, self.caller.tenant.weight


class TierQueue:
    """All that wait in one tier, with what the tier asks for and gets."""

    def __init__(self, tier: Tier, guess: float, now_s: float) -> None:
        self.tier = tier
        self.fair_share = FairShare()
        self.demand = TierDemand(now_s)
        self.rate = ServiceRate(guess, tier.ttft_s, now_s)
        self.is_removed = False
        """The policy has no such tier any more: no engine is kept for it."""
        self.credit_s = 0.0
        """Of its floor, not yet had."""
        self.waiting = 0
        self.peers_waiting = 0
        """Requests of this tier that wait at peers."""
        self.peer_work_s: Mapping[str | None, float] = {}
        """Prefill that waits at peers, by tenant."""
        self.peer_service: Mapping[str | None, float] = {}
        """What of that is service, over the tenant's weight."""
        self._work_s: dict[str | None, float] = {}
        """Prefill that waits, by tenant."""
        self._service: dict[str | None, float] = {}
        """The service in that, over the tenant's weight: its counter will rise by this much."""
        self._heaps: dict[str | None, list[tuple[float, int, WaitingRequest]]] = {}
        """Of each tenant, the most urgent first; some of them have left already."""
        self._held: dict[str | None, tuple[int, int]] = {}
        """Requests that wait and bytes of their prompts, by tenant."""
        self._by_room: list[tuple[float, int, str | None]] | None = None
        """A heap of tenants, the one with most room first; a share may have fallen since. None until it is needed."""

    @property
    def floor(self) -> float:
        """Its part of all service while it waits."""
        return 0.0 if self.tier.is_best_effort else max(self.tier.guaranteed_share, MIN_FLOOR)

    @property
    def backlog_s(self) -> float:
        """Seconds to serve all that wait at the current rate."""
        work_s = sum(self._work_s.values()) + sum(self.peer_work_s.values())
        return work_s / self.rate.per_s if self.rate.per_s > 0 else inf if work_s else 0.0

    def claims(self, ahead_s: Sequence[float], now_s: float) -> bool:
        """Whether it needs all engines that are open to it, given the seconds queued on each: open is where its own
        first token would come in time. It claims what it is expected to use, up to its reserve, and never all there is.
        """
        if self.is_removed:
            return False
        wanted = max(self.demand.wanted(now_s), 1 if self.tier.guaranteed_share else 0)
        engines = len(ahead_s)
        claimed = min(wanted, max(1, round(self.tier.guaranteed_share * engines)), engines - 1)
        within_s = open_within_s(self.tier)
        return sum([each_s <= within_s for each_s in ahead_s]) <= claimed

    def put(self, waiter: WaitingRequest, now_s: float) -> None:
        self.rate.advance(now_s, is_waiting=self.is_waiting)
        tenant = waiter.tenant
        heappush(self._heaps.setdefault(tenant, []), (waiter.due_s, waiter.number, waiter))
        waiter.is_queued = True
        count, size = self._held.get(tenant, (0, 0))
        self._held[tenant] = count + 1, size + waiter.request.prompt.size
        if self._by_room is not None:
            heappush(self._by_room, (-self.room_share(tenant), waiter.number, tenant))
            if len(self._by_room) > 2 * len(self._held) + SPARE:
                self._by_room = None
        self._work_s[tenant] = self._work_s.get(tenant, 0.0) + waiter.own_s
        self._service[tenant] = self._service.get(tenant, 0.0) + waiter.weighted_tokens / waiter.weight
        self.waiting += 1

    def take(self, waiter: WaitingRequest, now_s: float) -> None:
        """It waits no longer."""
        self.rate.advance(now_s, is_waiting=True)
        waiter.has_left, waiter.is_queued = True, False
        self.waiting -= 1
        tenant = waiter.tenant
        heap = self._heaps[tenant]
        while heap and heap[-1][2].has_left:
            heap.pop()
        while heap and heap[0][2].has_left:
            heappop(heap)
        if heap:
            count, size = self._held[tenant]
            self._held[tenant] = count - 1, size - waiter.request.prompt.size
            self._work_s[tenant] -= waiter.own_s
            self._service[tenant] -= waiter.weighted_tokens / waiter.weight
            if len(heap) > 2 * count + SPARE:
                heap[:] = [entry for entry in heap if not entry[2].has_left]
                heapify(heap)
        else:
            del self._heaps[tenant], self._held[tenant], self._work_s[tenant], self._service[tenant]
        if not self.waiting and not self.peers_waiting:
            self.credit_s = min(self.credit_s, 0.0)

    def room_share(self, tenant: str | None, more: WaitingRequest | None = None) -> float:
        """Return what a tenant holds of the room for waiting requests, over its weight: of requests or of bytes,
        whichever is more. `more`: as if that request of the tenant waited too.
        """
        count, size = self._held.get(tenant, (0, 0))
        if more is not None:
            return _room_share(count + 1, size + more.request.prompt.size, more.weight)
        return _room_share(count, size, self._heaps[tenant][0][2].weight) if count else 0.0

    def last(self, beyond: float) -> WaitingRequest | None:
        """Return one of the least urgent requests of the tenant that holds most of the room; None where none holds more
        than `beyond`. One that has lost its pod is not returned.
        """
        heaviest = self._heaviest()
        if heaviest is None or self.room_share(*heaviest) <= beyond:
            return None
        found = self._last_of(*heaviest)
        if found is not None:
            return found
        others = [tenant for tenant in self._held if self.room_share(tenant) > beyond]
        others.sort(key=self.room_share, reverse=True)
        return next(filter(None, map(self._last_of, others)), None)

    def _heaviest(self) -> tuple[str | None] | None:
        """Return the tenant that holds most of the room, as a tuple of one; None where nothing waits."""
        if self._by_room is None:
            self._by_room = [(-self.room_share(tenant), -at, tenant) for at, tenant in enumerate(self._held, 1)]
            heapify(self._by_room)
        while self._by_room:
            share, number, tenant = self._by_room[0]
            held = self.room_share(tenant)
            if held == -share:
                return (tenant,)
            if held:
                heapreplace(self._by_room, (-held, number, tenant))
            else:
                heappop(self._by_room)
        return None

    def _last_of(self, tenant: str | None) -> WaitingRequest | None:
        """Return one of the least urgent waiting requests of a tenant, none that has lost its pod."""
        for _, _, waiter in reversed(self._heaps[tenant]):
            if not (waiter.has_left or waiter.was_placed):
                return waiter
        return None

    def heads(self) -> Iterator[WaitingRequest]:
        """The most urgent request of each tenant, the tenant with the least service first."""
        for tenant in sorted(self._heaps, key=self.fair_share.served):
            yield self._heaps[tenant][0][2]

    @property
    def is_waiting(self) -> bool:
        """Whether requests of this tier wait, here or at a peer."""
        return self.waiting > 0 or self.peers_waiting > 0

    def waiting_tenants(self) -> Iterator[tuple[str | None, float, float]]:
        """Each tenant with waiting requests, the prefill and the service of these."""
        for tenant, work_s in self._work_s.items():
            yield tenant, work_s, self._service[tenant]

    def overdue(self, now_s: float) -> list[WaitingRequest]:
        """Requests at the head that can no longer start in time."""
        return [heap[0][2] for heap in self._heaps.values() if heap[0][2].start_by_s < now_s]

    def defer(self, waiter: WaitingRequest, now_s: float) -> bool:
        """Let one that is overdue wait on, behind what can still be in time: a modest tenant is served late rather than
        refused. False where it may not.
        """
        if waiter.start_by_s >= waiter.leave_by_s or not self.is_below_fair_share(waiter):
            return False
        self.postpone(waiter, now_s)
        return True

    def postpone(self, waiter: WaitingRequest, now_s: float) -> None:
        """Let one wait for as long as it may, behind what can still be in time. In the queue it must be at the head of
        its tenant's.
        """
        was_queued = waiter.is_queued
        if was_queued:
            self.take(waiter, now_s)
            waiter.has_left = False
        waiter.start_by_s = waiter.due_s = waiter.leave_by_s
        if was_queued:
            self.put(waiter, now_s)

    def wait_s(self, waiter: WaitingRequest, now_s: float) -> float:
        """How long it would wait: for what is more urgent of its tenant's own, and for as much of every other tenant's
        as will be served until its counter has passed ours. So a tenant that has had its share is rejected before one
        that has not.
        """
        if not self.is_waiting:
            return 0.0
        self.rate.advance(now_s, is_waiting=True)
        ahead_s, had = self._before(waiter)
        for each_work_s, each_service in ((self._work_s, self._service), (self.peer_work_s, self.peer_service)):
            for tenant, work_s in each_work_s.items():
                if tenant != waiter.tenant:
                    rise = each_service[tenant]
                    part = (had - self.fair_share.served(tenant)) / rise if rise > 0 else 1.0
                    ahead_s += work_s * min(max(part, 0.0), 1.0)
        return ahead_s / self.rate.per_s if self.rate.per_s > 0 else inf if ahead_s else 0.0

    def is_below_fair_share(self, waiter: WaitingRequest) -> bool:
        """Whether its tenant will have had less than any other of the tier even once it is served."""
        minimum = self.fair_share.min_of_others(waiter.tenant)
        return minimum is not None and self._before(waiter)[1] <= minimum

    def _before(self, waiter: WaitingRequest) -> tuple[float, float]:
        """What of its own tenant's is more urgent, and where the tenant's counter will be once that and this are
        served.
        """
        work_s = self.peer_work_s.get(waiter.tenant, 0.0)
        service = waiter.weighted_tokens + self.peer_service.get(waiter.tenant, 0.0) * waiter.weight
        for due_s, _, other in self._heaps.get(waiter.tenant, ()):
            if due_s <= waiter.due_s and other is not waiter and not other.has_left:
                work_s += other.own_s
                service += other.weighted_tokens
        return work_s, self.fair_share.served(waiter.tenant) + service / waiter.weight


def _room_share(count: int, size: int, weight: float) -> float:
    return max(count, size / BYTES_PER_PLACE) / weight


class ModelQueue:
    """All lines before one group of engines."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.tier_queues: dict[str, TierQueue] = {}
        self.tightest_s = inf
        """The least queue with which an engine is open for every line's tier."""
        self.waiting = 0
        self.has_peers_waiting = False
        self.size = 0
        """Of the prompts of all that wait."""

    @property
    def backlog_s(self) -> float:
        """Of all lines together."""
        return sum(line.backlog_s for line in self.tier_queues.values())

    def put(self, waiter: WaitingRequest, now_s: float) -> None:
        """It waits from now on."""
        waiter.tier_queue.put(waiter, now_s)
        self.waiting += 1
        self.size += waiter.request.prompt.size

    def take(self, waiter: WaitingRequest, now_s: float) -> None:
        """It waits no longer."""
        waiter.tier_queue.take(waiter, now_s)
        self.waiting -= 1
        self.size -= waiter.request.prompt.size

    def displaced_by(self, waiter: WaitingRequest) -> WaitingRequest | None:
        """Return the waiting request that leaves a full queue before this one is rejected: of the lowest tier below its
        own that holds more than its floor, else of a tenant of its own tier that holds more than its tenant would. None
        without such a request.
        """
        own = waiter.tier_queue
        lines = [line for line in self.tier_queues.values() if line.waiting]
        for line in sorted(lines, key=lambda line: (not line.tier.is_best_effort, line.tier.priority)):
            is_below = line.tier.priority < own.tier.priority
            if not (line is own or (is_below and line.waiting > line.floor * self.waiting)):
                continue
            found = line.last(own.room_share(waiter.tenant, waiter) if line is own else 0.0)
            if found is not None:
                return found
        return None

    def overdue(self, now_s: float) -> list[WaitingRequest]:
        """Requests at the heads that can no longer start in time."""
        return [waiter for line in self.tier_queues.values() if line.waiting for waiter in line.overdue(now_s)]

    def tier_queue(self, tier: Tier, guess: float, now_s: float) -> TierQueue:
        """A tier's line; `guess` is the prefill per second that a new one is taken to get."""
        line = self.tier_queues.get(tier.name)
        if line is None:
            line = self.tier_queues[tier.name] = TierQueue(tier, guess, now_s)
        line.tier = tier
        self.tightest_s = min(open_within_s(each.tier) for each in self.tier_queues.values())
        return line

    def by_rank(self) -> list[TierQueue]:
        """The tier queues that are not empty: those below their floor first, then by priority."""
        waiting = [line for line in self.tier_queues.values() if line.waiting]
        if self.has_peers_waiting:
            waiting = self._not_below_peers(waiting)
        waiting.sort(key=lambda line: (line.credit_s <= 0, -line.tier.priority))
        return waiting

    def _not_below_peers(self, waiting: list[TierQueue]) -> list[TierQueue]:
        """Those without a higher tier that waits at a peer, and those that are owed of their floor. Between equal tiers
        of several gateways none waits for the other: that would leave engines idle for as long as updates take.
        """
        highest = max(line.tier.priority for line in self.tier_queues.values() if line.peers_waiting)
        return [line for line in waiting if line.credit_s > 0 or line.tier.priority >= highest]

    def must_wait(self, tier: Tier) -> bool:
        """Whether a waiting request goes before one of this tier that arrives now."""
        return (self.waiting > 0 or self.has_peers_waiting) and any(
            (line.waiting or line.peers_waiting) and (line.tier.priority >= tier.priority or line.credit_s > 0)
            for line in self.tier_queues.values()
        )

    def set_peers(
        self,
        demand: Mapping[str, float],
        waiting: Mapping[str, int],
        work_s: Mapping[str, Mapping[str | None, float]],
        service: Mapping[str, Mapping[str | None, float]],
        now_s: float,
    ) -> None:
        """Take over what peers ask for and hold back, by tier: engines, requests, and of these prefill and
        service by tenant.
        """
        for name, line in self.tier_queues.items():
            line.rate.advance(now_s, is_waiting=line.is_waiting)
            line.demand.of_peers = demand.get(name, 0.0)
            line.peers_waiting = waiting.get(name, 0)
            line.peer_work_s, line.peer_service = work_s.get(name, {}), service.get(name, {})
        self.has_peers_waiting = any(line.peers_waiting for line in self.tier_queues.values())

    def serve_at_peer(self, own: TierQueue, own_s: float, cost_s: float, now_s: float) -> None:
        """A peer has placed a request: all that wait are owed their part of it."""
        if own.is_waiting:
            own.rate.advance(now_s, is_waiting=True)
            own.rate.serve(own_s)
        for line in self.tier_queues.values():
            if line.waiting or line.peers_waiting:
                line.credit_s = min(line.credit_s + line.floor * cost_s, MAX_CREDIT_S)
        own.credit_s = max(own.credit_s - cost_s, -MAX_CREDIT_S)

    def serve(self, own: TierQueue, waiter: WaitingRequest, now_s: float) -> None:
        """It was placed: all that wait are owed their part of it."""
        if own.waiting or own.peers_waiting:
            own.rate.advance(now_s, is_waiting=True)
            own.rate.serve(waiter.own_s)
        for line in self.tier_queues.values() if self.waiting or self.has_peers_waiting else ():
            if line.waiting or line.peers_waiting:
                line.credit_s = min(line.credit_s + line.floor * waiter.cost_s, MAX_CREDIT_S)
        own.credit_s = max(own.credit_s - waiter.cost_s, -MAX_CREDIT_S)

"""Several gateways admit as one: what peers have placed, hold back and rejected counts."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.replica_sync.sync import TIMEOUT_S
from gateway.replica_sync.updates import decode_batch, encode_batch
from routing.blocks import Prompt
from routing.candidates import NoEngineAdmissible
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.ledger import AdmittedAs, Charge, StreamObjective
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import RequestRejected
from routing.replica_state import QueueUpdate, RejectedUpdate, ReplicaState, TenantWaiting, TierWaiting, UpdatePublisher
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tenancy.admission import Admission
from tenancy.objective import Tier, objective_of
from tenancy.peers import GRANTS_AT_ONCE, MAX_TENANTS, PUBLISH_S, WAITING_TTL_S, Peers
from tenancy.queue import WaitingRequest
from tenancy.tenants import Caller, Tenant

MODEL = "m"
GOLD = Tier("gold", 10, ttft_s=1.0, ttft_uncached_factor=2.0, tpot_s=0.05, guaranteed_share=0.5)
BRONZE = Tier("bronze", -10, ttft_s=15.0, ttft_uncached_factor=5.0, tpot_s=0.15)
TIERS = {tier.name: tier for tier in (GOLD, BRONZE)}


class Gateway:
    """A router with admission that publishes what it does; sizes are tokens."""

    def __init__(self, name: int, engines: int = 2) -> None:
        self.name = name
        self.router = Router(routings()["least-loaded"], exact_sizes=True)
        for number in range(engines):
            url = f"http://{number}"
            self.router.put_pod(Pod(url, PodState.READY, frozenset({MODEL}), ready_since_s=-1e6))
            self.router.reshape_pod(url, [EngineShape(kv_tokens=1_000_000)])
        self.publisher = UpdatePublisher()
        self.router.subscribe(self.publisher)
        self.admission = Admission(self.router)
        self.admission.tiers = TIERS
        self.peers = self.admission.peers = Peers(self.admission, self.publisher.publish)
        self.applier = ReplicaState(self.router, admission=self.peers)
        self.batches = 0
        self._placed = 0

    def arrive(
        self,
        tier: Tier,
        now_s: float = 0.0,
        *,
        tenant: str = "a",
        tokens: int = 1_200,
        number: int = 0,
        retried: int = 0,
    ) -> WaitingRequest:
        self._placed += 1
        prompt = Prompt((number or self.name * 1_000_000 + self._placed,), (64,), tokens)
        request = Request(str(self._placed), Api.CHAT, MODEL, prompt, stream=True, retry_count=retried)
        caller = Caller(Tenant(tenant, tier=tier))
        return self.admission.arrive(request, caller, objective_of(tier), came_s=now_s, now_s=now_s, draw=0.0)

    def place(self, waiter: WaitingRequest, now_s: float = 0.0) -> Placement:
        return self.admission.place(waiter, frozenset(), now_s=now_s, draw=0.5)

    def wait(self, tier: Tier, now_s: float = 0.0, *, tenant: str = "a") -> WaitingRequest:
        waiter = self.arrive(tier, now_s, tenant=tenant)
        waiter.queue.put(waiter, now_s)
        return waiter

    def batch(self, sent_s: float | None = None) -> bytes:
        self.batches += 1
        return encode_batch(self.name, self.batches, self.publisher.take(), sent_s)

    def receive(self, payload: bytes, now_s: float = 0.0) -> bool:
        """Whether nothing that was published before is missing."""
        batch = decode_batch(payload)
        return self.applier.apply(batch.replica_id, batch.number, batch.updates, now_s, batch.sent_s)


def two() -> tuple[Gateway, Gateway]:
    """Two gateways that know all tiers."""
    made = Gateway(1), Gateway(2)
    for gateway in made:
        for tier in TIERS.values():
            gateway.admission.leave(gateway.arrive(tier))
        gateway.publisher.take()
    return made


def deliver(here: Gateway, there: Gateway, now_s: float = 0.0) -> None:
    here.peers.publish_waiting(now_s)
    there.receive(here.batch(), now_s)
    there.peers.refresh(now_s)


def test_the_stream_of_a_peer_limits_what_its_engine_takes() -> None:
    """Its objective travels with its charge: without it the engine would be taken to bear any prefill."""
    here, there = two()
    placement = here.place(here.arrive(GOLD))
    slot = placement.engine.slot
    assert there.admission.stalls.room_now_s(slot, 0.0) > 1e9
    deliver(here, there)
    assert there.admission.stalls.room_now_s(slot, 0.0) == pytest.approx(
        here.admission.stalls.room_now_s(slot, 0.0), rel=1e-3
    )


def test_a_lower_tier_waits_for_a_higher_that_waits_at_a_peer() -> None:
    """And no longer once that has been served, or its gateway has not been heard."""
    here, there = two()
    waiter = here.wait(GOLD)
    deliver(here, there)
    queue = there.arrive(BRONZE).queue
    assert queue.must_wait(BRONZE)
    waits = there.wait(BRONZE)
    assert queue.by_rank() == []
    there.peers.refresh(WAITING_TTL_S + 0.01)
    assert queue.by_rank() == [waits.tier_queue]
    deliver(here, there, 1.0)
    assert queue.by_rank() == []
    waiter.queue.take(waiter, 1.0)
    deliver(here, there, 1.0)
    assert queue.by_rank() == [waits.tier_queue]


def test_a_tier_that_is_owed_of_its_floor_waits_for_no_peer() -> None:
    """So the lowest gets its trickle wherever it waits."""
    here, there = two()
    here.wait(GOLD)
    waits = there.wait(BRONZE)
    deliver(here, there)
    waits.tier_queue.credit_s = 0.1
    assert waits.queue.by_rank() == [waits.tier_queue]


def test_equal_tiers_do_not_wait_for_each_other() -> None:
    """Engines would stand idle for as long as updates take."""
    here, there = two()
    here.wait(GOLD)
    waits = there.wait(GOLD)
    deliver(here, there)
    assert waits.queue.by_rank() == [waits.tier_queue]


def test_what_waits_at_peers_stands_before_who_arrives() -> None:
    """Its wait is reckoned from the work of all gateways."""
    here, there = two()
    alone_s = there.arrive(BRONZE, tenant="b").tier_queue.wait_s(there.arrive(BRONZE, tenant="b"), 0.0)
    for _ in range(5):
        here.wait(BRONZE)
    deliver(here, there)
    waiter = there.arrive(BRONZE, tenant="a")
    assert waiter.tier_queue.wait_s(waiter, 0.0) > alone_s


def test_demand_of_all_gateways_is_kept_open() -> None:
    """A tier wants as many engines as its requests need wherever they arrive."""
    here, there = two()
    line = there.arrive(GOLD).tier_queue
    before = line.demand.wanted(0.0)
    for _ in range(40):
        here.admission.leave(here.arrive(GOLD))
    deliver(here, there)
    assert line.demand.wanted(0.0) > before


def test_service_at_a_peer_counts_for_its_tenant() -> None:
    """Charged when it is placed, settled by what it was, and its tenant is present while it runs."""
    here, there = two()
    share = there.arrive(GOLD, tenant="b").tier_queue.fair_share
    placement = here.place(here.arrive(GOLD, tenant="a"))
    deliver(here, there)
    expected = share.served("a")
    assert expected > share.served("b") == 0.0
    placement.first_token(0.2)
    placement.settle(Usage(1_200, 900, 0), 1.0)
    placement.release(1.0)
    before = there.admission.forecast.mean("a", MODEL)
    deliver(here, there, 1.0)
    assert there.admission.forecast.mean("a", MODEL) != before
    assert share.min_of_others("b") is None


def test_a_rejected_request_is_known_to_all_gateways() -> None:
    """Its objective runs since it first arrived, wherever that was."""
    here, there = two()
    waiter = here.arrive(GOLD, 10.0, number=7)
    here.admission.overload_rejection(waiter, 10.0, 1.0, 0.0)
    there.receive(here.batch(), 10.1)
    again = there.arrive(GOLD, 12.0, number=7, retried=1)
    assert again.arrived_s == pytest.approx(10.1, abs=0.01)
    assert there.arrive(GOLD, 12.0, number=8, retried=1).arrived_s == 12.0


def test_what_waits_is_published_now_and_then() -> None:
    """At once where a tier begins to wait, otherwise no more often than peers need it."""
    here, _ = two()
    here.peers.publish_waiting(0.0)
    here.publisher.take()
    waiter = here.wait(GOLD, 0.001)
    here.peers.publish_waiting(0.001)
    (update,) = here.publisher.take()
    assert isinstance(update, QueueUpdate)
    assert [(each.tier, each.waiting) for each in update.tiers] == [("gold", 1), ("bronze", 0)]
    here.peers.publish_waiting(0.001 + PUBLISH_S / 2)
    assert here.publisher.take() == []
    waiter.queue.take(waiter, 0.002)
    here.peers.publish_waiting(0.002)
    assert len(here.publisher.take()) == 1


def test_demand_is_published_where_it_has_changed() -> None:
    """While nothing waits: soon after a change, otherwise once a second, so that those who join know it too."""
    here, _ = two()
    here.admission.leave(here.arrive(GOLD, 0.0))
    here.peers.publish_waiting(0.0)
    here.publisher.take()
    published = []
    for tenth in range(1, 51):
        now_s = tenth / 10
        if tenth == 25:
            for _ in range(5):
                here.admission.leave(here.arrive(GOLD, now_s))
            here.peers.publish_waiting(now_s - 0.06)
        here.peers.publish_waiting(now_s)
        published += [tenth] * len(here.publisher.take())
    assert 25 in published
    assert len(published) < 15
    assert max(later - earlier for earlier, later in pairwise([0, *published, 50])) <= 10


def test_what_is_published_is_bounded() -> None:
    """However many tenants wait."""
    here, _ = two()
    waiters = [here.arrive(BRONZE, tenant=f"t{number}") for number in range(MAX_TENANTS + 10)]
    for waiter in waiters:
        waiter.queue.put(waiter, 0.0)
    here.peers.publish_waiting(0.0)
    tiers = [tier for update in here.publisher.take() if isinstance(update, QueueUpdate) for tier in update.tiers]
    assert max(len(tier.tenants) for tier in tiers) == MAX_TENANTS


def share_of(gateway: Gateway) -> float:
    share = gateway.admission.stalls.share
    assert share is not None
    return share.share


def test_while_a_peer_is_missing_each_part_keeps_to_its_share() -> None:
    """Both take half where both had the same demand, also when the peer is gone; all of it when it is back."""
    here, there = two()
    for _ in range(10):
        here.admission.leave(here.arrive(GOLD))
        there.admission.leave(there.arrive(GOLD))
    deliver(here, there)
    there.peers.miss({1}, 0.0, 0.0)
    assert share_of(there) == pytest.approx(0.5, rel=0.05)
    there.peers.gone(1, 0.0)
    there.peers.refresh(0.0)
    there.peers.miss({1}, 0.0, 0.0)
    assert share_of(there) == pytest.approx(0.5, rel=0.05)
    there.peers.miss((), 0.0, 0.0)
    assert there.admission.stalls.share is None


@pytest.mark.parametrize("demand", [(1, 1, 1), (8, 1, 1), (20, 0, 1)])
def test_shares_of_all_gateways_sum_to_one(demand: tuple[int, int, int]) -> None:
    """Also where one is given most of the traffic, or none; and it may take more for that."""
    gateways = [Gateway(1), Gateway(2), Gateway(3)]
    for gateway, count in zip(gateways, demand, strict=True):
        for _ in range(count):
            gateway.admission.leave(gateway.arrive(GOLD))
            gateway.admission.leave(gateway.arrive(BRONZE))
        gateway.peers.publish_waiting(0.0)
    payloads = [gateway.batch() for gateway in gateways]
    for gateway in gateways:
        for other, payload in zip(gateways, payloads, strict=True):
            if other is not gateway:
                gateway.receive(payload)
        gateway.peers.refresh(0.0)
        gateway.peers.miss({other.name for other in gateways if other is not gateway}, 0.0, 0.0)
    shares = [share_of(gateway) for gateway in gateways]
    assert sum(shares) == pytest.approx(1.0, abs=0.01)
    assert min(shares) > 0
    assert shares[0] == max(shares)


@pytest.mark.parametrize(
    "update",
    [
        QueueUpdate((TierWaiting("m", "gold", -1.0),)),
        QueueUpdate((TierWaiting("m", "gold", 1.0, 1, (TenantWaiting("a", 1e9, 1.0),)),)),
        RejectedUpdate(1, -1.0),
    ],
)
def test_impossible_numbers_are_counted_and_dropped(update: QueueUpdate | RejectedUpdate) -> None:
    """Of whatever version or origin."""
    here, _ = two()
    here.applier.apply(9, 1, [update], 0.0)
    here.peers.refresh(0.0)
    assert here.applier.rejected == 1
    assert not any(queue.has_peers_waiting for queue in here.admission.queues.values())


def test_unknown_queues_and_tiers_are_ignored() -> None:
    """A peer may have another policy: its requests count as load."""
    here, _ = two()
    here.applier.apply(9, 1, [QueueUpdate((TierWaiting("other", "platinum", 1.0, 3),))], 0.0)
    here.peers.refresh(0.0)
    charge = here.router.ledger.charge(
        0,
        prefill_tokens=10.0,
        prefill_s=0.1,
        kv_tokens=10.0,
        sequences=1,
        now_s=0.0,
        pledge=StreamObjective(0.05, 10.0, AdmittedAs("other", "platinum", "a", 1.0, 0.1, 10.0)),
    )
    here.peers.placed(charge, 0.0)
    here.peers.ended(charge, 0.0)
    assert here.applier.rejected == 0


def test_of_many_waiting_gateways_a_few_grant_at_once() -> None:
    """All see at the same time that an engine can take more. Few peers, those that wait only in lower tiers, and those
    not heard for long do not hold anything back.
    """
    here, _ = two()
    waiter = here.wait(BRONZE)
    queue = waiter.queue

    def granting(tier: str, peers: int, now_s: float = 0.0) -> int:
        for name in range(10, 10 + peers):
            here.peers.waits(name, QueueUpdate((TierWaiting(MODEL, tier, 1.0, 2),)), 0.0)
        return sum(here.peers.may_grant(queue, now_s, draw / 100) for draw in range(100))

    assert granting("bronze", GRANTS_AT_ONCE - 1) == 100
    assert granting("bronze", 4 * GRANTS_AT_ONCE - 1) == 25
    assert granting("gold", 0, WAITING_TTL_S + 0.01) == 100
    golden = here.wait(GOLD)
    assert granting("bronze", 4 * GRANTS_AT_ONCE - 1) == 100
    assert golden.queue is queue


def test_the_steps_of_a_peers_streams_teach_what_engines_can_bear() -> None:
    """As those of own streams do, but not beside missing peers, nor of streams from that time."""
    here, there = two()

    def slow_stream(now_s: float) -> float:
        placement = here.place(here.arrive(GOLD, now_s), now_s)
        placement.first_token(now_s + 0.1)
        deliver(here, there, now_s + 0.1)
        placement.settle(Usage(1_200, 100, 0), now_s + 9.0)
        placement.release(now_s + 9.0)
        deliver(here, there, now_s + 9.0)
        return there.admission.stalls.step_s(0)

    before = there.admission.stalls.step_s(0)
    learned = slow_stream(0.0)
    assert learned > before
    there.peers.miss({1}, 10.0, 10.0)
    assert slow_stream(10.0) == learned
    there.peers.miss((), 20.0, 20.0)
    assert slow_stream(19.5) == learned
    assert slow_stream(30.0) != learned


class Fleet:
    """Three gateways before one engine, what is on its way between them, and one with each charge of all: the truth.

    The truth is charged from the placements themselves, so what updates leave out is missed by the gateways alone.
    """

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.gateways = [Gateway(number, engines=1) for number in (1, 2, 3)]
        self.truth = Gateway(9, engines=1)
        self.excess_s = 0.0
        """The most that was ever given out beyond what was left."""
        self._draw = Random(seed)
        self._clocks_s = {1: 1_000.0, 2: 5.0}
        """What each clock is ahead; the third gateway is of a version that does not send when it sends."""
        self._inboxes: dict[tuple[int, int], list[bytes]] = {}
        self._cut: set[int] = set()
        """Those that nothing reaches and of which nothing reaches others."""
        self._mute: set[int] = set()
        """Those of which nothing reaches others, while they receive what others send."""
        self._is_stalled = False
        """Whether all that is sent is held back."""
        self._dead: set[int] = set()
        self._given: list[tuple[int, Placement]] = []
        """(Gateway, placement), oldest first."""
        self._true_charges: dict[int, Charge] = {}
        """The charges of the truth, by place in `_given`."""
        self._lost: set[tuple[int, int]] = set()
        """(Hearer, publisher) where something was lost, and nothing has arrived since."""
        self._undelivered: dict[tuple[int, int], int] = {}
        """By hearer and publisher: place in `_given` of the oldest open placement not known there."""

    def receive(self, here: Gateway) -> None:
        """All that is on its way arrives, but for what a partition or a stall holds back. Where something before it was
        lost, its publisher is asked for a snapshot, which is on its way then.
        """
        for other in self._others(here):
            if not self._passes(other, here):
                continue
            payloads = self._inboxes.pop((here.name, other.name), [])
            is_contiguous = [here.receive(payload, self.now_s) for payload in payloads]
            if not payloads or is_contiguous[-1]:
                if (here.name, other.name) not in self._lost or is_contiguous:
                    self._lost.discard((here.name, other.name))
                    self._undelivered.pop((here.name, other.name), None)
            else:
                other.publisher.publish_snapshot()
                self._publish(other)
        here.peers.refresh(self.now_s)

    def _passes(self, publisher: Gateway, receiver: Gateway) -> bool:
        is_apart = publisher.name in self._cut | self._mute or receiver.name in self._cut
        return not (self._is_stalled or is_apart)

    def fill(self, here: Gateway) -> None:
        """A burst: every gateway hears all and places, several times."""
        for _ in range(BURST):
            for gateway in self.gateways:
                self.receive(gateway)
                self.place(gateway)
            self.now_s += 0.05

    def cut(self, here: Gateway) -> None:
        """Nothing reaches it, and nothing of it reaches others."""
        self._cut.add(here.name)

    def mute(self, here: Gateway) -> None:
        """A partition that one side sees: nothing of it reaches others, and it receives theirs."""
        self._mute.add(here.name)

    def stall(self, here: Gateway) -> None:
        """Redis hangs: all that is sent is held back."""
        self._is_stalled = True

    def resume(self, here: Gateway) -> None:
        """Redis goes on: what was held back arrives in order."""
        self._is_stalled = False

    def lose(self, here: Gateway) -> None:
        """What it has sent, and what has not arrived, never arrives."""
        for other in self._others(here):
            if self._inboxes.pop((other.name, here.name), None):
                self._lost.add((other.name, here.name))

    def pause(self, here: Gateway) -> None:
        """The process is suspended: when it goes on, seconds have passed for all, and it has heard nothing of them."""
        for gateway in self._others(here):
            self.place(gateway)
            self.receive(gateway)
        self.now_s += 3.0
        self.place(here)

    def set_clock(self, here: Gateway) -> None:
        """Its clock jumps, as when its machine is moved."""
        if here.name in self._clocks_s:
            self._clocks_s[here.name] = self._draw.choice([0.0, 3.0, 100.0, 1e6])

    def beat(self, here: Gateway) -> None:
        """Its timer: peers that were silent for long are gone, and budgets are cut for those that are missing."""
        here.peers.publish_waiting(self.now_s)
        self._publish(here)
        for name in here.applier.remove_stale(self.now_s - TIMEOUT_S, self.now_s):
            self._forgotten(here, name)

    def join(self, here: Gateway) -> None:
        """What it has missed is replaced by snapshots."""
        if here.name in self._cut | self._mute:
            self._cut.discard(here.name)
            self._mute.discard(here.name)
            for gateway in self.gateways:
                gateway.publisher.publish_snapshot()
                self._publish(gateway)

    def forget(self, here: Gateway) -> None:
        """A cut-off gateway has not heard its peers for so long that it takes them to be gone."""
        for other in self._others(here):
            if here.name in self._cut or other.name in self._cut | self._mute:
                here.applier.remove(other.name, self.now_s)
                self._forgotten(here, other.name)

    def _forgotten(self, here: Gateway, name: int) -> None:
        """All that a peer has open is unknown here again."""
        open_there = [at for at, (whose, one) in enumerate(self._given) if whose == name and not one.charge.released]
        if open_there:
            self._undelivered[here.name, name] = open_there[0]

    def die(self, here: Gateway) -> None:
        """Its requests end, as its connections do."""
        self._dead.add(here.name)
        for name, placement in self._given:
            if name == here.name:
                placement.release(self.now_s)
        self._settle_truth()
        self._publish(here)

    def start(self, here: Gateway) -> None:
        """The first token of its oldest request."""
        for placement in self._open(here)[:1]:
            placement.first_token(self.now_s)
            self._settle_truth()
            self._publish(here)

    def end(self, here: Gateway) -> None:
        """Its oldest request ends."""
        for placement in self._open(here)[:1]:
            placement.first_token(self.now_s)
            placement.release(self.now_s)
            self._settle_truth()
            self._publish(here)

    def place(self, here: Gateway) -> None:
        """One request asks for the engine; what is given out is held against the truth."""
        if here.name in self._dead:
            return
        left_s = self.truth.admission.stalls.room_now_s(0, self.now_s)
        tier, tokens = self._draw.choice([GOLD, BRONZE]), self._draw.choice([300, 1_200, 4_000])
        try:
            placement = here.place(here.arrive(tier, self.now_s, tokens=tokens), self.now_s)
        except (NoEngineAdmissible, RequestRejected):
            return
        self._given.append((here.name, placement))
        self._charge_truth(placement.charge)
        undelivered = [at for (hearer, _), at in self._undelivered.items() if hearer == here.name]
        since = self._given[min(undelivered) :] if undelivered else []
        excess_s = placement.charge.prefill_s - left_s
        assert excess_s <= sum(each.charge.prefill_s for _, each in since) + ROUNDING_S
        self.excess_s = max(self.excess_s, excess_s)
        for other in self._others(here):
            self._undelivered.setdefault((other.name, here.name), len(self._given) - 1)
        self._publish(here)

    def _charge_truth(self, charge: Charge) -> None:
        self._true_charges[len(self._given) - 1] = self.truth.router.ledger.charge(
            0,
            prefill_tokens=charge.prefill_tokens,
            prefill_s=charge.prefill_s,
            kv_tokens=charge.kv_tokens,
            sequences=charge.sequences,
            now_s=self.now_s,
            pledge=charge.objective,
            queues=charge.queues,
        )

    def _settle_truth(self) -> None:
        """Take over which prefills are done and which requests have ended."""
        for at, true in list(self._true_charges.items()):
            charge = self._given[at][1].charge
            if not charge.in_prefill:
                self.truth.router.ledger.prefill_done(true, self.now_s)
            if charge.released:
                self.truth.router.ledger.release(self._true_charges.pop(at), self.now_s)

    def _publish(self, here: Gateway) -> None:
        clock_s = self._clocks_s.get(here.name)
        payload = here.batch(None if clock_s is None else self.now_s + clock_s)
        for other in self._others(here):
            self._inboxes.setdefault((other.name, here.name), []).append(payload)

    def placed_by(self, here: Gateway) -> int:
        """How many requests a gateway has placed."""
        return sum(name == here.name for name, _ in self._given)

    def _others(self, here: Gateway) -> list[Gateway]:
        return [gateway for gateway in self.gateways if gateway is not here]

    def _open(self, here: Gateway) -> list[Placement]:
        return [one for name, one in self._given if name == here.name and not one.charge.released]


ROUNDING_S = 1e-3
"""Of what travels in whole microseconds and thousandths of tokens."""

BURST = 8
"""Rounds of placements, so that budgets are used up."""

MOVE_NAMES = (
    *("fill", "place", "place", "receive", "receive", "start", "end", "beat"),
    *("cut", "mute", "stall", "lose", "forget", "die", "pause", "set_clock"),
    *("join", "join", "resume", "resume"),
)

MOVES = st.lists(
    st.tuples(
        st.sampled_from(MOVE_NAMES),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(MOVES, st.integers(0, 1 << 16))
@settings(max_examples=60, deadline=None)
def test_budgets_are_exceeded_by_at_most_what_is_on_its_way(moves: list[tuple[str, int]], seed: int) -> None:
    """Placements, deaths, partitions of both sides and of one, stalls, losses, pauses of a process and reunions in any
    order. A gateway that has heard all gives out no more than is
    left; otherwise the excess is at most the prefill placed since the oldest placement that it does not know.
    """
    fleet = Fleet(seed)
    for move, which in moves:
        fleet.now_s += 0.05
        getattr(fleet, move)(fleet.gateways[which])


@pytest.mark.parametrize(
    ("fault", "is_lost"),
    [("cut", True), ("mute", True), ("stall", False), ("stall", True), ("pause", False), ("receive", True)],
)
def test_after_a_reunion_nothing_is_given_out_twice(fault: str, is_lost: bool) -> None:
    """Whatever lay between: once all is received again, every gateway counts what the first had placed meanwhile."""
    fleet = Fleet(3)
    first, *others = fleet.gateways
    getattr(fleet, fault)(first)
    for _ in range(20):
        fleet.place(first)
        fleet.now_s += 0.01
    if is_lost:
        fleet.lose(first)
    fleet.join(first)
    fleet.resume(first)
    fleet.beat(first)
    for _ in range(2):
        for gateway in fleet.gateways:
            fleet.receive(gateway)
    fleet.excess_s = 0.0
    for _ in range(20):
        for other in others:
            fleet.place(other)
            for gateway in fleet.gateways:
                fleet.receive(gateway)
    assert fleet.placed_by(first) > 0
    assert fleet.excess_s <= ROUNDING_S


def test_partitions_do_give_out_more_than_there_is() -> None:
    """So that the property above is tried: two gateways without updates each give out what is left."""
    fleet = Fleet(1)
    for _ in range(40):
        fleet.now_s += 0.05
        for gateway in fleet.gateways:
            fleet.place(gateway)
    assert fleet.excess_s > 0.01
    fleet = Fleet(1)
    for _ in range(40):
        fleet.now_s += 0.05
        for gateway in fleet.gateways:
            fleet.receive(gateway)
            fleet.place(gateway)
    assert fleet.excess_s <= ROUNDING_S


def test_gateways_that_are_not_linked_keep_to_equal_shares() -> None:
    """Processes of one host are peers and keep to one share; while one of them is missing, to their part of it."""
    here, there = two()
    for gateway in (here, there):
        gateway.admission.share_engines(4)
        gateway.arrive(GOLD, 1.0)
        share = gateway.admission.stalls.share
        assert share is not None
        assert share.share == 0.25
    deliver(there, here, 1.0)
    here.peers.miss({2}, 1.0, 1.1)
    missing = here.admission.stalls.share
    assert missing is not None
    assert 0 < missing.share < 0.25
    here.admission.share_engines(4)
    here.arrive(GOLD, 1.2)
    assert here.admission.stalls.share is missing
    here.peers.miss((), 6.0, 6.0)
    assert here.admission.stalls.share is not None
    assert here.admission.stalls.share.share == 0.25
    here.admission.share_engines(1)
    assert here.admission.unlinked_share(7.0) is None


def test_their_tiers_are_those_with_demand() -> None:
    """Looked at once a second; what was left of the share is taken over."""
    here, _ = two()
    here.admission.share_engines(2)
    here.arrive(BRONZE, 1.0)
    here.arrive(GOLD, 1.5)
    here.arrive(GOLD, 2.5)
    assert here.admission.stalls.share is not None
    assert here.admission.stalls.share.priorities == [GOLD.priority, BRONZE.priority]
    here.admission.stalls.share.drain(0, 2.0)
    here.arrive(BRONZE, 4.0)
    assert here.admission.stalls.share.tpot_s == GOLD.tpot_s
    assert not here.admission.stalls.has_share(0, BRONZE.priority, 4.0)
    assert here.admission.stalls.has_share(1, BRONZE.priority, 4.0)


def test_streams_teach_beside_gateways_that_are_not_linked() -> None:
    """They are always there: nothing would ever be learned."""
    here, there = two()
    for gateway in (here, there):
        gateway.admission.share_engines(2)
    before = there.admission.stalls.step_s(0)
    placement = here.place(here.arrive(GOLD))
    placement.first_token(0.1)
    deliver(here, there, 0.1)
    placement.settle(Usage(1_200, 100, 0), 9.0)
    placement.release(9.0)
    deliver(here, there, 9.0)
    assert there.admission.stalls.step_s(0) > before

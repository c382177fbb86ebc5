"""Who was refused is known again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routing.blocks import cut_prompt
from routing.candidates import Candidates, NoEngineAdmissible
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.ledger import STEP_TOKENS, ExternalLoad, StreamObjective
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import Reason, RequestRejected
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tenancy.admission import (
    MAX_RETRY_AFTER_S,
    MAX_WAITING,
    RETURNING_MEMORY_S,
    Admission,
    AdmissionFilter,
    RejectedRequests,
    request_fingerprint,
)
from tenancy.objective import Tier, objective_of
from tenancy.queue import WaitingRequest
from tenancy.tenants import Caller, Tenant

REQUEST = Request("1", Api.CHAT, "m", cut_prompt(b"tell me a tale " * 200, 0))
FACE = request_fingerprint(REQUEST, "acme")


def test_its_objective_runs_from_its_first_coming() -> None:
    """However often it was refused since."""
    returning = RejectedRequests()
    returning.rejected(FACE, 10.0, 10.0)
    returning.rejected(FACE, 12.0, 12.0)
    assert returning.first_s(FACE, 20.0) == 10.0


def test_who_was_served_is_forgotten() -> None:
    """The same question later is another request."""
    returning = RejectedRequests()
    returning.rejected(FACE, 10.0, 10.0)
    returning.served(FACE)
    assert returning.first_s(FACE, 20.0) == 20.0


def test_another_tenants_like_is_another() -> None:
    """Nobody is late for another's sake."""
    assert request_fingerprint(REQUEST, "acme") != request_fingerprint(REQUEST, "other")


def test_a_prompt_without_blocks_has_no_face() -> None:
    """Too short to be told from others."""
    assert request_fingerprint(Request("1", Api.CHAT, "m"), "acme") is None


def test_memory_is_bounded_by_time() -> None:
    """Clients give up."""
    returning = RejectedRequests()
    for number in range(10):
        returning.rejected(("t", "m", number, 1), float(number), float(number))
    returning.rejected(FACE, RETURNING_MEMORY_S + 5.0, RETURNING_MEMORY_S + 5.0)
    assert len(returning.arrivals) == 6


MODEL = "m"
GOLD = Tier("gold", 10, ttft_s=1.0, ttft_uncached_factor=2.0, tpot_s=0.05, guaranteed_share=0.5)
BRONZE = Tier("bronze", -10, ttft_s=15.0, ttft_uncached_factor=5.0, tpot_s=0.15)


class Stage:
    """Engines, and requests whose sizes are tokens."""

    def __init__(self, engines: int = 2, kv_tokens: int = 1_000_000) -> None:
        self.router = Router(routings()["least-loaded"], exact_sizes=True)
        for number in range(engines):
            url = f"http://{number}"
            self.router.put_pod(Pod(url, PodState.READY, frozenset({MODEL}), ready_since_s=-1e6))
            self.router.reshape_pod(url, [EngineShape(kv_tokens=kv_tokens)])
        self.admission = Admission(self.router)
        for _ in range(200):
            self.admission.forecast.observe("a", MODEL, 100)
        self._asked = 0

    def arrive(
        self,
        tier: Tier,
        tokens: int = 1_200,
        now_s: float = 0.0,
        tenant: str = "a",
        retried: int = 0,
        text: int = 0,
        came_s: float | None = None,
    ) -> WaitingRequest:
        self._asked += 1
        prompt = cut_prompt((b"%d " % (text or self._asked) * tokens)[:tokens], 0)
        request = Request(str(self._asked), Api.CHAT, MODEL, prompt, stream=True, retry_count=retried)
        caller = Caller(Tenant(tenant, tier=tier))
        return self.admission.arrive(
            request, caller, objective_of(tier), came_s=now_s if came_s is None else came_s, now_s=now_s, draw=0.0
        )

    def place(self, waiter: WaitingRequest, now_s: float = 0.0) -> Placement:
        return self.admission.place(waiter, frozenset(), now_s=now_s, draw=0.5)

    def wait(self, waiter: WaitingRequest, now_s: float = 0.0) -> None:
        waiter.queue.put(waiter, now_s)

    def fill(self, tenant: str = "a") -> RequestRejected:
        """Gold comes until it is refused."""
        for _ in range(10_000):
            try:
                self.wait(self.arrive(GOLD, 1_200, tenant=tenant))
            except RequestRejected as rejection:
                return rejection
        raise AssertionError("nobody is ever refused")


def test_a_first_token_that_would_come_too_late_is_not_started() -> None:
    """Two seconds of prefill stand on every engine, and gold wants its own within one: it waits for one to be done."""
    stage = Stage()
    bronze = [stage.place(stage.arrive(BRONZE, 20_000)) for _ in range(2)]
    gold = stage.arrive(GOLD, 600)
    with pytest.raises(NoEngineAdmissible):
        stage.place(gold)
    bronze[1].first_token(0.7)
    assert stage.place(gold, now_s=0.7).engine is bronze[1].engine


def test_a_stream_is_not_stalled_beyond_its_objective() -> None:
    """Gold decodes on the only engine; a long prompt waits until gold has earned what it takes."""
    stage = Stage(engines=1)
    gold = stage.place(stage.arrive(GOLD, 400))
    gold.first_token(0.1)
    long = stage.arrive(BRONZE, 60_000, now_s=0.1)
    long.queue.tier_queues["bronze"].credit_s = 1.0
    with pytest.raises(NoEngineAdmissible):
        stage.place(long, now_s=0.2)
    assert stage.place(long, now_s=9.0).engine is gold.engine


def test_another_engine_is_chosen_where_the_nearest_may_not_be() -> None:
    """The gate bars one engine, not the request."""
    stage = Stage(engines=2)
    gold = stage.place(stage.arrive(GOLD, 400))
    gold.first_token(0.1)
    long = stage.arrive(BRONZE, 8_000, now_s=0.1)
    long.queue.tier_queues["bronze"].credit_s = 1.0
    assert stage.place(long, now_s=0.2).engine is not gold.engine


def test_an_engine_is_kept_open_for_a_tier_that_is_expected() -> None:
    """While gold comes now and then, bronze's long prompts do not fill the last engine."""
    stage = Stage(engines=2)
    stage.place(stage.arrive(GOLD, 400)).release(0.1)
    first = stage.place(stage.arrive(BRONZE, 60_000, now_s=0.2), now_s=0.2)
    with pytest.raises(NoEngineAdmissible):
        stage.place(stage.arrive(BRONZE, 60_000, now_s=0.3), now_s=0.3)
    gold = stage.place(stage.arrive(GOLD, 400, now_s=0.4), now_s=0.4)
    assert gold.engine is not first.engine


def test_no_one_is_put_where_the_cache_would_overflow() -> None:
    """KV is counted with the whole answer: for the moment of decoding, not for now."""
    stage = Stage(engines=1, kv_tokens=5_000)
    stage.place(stage.arrive(BRONZE, 3_000))
    with pytest.raises(NoEngineAdmissible):
        stage.place(stage.arrive(BRONZE, 3_000))


def test_who_cannot_start_in_time_is_rejected_as_it_comes() -> None:
    """Behind more than its tier can be served in time; the word when to come again is honest and bounded."""
    stage = Stage()
    rejection = stage.fill()
    assert rejection.reason is Reason.OVERLOADED
    assert 0.0 < (rejection.retry_after_s or 0.0) <= MAX_RETRY_AFTER_S
    assert 1 < stage.admission.queues[MODEL].waiting < 100


def test_a_modest_tenant_is_not_rejected_for_a_greedy_ones_sake() -> None:
    """It waits behind as much of the other's as is its part."""
    stage = Stage()
    stage.fill(tenant="greedy")
    assert stage.arrive(GOLD, 1_200, tenant="modest").start_by_s > 0


def test_no_request_is_rejected_for_the_sake_of_those_behind_it() -> None:
    """Bronze waits, and gold that comes again has little time left: no reason to have it come a third time."""
    stage = Stage()
    stage.admission.overload_rejection(stage.arrive(GOLD, 1_200, text=7), 0.0, 1.0, 0.0)
    stage.wait(stage.arrive(BRONZE))
    assert stage.arrive(GOLD, 1_200, 0.9, retried=1, text=7).arrived_s == 0.0


def test_a_modest_tenant_waits_as_long_as_it_may() -> None:
    """It will be the next, however little of late was served."""
    stage = Stage()
    stage.fill(tenant="greedy")
    line = stage.arrive(GOLD, tenant="modest").tier_queue
    line.fair_share.serve("greedy", 1e6, 1.0)
    line.rate.advance(1e3, is_waiting=True)
    stage.wait(stage.arrive(GOLD, 1_200, 1e3, tenant="modest"), 1e3)
    assert stage.arrive(GOLD, 1_200, 1e3, tenant="modest").start_by_s > 1e3


def test_who_was_rejected_and_comes_again_is_as_late_as_it_is() -> None:
    """Its promise runs from its first coming, if its client says that it has asked before."""
    stage = Stage()
    stage.wait(first := stage.arrive(GOLD, 1_200, text=7))
    stage.admission.overload_rejection(first, 0.0, 1.0, 0.0)
    again, other = stage.arrive(GOLD, 1_200, 0.5, retried=1, text=7), stage.arrive(GOLD, 1_200, 0.5, text=7)
    assert (again.arrived_s, other.arrived_s) == (0.0, 0.5)


def test_the_queue_is_bounded() -> None:
    """However patient a tier is."""
    stage = Stage()
    patient = Tier("patient", ttft_s=1e9, max_queue_s=1e9)
    for _ in range(MAX_WAITING):
        stage.wait(stage.arrive(patient, 10))
    with pytest.raises(RequestRejected) as rejected:
        stage.arrive(patient, 10)
    assert rejected.value.reason is Reason.QUEUE_FULL


def test_no_engine_is_kept_for_a_tier_that_a_policy_has_no_more() -> None:
    """While it has it one engine stays open for its first request; a policy that has it again keeps one again."""
    stage = Stage()
    stage.admission.set_tiers({tier.name: tier for tier in (GOLD, BRONZE)})
    first = stage.place(stage.arrive(BRONZE, 20_000))
    with pytest.raises(NoEngineAdmissible):
        stage.place(stage.arrive(BRONZE, 20_000))
    stage.admission.set_tiers({BRONZE.name: BRONZE})
    second = stage.place(stage.arrive(BRONZE, 20_000))
    assert first.engine is not second.engine
    second.release(0.0)
    stage.admission.set_tiers({tier.name: tier for tier in (GOLD, BRONZE)})
    with pytest.raises(NoEngineAdmissible):
        stage.place(stage.arrive(BRONZE, 20_000))


def test_a_tenant_that_fills_the_queue_has_no_other_rejected() -> None:
    """Neither one of its own tier, nor a higher tier that an engine could take; its own next request is rejected."""
    stage = Stage()
    patient = Tier("patient", -20, ttft_s=1e9, max_queue_s=1e9)
    for _ in range(MAX_WAITING):
        stage.wait(stage.arrive(patient, 10, tenant="flood"))
    for tier, tenant in ((patient, "modest"), (GOLD, "other")):
        stage.arrive(tier, 10, tenant=tenant)
    with pytest.raises(RequestRejected) as rejected:
        stage.arrive(patient, 10, tenant="flood")
    assert rejected.value.reason is Reason.QUEUE_FULL


def test_hanging_up_does_not_give_back_what_an_engine_did() -> None:
    """Of a prompt the part for which there was time, of an answer the tokens; what never ran costs nothing."""
    stage = Stage(engines=1)
    line = stage.arrive(BRONZE).tier_queue
    had = [0.0]

    def leaves(after_s: float, first_s: float | None = None) -> float:
        waiter = stage.arrive(BRONZE, 12_000)
        placement = stage.place(waiter)
        if first_s is not None:
            placement.first_token(first_s)
        placement.was_left = True
        stage.admission.settle(waiter, placement, None, after_s)
        placement.release(after_s)
        had.append(line.fair_share.served("a"))
        return had[-1] - had[-2]

    never, half, nearly = leaves(0.0), leaves(0.5), leaves(0.99)
    assert never == pytest.approx(0.0, abs=1)
    assert 4_000 < half < nearly < 12_100
    assert leaves(61.0, first_s=1.0) > 12_000 + 2 * 2_000


def test_service_is_settled_with_what_it_was() -> None:
    """Expected at first; what was cached costs nothing, and what came to nothing is given back."""
    stage = Stage()
    waiter = stage.arrive(GOLD)
    line = waiter.tier_queue
    line.fair_share.enter("a")
    placement = stage.place(waiter)
    expected = line.fair_share.served("a")
    placement.first_token(0.1)
    stage.admission.settle(waiter, placement, Usage(1_200, 50, 1_000), 1.0)
    assert expected > line.fair_share.served("a") == 200 + 2 * 50
    gone = stage.arrive(GOLD)
    placement = stage.place(gone)
    stage.admission.settle(gone, placement, None, 2.0)
    assert line.fair_share.served("a") == pytest.approx(300)


def test_models_on_the_same_engines_wait_in_one_queue() -> None:
    """Adapters and their base compete for the same seconds."""
    stage = Stage()
    stage.router.put_pod(Pod("http://0", PodState.READY, frozenset({MODEL, "adapter"})))
    other = Request("1", Api.CHAT, "adapter")
    waiter = stage.admission.arrive(other, Caller(), objective_of(GOLD), came_s=0.0, now_s=0.0, draw=0.0)
    assert waiter.queue is stage.admission.queues["adapter"]


def test_who_may_be_computed_in_one_region_only_waits_by_itself() -> None:
    """It competes for other engines, so it bars nobody else."""
    stage = Stage()
    request = Request("1", Api.CHAT, MODEL)
    bound = Request("2", Api.CHAT, MODEL, regions=frozenset({"eu"}))
    admit = stage.admission.arrive
    one = admit(request, Caller(), objective_of(GOLD), came_s=0.0, now_s=0.0, draw=0.0)
    other = admit(bound, Caller(), objective_of(GOLD), came_s=0.0, now_s=0.0, draw=0.0)
    assert one.queue is not other.queue


def test_room_is_kept_for_who_has_reserved_some_before_he_first_comes() -> None:
    """A flood of long bronze prompts leaves an engine to gold, which was never seen."""
    stage = Stage(engines=2)
    stage.admission.tiers = {"gold": GOLD, "bronze": BRONZE}
    stage.place(stage.arrive(BRONZE, 60_000))
    with pytest.raises(NoEngineAdmissible):
        stage.place(stage.arrive(BRONZE, 60_000))


def test_a_reserve_without_a_first_token_objective_keeps_an_engine_open() -> None:
    """Open is then where no more than a second of prefill is queued; without a reserve nothing is kept open."""
    for reserve, is_kept in ((0.5, True), (0.0, False)):
        stage, plain = Stage(engines=2), Tier("plain", 10, guaranteed_share=reserve)
        stage.admission.tiers = {"plain": plain, "bronze": BRONZE}
        first = stage.place(stage.arrive(BRONZE, 60_000))
        if is_kept:
            with pytest.raises(NoEngineAdmissible):
                stage.place(stage.arrive(BRONZE, 60_000))
            assert stage.place(stage.arrive(plain, 400)).engine is not first.engine
        else:
            stage.place(stage.arrive(BRONZE, 60_000))


def test_what_has_lost_its_pod_is_not_rejected_at_the_door() -> None:
    """However long the queue is, and however late it is: until it has waited as long as it may; and it is first."""
    stage = Stage()
    stage.fill()
    queue = stage.admission.queues[MODEL]
    request = Request("lost", Api.CHAT, MODEL, cut_prompt(b"lost " * 240, 0), stream=True)
    caller, promise = Caller(Tenant("a", tier=GOLD)), objective_of(GOLD)
    with pytest.raises(RequestRejected):
        stage.admission.arrive(request, caller, promise, came_s=-9.0, now_s=0.0, draw=0.0)
    lost = stage.admission.arrive(request, caller, promise, came_s=-9.0, now_s=0.0, draw=0.0, late_by_s=30.0)
    stage.wait(lost)
    assert next(queue.by_rank()[0].heads()) is lost
    assert lost not in queue.overdue(29.0)
    assert lost in queue.overdue(30.1)
    assert not lost.tier_queue.defer(lost, 30.1)


def test_a_prompt_that_is_computed_again_is_charged_to_no_account() -> None:
    """Its tenant has paid for it; what is generated counts as ever, and shows no length of answers."""
    stage = Stage()
    request = Request("lost", Api.CHAT, MODEL, cut_prompt(b"lost " * 240, 0), stream=True)
    caller, before = Caller(Tenant("a", tier=GOLD)), stage.admission.forecast.mean("a", MODEL)
    waiter = stage.admission.arrive(
        request, caller, objective_of(GOLD), came_s=0.0, now_s=0.0, draw=0.0, late_by_s=30.0
    )
    placement = stage.place(waiter)
    assert waiter.charged == 2.0 * waiter.answer_tokens
    stage.admission.settle(waiter, placement, Usage(1_200, 7, 0), 1.0)
    assert waiter.tier_queue.fair_share.served("a") == pytest.approx(2.0 * 7 / caller.tenant.weight)
    assert stage.admission.forecast.mean("a", MODEL) == before


def test_who_waits_is_placed_on_an_engine_that_came_since() -> None:
    """The fleet grows while it waits: nobody else need come for the new engine to be looked at."""
    stage = Stage(engines=1)
    busy = stage.place(stage.arrive(BRONZE, 20_000))
    gold = stage.arrive(GOLD, 600)
    with pytest.raises(NoEngineAdmissible):
        stage.place(gold)
    stage.router.put_pod(Pod("http://new", PodState.READY, frozenset({MODEL}), ready_since_s=-1e6))
    stage.router.reshape_pod("http://new", [EngineShape(kv_tokens=1_000_000)])
    assert stage.place(gold).engine is not busy.engine


class Look:
    """A gate that opens to nobody and keeps what it was shown."""

    stream_objective: StreamObjective | None = None
    candidates: Candidates

    def admits(self, candidates: Candidates, at: int) -> bool:
        self.candidates = candidates
        return False


def test_a_pair_is_barred_where_its_prefill_would_stall_somebody() -> None:
    """Gold decodes on one of two engines: the other may decode what that one prefills only when gold has earned it."""
    stage = Stage(engines=2)
    gold = stage.place(stage.arrive(GOLD, 400))
    gold.first_token(0.1)
    long, look = stage.arrive(BRONZE, 60_000, now_s=0.1), Look()
    long.queue.tier_queues["bronze"].credit_s = 1.0
    with pytest.raises(NoEngineAdmissible):
        stage.router.place(long.request, avoid=frozenset(), now_s=0.1, draw=0.5, gate=look)
    engines = look.candidates.engines
    pairs = replace(look.candidates, prefillers=list(reversed(engines)), burden_s=[0.0, 0.0])
    by_gold = 1 - engines.index(gold.engine)
    assert not AdmissionFilter(stage.admission, long, 0.2).admits(pairs, by_gold)
    assert AdmissionFilter(stage.admission, long, 0.2).admits(pairs, 1 - by_gold)
    assert AdmissionFilter(stage.admission, long, 9.0).admits(pairs, by_gold)


def plainly_open(stage: Stage, waiter: WaitingRequest, seen: Candidates, now_s: float) -> list[bool]:
    """Every condition over every engine, written out."""
    promise, tier, lines = waiter.objective, waiter.objective.tier, waiter.queue.tier_queues.values()
    engines, is_late = len(seen.engines), waiter.start_by_s < now_s
    left_s = waiter.arrived_s + promise.ttft_s - now_s
    in_time = [
        left_s < 0 or over_s + ahead_s + own_s * (1 - promise.ttft_uncached_factor) <= left_s
        for over_s, ahead_s, own_s in zip(seen.prefill_overhead_s, seen.ahead_s, seen.own_s, strict=True)
    ]
    short = [ahead_s <= STEP_TOKENS * pace for ahead_s, pace in zip(seen.ahead_s, seen.seconds_per_token, strict=True)]
    needed = seen.prompt_tokens + waiter.answer_tokens
    fits = [not held or held + needed <= most for held, most in zip(seen.kv_tokens, seen.kv_capacity, strict=True)]
    borne = [
        own_s <= stage.admission.stalls.room_now_s(engine.slot, now_s)
        for own_s, engine in zip(seen.own_s, seen.engines, strict=True)
    ]
    opened = [all(each) for each in zip(in_time, short, fits, borne, strict=True)]
    for line in lines if is_late or waiter.tier_queue.credit_s <= 0 else ():
        within_s = line.tier.ttft_s
        wanted = max(line.demand.wanted(now_s), 1 if line.tier.guaranteed_share else 0)
        claimed = min(wanted, max(1, round(line.tier.guaranteed_share * engines)), engines - 1)
        heeded = (is_late or line.tier.priority > tier.priority) and wanted > 0
        if heeded and sum(ahead_s <= within_s for ahead_s in seen.ahead_s) <= claimed:
            for at, (ahead_s, own_s) in enumerate(zip(seen.ahead_s, seen.own_s, strict=True)):
                opened[at] = opened[at] and not ahead_s <= within_s < ahead_s + own_s
    return opened


@given(
    st.lists(
        st.tuples(
            st.sampled_from([GOLD, BRONZE]),
            st.sampled_from([300, 3_000, 9_000, 20_000]),
            st.floats(0.0, 0.4),
            st.integers(0, 3),
            st.booleans(),
        ),
        min_size=1,
        max_size=25,
    ),
    st.integers(1, 4),
)
def test_calling_one_engine_is_as_good_as_calling_all(
    visits: list[tuple[Tier, int, float, int, bool]], engines: int
) -> None:
    """In whatever state a few requests leave the fleet: beside all conditions over all engines, and nobody passes who
    may not.
    """
    stage, now_s, running = Stage(engines, kv_tokens=24_000), 0.0, list[Placement]()
    stage.admission.tiers = {GOLD.name: GOLD, BRONZE.name: BRONZE}
    for tier, tokens, pause_s, leaves, is_owed in visits:
        now_s += pause_s
        for _ in range(min(leaves, len(running))):
            placement = running.pop(0)
            if placement.first_token_s is None:
                placement.first_token(now_s)
                running.append(placement)
            else:
                placement.release(now_s)
        waiter, look = stage.arrive(tier, tokens, now_s), Look()
        waiter.tier_queue.credit_s = 1.0 if is_owed else 0.0
        with pytest.raises(NoEngineAdmissible):
            stage.router.place(waiter.request, avoid=frozenset(), now_s=now_s, draw=0.5, gate=look)
        requested = [
            AdmissionFilter(stage.admission, waiter, now_s).admits(look.candidates, at) for at in range(engines)
        ]
        opened = plainly_open(stage, waiter, look.candidates, now_s)
        assert requested == opened
        if not any(opened):
            with pytest.raises(NoEngineAdmissible):
                stage.place(waiter, now_s)
            continue
        running.append(stage.place(waiter, now_s))
        assert opened[look.candidates.engines.index(running[-1].engine)]


def test_requests_of_others_count_where_steps_are_learned() -> None:
    """Scrapes show them: a step that is as long as so many sequences make it says nothing of a slow engine."""
    stage = Stage(engines=1)
    prior, now_s, others = stage.router.costs.prior, 0.0, 40
    pace_s = prior.step_base_s + prior.step_per_sequence_s * (others + 1)
    stage.router.observe_load(0, ExternalLoad(others, 0, 0.0, now_s))
    before_s, base_s = stage.admission.stalls.step_s(0), stage.router.costs.step_base_s[0]
    for _ in range(30):
        waiter = stage.arrive(BRONZE, now_s=now_s)
        placement, usage = stage.place(waiter, now_s), Usage(1_200, 101, 0)
        placement.first_token(now_s + 0.1)
        now_s += 0.1 + 100 * pace_s
        stage.admission.settle(waiter, placement, usage, now_s)
        placement.settle(usage, now_s)
        placement.release(now_s)
        stage.router.observe_load(0, ExternalLoad(others, 0, 0.0, now_s))
    assert stage.admission.stalls.step_s(0) <= before_s
    assert stage.router.costs.step_base_s[0] == pytest.approx(base_s, rel=0.03)

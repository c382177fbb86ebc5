"""Waiting: granted in order, given up in the tick of leaving, and nothing kept of anybody."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.attempt import AttemptLimits
from gateway.pipeline.pipeline import RequestPipeline
from gateway.pipeline.record import Outcome
from routing.blocks import Prompt
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import Reason
from routing.request import Api, Request
from scorers.registry import routings
from simulator.clock import run_virtually
from simulator.profile import Profile
from simulator.sequence import Sequence
from simulator.virtual_carrier import VirtualCarrier
from simulator.virtual_pod import VirtualPod
from tenancy.admission import Admission
from tenancy.objective import Tier
from tenancy.tenants import ANONYMOUS_CALLER, Caller, Tenant

MODEL = "m"
TIERS = {
    "gold": Tier("gold", 10, ttft_s=1.0, ttft_uncached_factor=2.0, tpot_s=0.05, guaranteed_share=0.5),
    "bronze": Tier("bronze", -10, ttft_s=15.0, ttft_uncached_factor=5.0, tpot_s=0.15),
}
CALLERS = {name: Caller(Tenant(name, tier=tier)) for name, tier in TIERS.items()} | {"nobody": ANONYMOUS_CALLER}


class Stage:
    """Virtual engines behind a room; made within a loop."""

    def __init__(self, engines: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.pods = {f"p{number}": VirtualPod(Profile(), loop) for number in range(engines)}
        self.router = Router(routings()["least-loaded"], exact_sizes=True)
        self.admission = Admission(self.router)
        self.room = AdmissionQueue(self.router, clock=loop.time, draw=lambda: 0.5, admission=self.admission)
        self.outcomes: list[Outcome] = []
        self.pipeline = RequestPipeline(
            self.router,
            health=lambda _pod, _end: None,
            observers=[self.outcomes.append],
            clock=loop.time,
            wall_clock=loop.time,
            draw=lambda: 0.5,
            limits=AttemptLimits(),
            queue=self.room,
        )
        for url in self.pods:
            self.open(url)

    def open(self, url: str) -> None:
        self.router.put_pod(Pod(url, PodState.READY, frozenset({MODEL}), ready_since_s=-1e6))
        self.router.reshape_pod(url, [EngineShape(kv_tokens=1_000_000)])

    def ask(self, name: str, caller: str, prompt_tokens: int, answer_tokens: int) -> asyncio.Task[None]:
        request = Request(name, Api.CHAT, MODEL, Prompt((), (), prompt_tokens), stream=True)
        carrier = VirtualCarrier(self.pods, Sequence(name, prompt_tokens, answer_tokens))
        return asyncio.create_task(self.pipeline.handle_request(request, carrier, caller=CALLERS[caller]))

    def is_empty(self) -> bool:
        """Whether nothing is kept of anybody."""
        lines = [line for queue in self.admission.queues.values() for line in queue.tier_queues.values()]
        return (
            self.router.ledger.is_empty()
            and not self.room.has_waiters()
            and not self.room._granted
            and all(line.waiting == 0 and not line.fair_share._open for line in lines)
            and not self.admission.stalls.room_s
        )


def test_who_has_no_objective_never_waits() -> None:
    """However crowded it is, it is placed in the tick of its coming."""

    async def play() -> None:
        stage = Stage()
        tasks = [stage.ask(f"b{number}", "bronze", 20_000, 100) for number in range(5)]
        tasks.append(stage.ask("n", "nobody", 20_000, 100))
        await asyncio.sleep(0.001)
        assert stage.room.has_waiters()
        assert stage.pods["p0"].statistics().waiting + stage.pods["p0"].statistics().running == 2
        await asyncio.wait(tasks)
        assert stage.is_empty()

    run_virtually(play())


def test_a_wait_is_a_share_of_its_own_bound() -> None:
    """It grows with time, is none without waiters, and tiers that use what is idle do not count."""

    async def play() -> None:
        stage = Stage()
        assert stage.room.max_wait_share() == 0.0
        tasks = [stage.ask(f"b{number}", "bronze", 20_000, 100) for number in range(5)]
        shares = []
        for _ in range(3):
            await asyncio.sleep(0.3)
            shares.append(stage.room.max_wait_share())
        assert 0.0 < shares[0] < shares[1] < shares[2] < 0.1
        for queued in stage.room._queued.values():
            queued.waiter.objective = structs.replace(
                queued.waiter.objective, tier=replace(TIERS["bronze"], is_best_effort=True)
            )
        assert stage.room.max_wait_share() == 0.0
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run_virtually(play())


def test_a_full_queue_is_left_by_bronze_for_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gold that finds no engine waits, and one of the many of bronze is rejected instead of it; nothing leaks."""
    monkeypatch.setattr("tenancy.admission.MAX_WAITING", 3)

    async def play() -> None:
        stage = Stage()
        tasks = [stage.ask(f"b{number}", "bronze", 9_000, 100) for number in range(20)]
        await asyncio.sleep(0.001)
        rejected = len(stage.outcomes)
        assert sum(queue.waiting for queue in stage.admission.queues.values()) == 3
        gold = stage.ask("g", "gold", 600, 100)
        await asyncio.sleep(0.001)
        assert sum(queue.waiting for queue in stage.admission.queues.values()) == 3
        assert len(stage.outcomes) == rejected + 1
        assert (stage.outcomes[-1].tenant, stage.outcomes[-1].reason) == ("bronze", Reason.QUEUE_FULL)
        await asyncio.wait([*tasks, gold])
        served = next(outcome for outcome in stage.outcomes if outcome.tenant == "gold")
        assert (served.status, served.slo_met) == (200, True)
        assert stage.is_empty()

    run_virtually(play())


def test_gold_goes_before_bronze_that_came_first() -> None:
    """Once both have to wait."""

    async def play() -> list[Outcome]:
        stage = Stage()
        tasks = [stage.ask(f"b{number}", "bronze", 12_000, 300) for number in range(4)]
        await asyncio.sleep(0.3)
        tasks.append(stage.ask("g", "gold", 1_200, 10))
        await asyncio.wait(tasks)
        assert stage.is_empty()
        return sorted(stage.outcomes, key=lambda one: one.at_s - one.duration_s + (one.ttft_s or 99.0))

    order = [outcome.id for outcome in run_virtually(play())]
    assert order.index("g") <= 1


def test_who_leaves_frees_its_place_in_the_same_tick() -> None:
    """A cancelled waiter is gone before anything else happens."""

    async def play() -> None:
        stage = Stage()
        first = stage.ask("a", "bronze", 20_000, 100)
        second = stage.ask("b", "bronze", 20_000, 100)
        await asyncio.sleep(0.001)
        assert stage.admission.queues[MODEL].waiting == 1
        second.cancel()
        await asyncio.wait([second])
        assert stage.admission.queues[MODEL].waiting == 0
        assert not stage.room.has_waiters()
        await first
        assert stage.is_empty()

    run_virtually(play())


def test_where_no_pod_is_ready_one_is_waited_for() -> None:
    """From zero to the first pod, under a limit of its own; then it is what it was without: 503."""

    async def play(comes_s: float) -> Outcome:
        stage, loop = Stage(), asyncio.get_running_loop()
        stage.room._no_pod_s = 5.0
        pod = stage.router.fleet.pod("p0")
        assert pod is not None
        stage.router.put_pod(replace(pod, state=PodState.STARTING))
        loop.call_later(comes_s, stage.router.put_pod, pod)
        await stage.ask("n", "nobody", 1_000, 10)
        return stage.outcomes[0]

    assert run_virtually(play(2.0)).status == 200
    assert run_virtually(play(9.0)).reason is Reason.NO_POD_READY


def test_where_the_model_has_no_pod_at_all_one_is_waited_for() -> None:
    """Scaled from zero: discovery knows of none, but the operator names the model."""

    async def play(*named: str) -> Outcome:
        stage, loop = Stage(), asyncio.get_running_loop()
        stage.room._no_pod_s = 5.0
        stage.router.fleet.configured_models = frozenset(named)
        for url in stage.pods:
            stage.router.remove_pod(url)
        loop.call_later(2.0, stage.open, "p0")
        await stage.ask("n", "nobody", 1_000, 10)
        return stage.outcomes[0]

    assert run_virtually(play(MODEL)).status == 200
    assert run_virtually(play()).reason is Reason.UNKNOWN_MODEL


@pytest.mark.parametrize(("comes_s", "status"), [(3.0, 200), (9.0, 503)])
def test_a_room_that_has_just_opened_waits_for_its_first_pod(comes_s: float, status: int) -> None:
    """None has told yet what it serves; once one has, nobody waits for others."""

    async def play(*, has_told: bool) -> Outcome:
        stage, loop = Stage(), asyncio.get_running_loop()
        stage.room._first_pod_s = 5.0
        for url in stage.pods:
            stage.router.put_pod(Pod(url, has_reported_models=has_told))
        loop.call_later(comes_s, stage.open, "p0")
        await stage.ask("n", "nobody", 1_000, 10)
        return stage.outcomes[0]

    assert run_virtually(play(has_told=False)).status == status
    assert run_virtually(play(has_told=True)).status == 404


def test_overload_is_rejected_at_once_and_says_when_to_come_again() -> None:
    """Who would wait for nothing does not wait."""

    async def play() -> list[Outcome]:
        stage = Stage()
        tasks = []
        for number in range(200):
            tasks.append(stage.ask(f"g{number}", "gold", 6_000, 100))
            await asyncio.sleep(0.05)
        await asyncio.wait(tasks)
        assert stage.is_empty()
        return stage.outcomes

    outcomes = run_virtually(play())
    rejected = [outcome for outcome in outcomes if outcome.reason is Reason.OVERLOADED]
    assert 50 < len(rejected) < 190
    assert sorted(one.duration_s for one in rejected)[len(rejected) // 2] < 0.05


@dataclass(frozen=True)
class Visit:
    """A client: when it comes after the one before, what it asks, when it goes before its time."""

    after_s: float
    caller: str
    prompt_tokens: int
    answer_tokens: int
    stays_s: float | None


VISITS = st.lists(
    st.builds(
        Visit,
        st.sampled_from([0.0, 0.0, 0.05, 0.5]),
        st.sampled_from(["gold", "gold", "bronze", "bronze", "nobody"]),
        st.sampled_from([10, 1_000, 9_000, 30_000]),
        st.sampled_from([1, 20, 200]),
        st.none() | st.sampled_from([0.0, 0.02, 0.3, 2.0]),
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None)
@given(VISITS, st.sampled_from([1, 2]), st.none() | st.sampled_from([0.1, 1.0]))
def test_every_wait_ends_and_nothing_leaks(visits: list[Visit], engines: int, loss_s: float | None) -> None:
    """Clients leave and a pod is lost at any moment: every task ends, every outcome is told once, all is given back."""

    async def play() -> None:
        stage, loop = Stage(engines), asyncio.get_running_loop()
        if loss_s is not None:
            loop.call_later(loss_s, stage.router.remove_pod, "p0")
        tasks = []
        for number, visit in enumerate(visits):
            await asyncio.sleep(visit.after_s)
            task = stage.ask(str(number), visit.caller, visit.prompt_tokens, visit.answer_tokens)
            tasks.append(task)
            if visit.stays_s is not None:
                loop.call_later(visit.stays_s, task.cancel)
        await asyncio.wait(tasks, timeout=1_000)
        assert all(task.done() for task in tasks)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        assert stage.is_empty()

    run_virtually(play())


@settings(deadline=None, max_examples=50)
@given(VISITS)
def test_no_one_waits_while_an_engine_could_take_him(visits: list[Visit]) -> None:
    """Work conserving: whenever all is quiet, the first in rank would be told not now."""

    async def play() -> None:
        stage, loop = Stage(1), asyncio.get_running_loop()
        tasks = []
        for number, visit in enumerate(visits):
            await asyncio.sleep(visit.after_s)
            tasks.append(stage.ask(str(number), visit.caller, visit.prompt_tokens, visit.answer_tokens))
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.021)
            if stage.room.has_waiters() and stage.router.ledger.is_empty():
                raise AssertionError(f"an idle engine, and somebody waits at {loop.time()}")

    run_virtually(play())

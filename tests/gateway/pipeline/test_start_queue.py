"""Waiting for a model's first pod: the signal at once, by tier, within the tier's wait, and an honest rejection."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf

import pytest

from gateway.pipeline.record import Outcome
from gateway.pipeline.rejections import rejection_headers
from gateway.pipeline.request_context import RequestContext
from gateway.pipeline.start_queue import StartQueue
from gateway.scaling.demand import DemandMeter, MeteredAdmissionQueue
from routing.pods import PodState
from routing.rejection import Reason, RequestRejected
from routing.request import Api, Request
from simulator.clock import run_virtually
from tenancy.objective import Tier, objective_of
from tenancy.tenants import Caller, Tenant
from tests.gateway.pipeline.test_admission_queue import CALLERS, MODEL, Stage

HASTY = Tier("hasty", 5, ttft_s=1.0, tpot_s=0.1, max_queue_s=2.0)


class EmptyStage(Stage):
    """A stage whose pod is not ready, and a policy that has it started."""

    def __init__(self, start_s: float = 10.0) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.needed: list[float] = []
        self.start_s = start_s
        self.pod = self.router.fleet.pod("p0")
        assert self.pod is not None
        self.router.put_pod(replace(self.pod, state=PodState.STARTING))
        self.router.fleet.configured_models = frozenset({MODEL})
        self.room.starts = StartQueue(
            self.router.fleet,
            clock=loop.time,
            covers=lambda model: model == MODEL,
            remaining_s=lambda _: self.start_s,
            on_needed=lambda _: self.needed.append(loop.time()),
        )

    def start(self, after_s: float) -> None:
        """The pod becomes ready."""
        assert self.pod is not None
        asyncio.get_running_loop().call_later(after_s, self.router.put_pod, self.pod)


def test_a_request_raises_the_signal_at_once_and_is_served_by_the_pod_that_comes() -> None:
    """Though its TTFT objective is long missed by then; its tenant pays for its prompt."""

    async def play() -> Outcome:
        stage = EmptyStage()
        stage.start(8.0)
        await stage.ask("g", "gold", 1_000, 10)
        assert stage.needed == [0.0]
        assert stage.is_empty()
        assert not stage.room.waiting_for_pod
        return stage.outcomes[0]

    outcome = run_virtually(play())
    assert outcome.status == 200
    assert outcome.slo_met is False
    assert 8.0 <= outcome.queue_wait_s < 8.2


def test_the_highest_tier_is_woken_first() -> None:
    """Whoever came first; each goes on through admission."""

    async def play() -> list[str]:
        stage = EmptyStage()
        stage.start(5.0)
        tasks = [stage.ask(f"b{number}", "bronze", 20_000, 10) for number in range(3)]
        await asyncio.sleep(0.1)
        tasks.append(stage.ask("g", "gold", 500, 10))
        await asyncio.wait(tasks)
        assert {outcome.status for outcome in stage.outcomes} == {200}
        return sorted((one.id for one in stage.outcomes), key=lambda name: _first_s(stage, name))

    assert run_virtually(play())[0] == "g"


def _first_s(stage: Stage, name: str) -> float:
    one = next(outcome for outcome in stage.outcomes if outcome.id == name)
    return one.at_s - one.duration_s + (one.ttft_s or inf)


def test_a_tier_that_waits_for_less_than_the_start_is_rejected_at_once() -> None:
    """With the remaining time; the signal stays raised for its return."""
    CALLERS["hasty"] = Caller(Tenant("hasty", tier=HASTY))

    async def play() -> Outcome:
        stage = EmptyStage(start_s=10.0)
        await stage.ask("h", "hasty", 1_000, 10)
        assert stage.needed == [0.0]
        return stage.outcomes[0]

    outcome = run_virtually(play())
    assert outcome.reason is Reason.NO_POD_READY
    assert outcome.duration_s == 0.0
    assert "expected in 10 s; tier `hasty` waits 2 s" in outcome.error


def test_a_start_that_takes_longer_than_expected_ends_in_a_rejection() -> None:
    """When the tier's wait is over, never later."""

    async def play() -> tuple[Outcome, int]:
        stage = EmptyStage(start_s=10.0)
        await stage.ask("g", "gold", 1_000, 10)
        starts = stage.room.starts
        assert starts is not None
        return stage.outcomes[0], len(starts.held)

    outcome, held = run_virtually(play())
    assert outcome.reason is Reason.NO_POD_READY
    assert 29.9 < outcome.duration_s < 30.1
    assert held == 0


def test_a_client_that_leaves_is_no_longer_held() -> None:
    """In the same tick."""

    async def play() -> None:
        stage = EmptyStage()
        task = stage.ask("g", "gold", 1_000, 10)
        await asyncio.sleep(0.1)
        starts = stage.room.starts
        assert starts is not None
        assert len(starts.held) == 1
        task.cancel()
        await asyncio.wait([task])
        assert not starts.held
        assert not stage.room.waiting_for_pod

    run_virtually(play())


def test_other_models_wait_as_before() -> None:
    """A model that no autoscaler starts is rejected at once without `scale_from_zero_s`."""

    async def play() -> Outcome:
        stage = EmptyStage()
        starts = stage.room.starts
        assert starts is not None
        starts.covers = lambda _: False
        await stage.ask("g", "gold", 1_000, 10)
        assert stage.needed == []
        return stage.outcomes[0]

    assert run_virtually(play()).reason is Reason.NO_POD_READY


def test_what_is_held_is_counted_by_tier() -> None:
    """A decision about engines reads it; the metered queue counts placements once they are made."""

    async def play() -> None:
        stage = EmptyStage()
        queue = MeteredAdmissionQueue(
            stage.router, clock=asyncio.get_running_loop().time, draw=lambda: 0.5, admission=stage.admission
        )
        queue.meter = DemandMeter(stage.router, clock=asyncio.get_running_loop().time)
        queue.starts, stage.pipeline._queue = stage.room.starts, queue
        stage.room = queue
        stage.start(4.0)
        tasks = [stage.ask("g", "gold", 1_000, 10), stage.ask("b", "bronze", 2_000, 10)]
        await asyncio.sleep(1.0)
        figures = queue.queued_figures()
        assert {key: one.queued_prefill_tokens for key, one in figures.items()} == {
            (MODEL, "gold"): 1_000.0,
            (MODEL, "bronze"): 2_000.0,
        }
        assert figures[MODEL, "gold"].oldest_queued_s == 1.0
        await asyncio.wait(tasks)
        assert {each.tier: each.requests for each in queue.meter.take({}, {}).tiers} == {"gold": 1.0, "bronze": 1.0}
        assert queue.queued_figures() == {}

    run_virtually(play())


def test_the_rejection_says_when_to_return() -> None:
    """As the header that clients follow."""

    async def play() -> RequestRejected:
        stage = EmptyStage(start_s=42.0)
        starts = stage.room.starts
        assert starts is not None
        context = _context()
        with pytest.raises(RequestRejected) as caught:
            await starts.wait(context, context.objective, 0.0)
        return caught.value

    assert rejection_headers(run_virtually(play()))["retry-after"] == "42"


def _context() -> RequestContext:
    request = Request("x", Api.CHAT, MODEL)
    return RequestContext(request, CALLERS["gold"], objective_of(HASTY), asyncio.get_running_loop().time())


def test_one_tenant_fills_no_more_than_half_of_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are held as before; what is counted of a tenant ends with its requests."""
    monkeypatch.setattr("gateway.pipeline.start_queue.MAX_WAITING", 8)

    async def play() -> tuple[list[Reason | None], int]:
        stage = EmptyStage()
        tasks = [stage.ask(f"b{number}", "bronze", 1_000, 10) for number in range(20)]
        await asyncio.sleep(0.1)
        tasks.append(stage.ask("g", "gold", 1_000, 10))
        stage.start(5.0)
        await asyncio.wait(tasks)
        starts = stage.room.starts
        assert starts is not None
        assert not starts._by_tenant
        return [one.reason for one in stage.outcomes if one.id == "g"], len(
            [one for one in stage.outcomes if one.reason is Reason.QUEUE_FULL]
        )

    assert run_virtually(play()) == ([None], 16)

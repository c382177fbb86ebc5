"""Many clients that hang up together: whatever the moment, the room serves everybody else afterwards."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from gateway.pipeline.record import Outcome
from gateway.pipeline.request_context import RequestContext
from gateway.runtime.guard import LOOP_CONTEXT_KEY
from routing.blocks import Prompt
from routing.request import Api, Request
from simulator.clock import VirtualLoop, run_virtually
from tenancy.objective import objective_of
from tenancy.queue import ModelQueue
from tests.gateway.pipeline.test_admission_queue import CALLERS, MODEL, TIERS, Stage

QUEUED = 30


@pytest.mark.parametrize("turns_apart", [0, 1, 2])
def test_clients_that_hang_up_before_the_look_affect_no_other_request(turns_apart: int) -> None:
    """An engine becomes free, and all waiters are cancelled in a turn of the loop close to the look at the queue."""

    async def play() -> None:
        stage, loop = Stage(), asyncio.get_running_loop()
        faults: list[dict[str, object]] = []
        loop.set_exception_handler(lambda _, context: faults.append(context))
        for _ in range(4):
            tasks = [stage.ask(f"b{number}", "bronze", 12_000, 100) for number in range(QUEUED)]
            await asyncio.sleep(0.5)
            waiting = {int(seat.waiter.request.id[1:]) for seat in stage.room._queued.values()}
            assert waiting
            for number, task in enumerate(tasks):
                if number not in waiting:
                    task.cancel()
            for _ in range(turns_apart):
                await asyncio.sleep(0)
            for number in waiting:
                tasks[number].cancel()
            await asyncio.wait(tasks)
            assert stage.is_empty()
            await asyncio.wait_for(stage.ask("g", "gold", 1_000, 10), 5.0)
            assert stage.outcomes[-1].status == 200
        assert not faults

    run_virtually(play())


def test_waiters_that_are_cancelled_while_they_are_rejected_end_no_loop() -> None:
    """No pod is left, all waiters are rejected in one look, and the first draw of that look cancels them all."""
    play = HangUps()
    play.lose("p1")
    play.ask(["bronze"] * 6, 15_000, 300)
    play.lose("p0")
    play.hang_up("in", runs=True, waits=True, apart=0)
    play.teardown()


class Planted(Exception):  # noqa: N818 - a name, not a kind of error
    """What the tests throw."""


async def crowd(stage: Stage) -> list[asyncio.Task[None]]:
    """Requests of bronze, some of which wait."""
    tasks = [stage.ask(f"b{number}", "bronze", 12_000, 100) for number in range(8)]
    await asyncio.sleep(0.05)
    assert stage.room.has_waiters()
    return tasks


@pytest.mark.parametrize("name", ["place", "overload_rejection", "queues"])
def test_the_queue_goes_on_after_an_exception_in_the_look(name: str) -> None:
    """Whatever raises once inside the look: every request ends, nothing leaks, the next one is served."""

    async def play() -> None:
        stage, loop = Stage(), asyncio.get_running_loop()
        reported: list[BaseException] = []
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        tasks = await crowd(stage)
        if name == "overload_rejection":
            tasks += [stage.ask(f"n{number}", "nobody", 60_000, 10) for number in range(20)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*_raising_once(stage, name))
            await asyncio.wait(tasks)
        assert [type(error) for error in reported] == [Planted]
        assert stage.is_empty()
        await asyncio.wait_for(stage.ask("g", "gold", 1_000, 10), 5.0)
        assert stage.outcomes[-1].status == 200

    run_virtually(play())


def _raising_once(stage: Stage, name: str) -> tuple[object, str, object]:
    raised = False

    def first() -> bool:
        nonlocal raised
        was, raised = raised, True
        return not was

    admission = stage.admission
    if name == "queues":  # The whole look fails.
        queues = admission.queues

        class Breaking(dict[str, ModelQueue]):
            def values(self) -> Any:
                if first():
                    raise Planted
                return queues.values()

        return admission, "queues", Breaking(queues)
    complete = getattr(admission, name)

    def raising(*args: object, **named: object) -> object:
        if first():
            raise Planted
        return complete(*args, **named)

    return admission, name, raising


def test_a_charge_whose_request_has_ended_is_found_and_given_back() -> None:
    """What an exception left over in the ledger is returned after the next one that is caught, and only that."""

    async def play() -> None:
        stage, loop = Stage(2), asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        alive = stage.ask("alive", "bronze", 1_000, 300)
        await asyncio.sleep(0.05)
        admission, room = stage.admission, stage.room

        async def lose() -> None:
            request = Request("lost", Api.CHAT, MODEL, Prompt((), (), 100), stream=True)
            objective = objective_of(TIERS["bronze"])
            context = RequestContext(request, CALLERS["bronze"], objective, loop.time())
            try:
                await room.place(context, objective, frozenset(), loop.time())
            finally:
                context.has_ended = True

        await asyncio.create_task(lose())
        assert sum(stage.router.ledger.running) == 2
        room.reconcile()
        assert sum(stage.router.ledger.running) == 1
        assert list(admission.queues[MODEL].tier_queues["bronze"].fair_share._open.values()) == [1]
        await alive
        assert stage.outcomes[-1].status == 200
        assert stage.is_empty()

    run_virtually(play())


def test_a_request_that_left_the_pipeline_unsettled_is_found() -> None:
    """Its charge stands until the next look for leaks, and no longer."""

    async def play() -> None:
        stage = Stage()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage.pipeline, "_settle", lambda *_: None)
            await stage.ask("lost", "bronze", 1_000, 10)
        assert not stage.is_empty()
        stage.room.reconcile()
        assert stage.is_empty()

    run_virtually(play())


def test_an_observer_that_raises_keeps_no_other_from_its_outcome() -> None:
    """Nor does the request end otherwise."""

    async def play() -> list[str]:
        stage, reported = Stage(), list[str]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context[LOOP_CONTEXT_KEY]))

        def fail(_: Outcome) -> None:
            raise Planted

        stage.pipeline.observers = (fail, *stage.pipeline.observers)
        await stage.ask("n", "nobody", 1_000, 10)
        assert stage.outcomes[0].status == 200
        return reported

    assert run_virtually(play()) == ["observer"]


class HangUps(RuleBasedStateMachine):
    """Clients that come and go in crowds, at every moment of the look at the queue; policies and pods that change."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.runner.run(self.begin())

    async def begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.faults: list[object] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self.stage = Stage(2)
        self.stage.room._draw = self.draw
        self.tasks: list[asyncio.Task[None]] = []
        self.in_look: list[asyncio.Task[None]] = []

    def draw(self) -> float:
        """Drawn in every look: the moment in which some hang up."""
        while self.in_look:
            self.in_look.pop().cancel()
        return 0.5

    @rule(
        callers=st.lists(st.sampled_from(["bronze", "bronze", "gold", "nobody"]), min_size=6, max_size=16),
        prompt_tokens=st.sampled_from([15_000, 3_000, 10]),
        answer_tokens=st.sampled_from([300, 30, 1]),
    )
    def ask(self, callers: list[str], prompt_tokens: int, answer_tokens: int) -> None:
        async def come() -> None:
            for caller in callers:
                name = str(len(self.tasks))
                self.tasks.append(self.stage.ask(name, caller, prompt_tokens, answer_tokens))
            await asyncio.sleep(0)

        self.runner.run(come())

    @rule(seconds=st.sampled_from([0.001, 0.0, 0.02, 0.3, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @rule(
        moment=st.sampled_from(["with", "before", "in", "after"]),
        runs=st.sampled_from([True, True, False]),
        waits=st.sampled_from([True, True, False]),
        apart=st.integers(0, 2),
    )
    def hang_up(self, moment: str, runs: bool, waits: bool, apart: int) -> None:
        """All that run, all that wait, or both; close to a look."""

        async def go() -> None:
            stage = self.stage
            waiting = {seat.waiter.request.id for seat in stage.room._queued.values()}
            left = [(str(number) in waiting, task) for number, task in enumerate(self.tasks) if not task.done()]
            gone = [task for is_waiting, task in left if (waits if is_waiting else runs)]
            if moment == "in":
                self.in_look += gone
            if moment in ("in", "before"):
                stage.room.wake_waiters()
            if moment == "in":
                await asyncio.sleep(0)
                return
            for task in [task for is_waiting, task in left if task in gone and not is_waiting]:
                task.cancel()
            for _ in range(apart):
                await asyncio.sleep(0)
            for task in gone:
                task.cancel()
            if moment == "with":
                stage.room._grant_all()
            stage.room.wake_waiters()

        self.runner.run(go())

    @rule(reserve=st.sampled_from([0.0, 0.3, 0.9]), priority=st.sampled_from([-20, 10]))
    def reload(self, reserve: float, priority: int) -> None:
        """Another policy: tiers are other values of the same names."""
        gold, bronze = TIERS["gold"], TIERS["bronze"]
        self.stage.admission.tiers = {
            "gold": dataclasses.replace(gold, guaranteed_share=reserve),
            "bronze": dataclasses.replace(bronze, priority=priority),
        }

    @rule(url=st.sampled_from(["p0", "p1"]))
    def lose(self, url: str) -> None:
        async def gone() -> None:
            if self.stage.router.fleet.pod(url) is not None:
                self.stage.router.remove_pod(url)

        self.runner.run(gone())

    @rule(url=st.sampled_from(["p0", "p1"]))
    def come_back(self, url: str) -> None:
        async def back() -> None:
            if self.stage.router.fleet.pod(url) is None:
                self.stage.open(url)

        self.runner.run(back())

    def teardown(self) -> None:
        try:
            self.runner.run(self.end())
        finally:
            self.runner.close()

    async def end(self) -> None:
        """All who stay are answered or refused; then nothing is left, and the next one is served at once."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=1_000)
        assert all(task.done() for task in self.tasks)
        assert all(task.cancelled() or task.exception() is None for task in self.tasks)
        assert self.stage.is_empty()
        assert not self.faults
        for url in ("p0", "p1"):
            if self.stage.router.fleet.pod(url) is None:
                self.stage.open(url)
        await asyncio.wait_for(self.stage.ask("next", "gold", 1_000, 10), 5.0)
        assert self.stage.outcomes[-1].status == 200
        assert self.stage.outcomes[-1].queue_wait_s == 0.0
        assert self.stage.is_empty()


TestHangUps = HangUps.TestCase
TestHangUps.settings = settings(deadline=None, max_examples=100, stateful_step_count=30)

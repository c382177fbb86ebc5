"""Many clients that hang up together: whatever the moment, the room serves everybody else afterwards."""

from __future__ import annotations

import asyncio

import pytest

from simulator.clock import run_virtually
from tests.gateway.spine.test_room import Stage

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
            waiting = {int(seat.waiter.request.id[1:]) for seat in stage.room._seats.values()}
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

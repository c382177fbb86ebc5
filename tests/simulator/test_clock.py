"""The virtual loop keeps asyncio's promises and wastes no real time."""

import asyncio
import socket

import pytest

from simulator.clock import Deadlock, VirtualLoop, run_virtually


def test_an_hour_of_sleep_ends_at_exactly_an_hour() -> None:
    """The clock jumps to the timer itself, not to a sum of waits."""

    async def sleep() -> list[float]:
        loop = asyncio.get_running_loop()
        seen = [loop.time()]
        for wait_s in (0.1, 0.2, 3600.0, 1e-7):
            await asyncio.sleep(wait_s)
            seen.append(loop.time())
        return seen

    assert run_virtually(sleep()) == [0.0, 0.1, 0.1 + 0.2, 0.1 + 0.2 + 3600.0, 0.1 + 0.2 + 3600.0 + 1e-7]


def test_timers_fire_in_order_of_time_and_the_ready_go_first() -> None:
    """Whatever is ready runs before the clock moves, also when it makes more that is ready."""
    order: list[tuple[str, float]] = []

    async def note() -> None:
        loop = asyncio.get_running_loop()

        def log_event(word: str) -> None:
            order.append((word, loop.time()))

        def say_twice() -> None:
            log_event("ready")
            loop.call_soon(log_event, "made by ready")

        done = loop.create_future()
        loop.call_at(2.0, done.set_result, None)
        loop.call_at(2.0, log_event, "second")
        loop.call_at(1.0, log_event, "first")
        loop.call_soon(say_twice)
        await done

    run_virtually(note())
    assert order == [("ready", 0.0), ("made by ready", 0.0), ("first", 1.0), ("second", 2.0)]


def test_a_cancelled_timer_does_not_hold_the_clock() -> None:
    """The clock leaps over timers that nobody waits for any more."""

    async def sleep() -> float:
        loop = asyncio.get_running_loop()
        handles = [loop.call_at(at, order.append, at) for at in (5.0, 1.0, 3.0)]
        handles[1].cancel()
        handles[0].cancel()
        await asyncio.sleep(4.0)
        return loop.time()

    order: list[float] = []
    assert run_virtually(sleep()) == 4.0
    assert order == [3.0]


def test_timeouts_and_cancellation_work_as_they_do_in_real_time() -> None:
    """`asyncio.timeout` cuts at its virtual time, and what it cuts is cleaned up."""
    cleaned: list[float] = []

    async def wait_long() -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            cleaned.append(asyncio.get_running_loop().time())

    async def cut() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.5):
                await wait_long()
        task = asyncio.create_task(wait_long())
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time()

    assert run_virtually(cut()) == 8.5
    assert cleaned == [7.5, 8.5]


def test_a_deadlock_is_named_not_waited_for() -> None:
    """When nothing can ever happen again the run ends with the names of those who wait."""

    async def wait_for_ever() -> None:
        await asyncio.sleep(2.0)
        await asyncio.create_task(asyncio.Event().wait(), name="stuck")

    with pytest.raises(Deadlock, match=r"at 2\.000 s.*stuck"):
        run_virtually(wait_for_ever())


def test_errors_and_results_come_through() -> None:
    """`run_virtually` gives back what main returns and raises what it raises."""

    async def fail() -> None:
        await asyncio.sleep(1.0)
        raise ValueError("mine")

    async def succeed() -> str:
        return "done"

    with pytest.raises(ValueError, match="mine"):
        run_virtually(fail())
    assert run_virtually(succeed()) == "done"


def test_the_world_outside_is_rejected() -> None:
    """Threads and sockets would be overtaken by the clock, so asking for them is an error, not a hang."""

    async def think() -> None:
        await asyncio.to_thread(int)

    async def listen() -> None:
        with socket.socket() as ear:
            asyncio.get_running_loop().add_reader(ear, int)

    with pytest.raises(RuntimeError, match="no threads"):
        run_virtually(think())
    with pytest.raises(RuntimeError, match="no sockets"):
        run_virtually(listen())


def test_its_repr_says_what_time_it_is() -> None:
    """For the debugger's sake."""
    loop = VirtualLoop()
    try:
        assert repr(loop) == "<VirtualLoop at 0.000000 s, 0 timers>"
    finally:
        loop.close()

"""Engines that step together: each step lasts as long as that of the busiest one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from simulator.clock import run_virtually
from simulator.engine import Engine
from simulator.lockstep import Lockstep
from simulator.profile import Profile
from simulator.sequence import Milestone, MilestoneKind, Sequence
from simulator.virtual_pod import VirtualPod

PROFILE = Profile(
    prefill_tokens_per_s=1_000.0,
    prefill_quadratic_tokens=1e30,
    step_base_s=0.01,
    step_per_sequence_s=0.0,
    step_per_kv_token_s=0.0,
    max_num_batched_tokens=1_000,
)
"""A step takes 10 ms, and 1 ms for each token of prefill."""


def times_of(play: Callable[[list[VirtualPod], Callable[[Milestone], None]], Awaitable[None]]) -> dict[str, float]:
    """When each sequence had its first token, and when it ended, on two engines that step together."""
    seen: dict[str, float] = {}

    def note(milestone: Milestone) -> None:
        kind = "first" if milestone.kind is MilestoneKind.FIRST_TOKEN else "end"
        seen[f"{milestone.sequence_id} {kind}"] = round(milestone.at, 6)

    async def run() -> None:
        loop, steps = asyncio.get_running_loop(), Lockstep()
        await play([VirtualPod(PROFILE, loop, lockstep=steps) for _ in range(2)], note)

    run_virtually(run())
    return seen


def test_prefill_on_one_engine_stalls_the_streams_of_the_other() -> None:
    """A prompt of 2,500 tokens takes three steps; the stream beside it makes a token in each of them and no more."""

    async def play(pods: list[VirtualPod], note: Callable[[Milestone], None]) -> None:
        pods[0].submit(Sequence("stream", 10, 12), note)
        await asyncio.sleep(0.1)
        pods[1].submit(Sequence("prompt", 2_500, 1), note)
        await asyncio.sleep(10)

    seen = times_of(play)
    # The stream's first token comes at 20 ms, the next ones every 10 ms; the prompt waits for the step in flight.
    assert seen["stream first"] == 0.02
    assert seen["prompt first"] == pytest.approx(0.1 + 2.5 + 0.03)
    assert seen["stream end"] == seen["prompt end"]


def test_prefill_of_both_in_the_same_steps_takes_no_longer() -> None:
    """Two equal prompts that come together are done when one alone would be."""

    async def play(pods: list[VirtualPod], note: Callable[[Milestone], None]) -> None:
        for at, pod in enumerate(pods):
            pod.submit(Sequence(f"{at}", 900, 1), note)
        await asyncio.sleep(10)

    assert times_of(play) == {"0 first": 0.91, "1 first": 0.91, "0 end": 0.91, "1 end": 0.91}


def test_a_short_prompt_waits_for_the_step_of_the_long_one() -> None:
    """It arrives in the middle of the other's step, and joins the next one, which is as long as the other's."""

    async def play(pods: list[VirtualPod], note: Callable[[Milestone], None]) -> None:
        pods[0].submit(Sequence("long", 2_000, 1), note)
        await asyncio.sleep(0.5)
        pods[1].submit(Sequence("short", 10, 1), note)
        await asyncio.sleep(10)

    seen = times_of(play)
    assert seen["long first"] == seen["short first"] == pytest.approx(2.02)


def test_an_engine_alone_in_its_group_is_as_quick_as_without_one() -> None:
    """Idle ranks cost nothing."""

    async def play(pods: list[VirtualPod], note: Callable[[Milestone], None]) -> None:
        pods[1].submit(Sequence("a", 500, 20), note)
        await asyncio.sleep(10)

    assert times_of(play)["a end"] == pytest.approx(0.51 + 19 * 0.01)


def test_what_cannot_be_played_is_rejected() -> None:
    """A scheduler that plans ahead, and pausing one engine of several."""
    with pytest.raises(ValueError, match="asynchronous"):
        Engine(replace(PROFILE, async_scheduling=True), Lockstep())

    async def pause() -> None:
        VirtualPod(PROFILE, asyncio.get_running_loop(), lockstep=Lockstep()).pause()

    with pytest.raises(ValueError, match="one by one"):
        run_virtually(pause())

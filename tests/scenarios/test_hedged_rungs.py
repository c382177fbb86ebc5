"""The next rung begun while the one below is in doubt: one of the two is the client's, and nothing of the other is."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from simulator.faults import Fault, FaultKind
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.scenarios.rungs import ESCALATES, KEEPS, Rungs, asking, empty, ladder_file, settled, some_rungs

CHAT = "/v1/chat/completions"

HEDGED: dict[str, Any] = {"hold_back": {"tokens": 8, "max_added_ttft_ms": 60000, "hedge": True}}

SLOW = Profile(step_base_s=0.01)

DOUBTED = 2.0
"""So far above the threshold that every answer is in doubt until it is judged."""

NEVER = ESCALATES / 2 - 0.01


async def stopped(pod: SimulatedPod) -> None:
    """Wait until it has nothing to do: what was aborted is gone with the next step."""
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        while any(engine.statistics().running for engine in pod.engines):
            async with session.get(f"{pod.url}/health") as answer:
                await answer.read()


def texts(body: bytes) -> tuple[set[str], set[str], int]:
    """Models and ids of a stream's events, and how many of them open the answer."""
    events = [json.loads(line[6:]) for line in body.split(b"\n\n") if line and line != b"data: [DONE]"]
    roles = sum("role" in event["choices"][0]["delta"] for event in events)
    return {event["model"] for event in events}, {event["id"] for event in events}, roles


@pytest.mark.parametrize(
    ("threshold", "answered", "hedged"),
    [
        (NEVER, "big", [("small", "escalated", False), ("big", "unjudged", True)]),
        (KEEPS, "small", [("big", "given_up", True), ("small", "kept", False)]),
    ],
)
async def test_one_of_the_two_is_the_clients(
    tmp_path: Path, threshold: float, answered: str, hedged: list[tuple[str, str, bool]]
) -> None:
    """A clean stream of one model; the other is on the receipt as waste, and its engine has stopped.

    A machine that stalls may see a whole window at once, and nothing half way: so it is asked until one is hedged.
    """
    file, steps = ladder_file(threshold, grey=DOUBTED), list[tuple[str, str, bool]]()
    async with some_rungs(tmp_path, file=file, profile=SLOW, **HEDGED) as rungs:
        async with asyncio.timeout(120):
            while steps != hedged:
                steps = await one_answer(rungs, answered)
        for pod in (rungs.small, rungs.big):
            await stopped(pod)
        ended = hedged[0][1] if answered == "small" else hedged[1][1]
        assert f'hearth_cascade_hedged_total{{ended="{ended}",ladder="auto",rung="big"}}' in await rungs.metrics()


async def one_answer(rungs: Rungs, answered: str) -> list[tuple[str, str, bool]]:
    """The rungs that were asked: each with how it ended, and whether it was begun early."""
    status, body, head = await rungs.post(CHAT, asking(stream=True, min_tokens=20))
    assert (status, head["x-hearth-rung"]) == (200, answered)
    models, ids, roles = texts(body)
    assert (models, len(ids), roles) == ({answered}, 1, 1)
    assert body.endswith(b"data: [DONE]\n\n")
    receipt = await settled(rungs, head["x-hearth-receipt"])
    climbed = receipt["climbed"]
    assert receipt["model"] == answered
    assert receipt["usage"]["completion_tokens"] == climbed["rungs"][-1]["output_tokens"] > 8
    assert climbed["wasted_cost"] == pytest.approx(climbed["cost"] - climbed["rungs"][-1]["cost"])
    assert (climbed["wasted_cost"] > 0) == (len(climbed["rungs"]) > 1)
    await empty(rungs)
    return [(step["model"], step["ended"], step.get("hedged", False)) for step in climbed["rungs"]]


async def test_nothing_is_begun_early_that_is_not_in_doubt(tmp_path: Path) -> None:
    """The larger model is asked nothing where the answer looks well half way through, or where nobody wants a hedge."""
    async with some_rungs(tmp_path, KEEPS, **HEDGED) as rungs:
        for _ in range(3):
            _, _, head = await rungs.post(CHAT, asking(stream=True))
            assert head["x-hearth-rung"] == "small"
        assert not [asked for asked in rungs.big.received if asked.path == CHAT]


async def test_who_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    """At any point of a climb, with two rungs under way or one."""
    file = ladder_file(NEVER, grey=DOUBTED)

    async def leave(rungs: Rungs, after_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await rungs.post(CHAT, asking(stream=True, max_tokens=100, min_tokens=100))

    async with some_rungs(tmp_path, file=file, profile=SLOW, **HEDGED) as rungs:
        await asyncio.gather(*(leave(rungs, 0.01 * step) for step in range(1, 25)))
        await empty(rungs)


async def test_a_rung_that_dies_early_is_asked_anew(tmp_path: Path) -> None:
    """The model is that of the rung that is asked, whatever was begun beside it: nobody is told of an unknown one."""
    file = ladder_file(NEVER, grey=DOUBTED)
    async with some_rungs(tmp_path, file=file, profile=SLOW, **HEDGED) as rungs:
        await rungs.big.stop()
        status, body, head = await rungs.post(CHAT, asking(stream=True))
        assert (status, head["x-hearth-rung"]) == (200, "small")
        assert texts(body)[0] == {"small"}
        receipt = await settled(rungs, head["x-hearth-receipt"])
        assert receipt["model"] == "small"
        await empty(rungs)


@pytest.mark.parametrize(("threshold", "rung"), [(NEVER, "big"), (KEEPS, "small")])
async def test_a_cut_stream_goes_on_with_its_rung(tmp_path: Path, threshold: float, rung: str) -> None:
    """Whichever of the two was the client's, and whatever was begun beside it: the same model says the same text."""
    file = ladder_file(threshold, grey=DOUBTED)
    async with some_rungs(tmp_path, file=file, profile=SLOW, **HEDGED) as rungs:
        _, whole, _ = await rungs.post(CHAT, asking(stream=True, min_tokens=20))
        pod = rungs.big if rung == "big" else rungs.small
        pod.set_fault(Fault(FaultKind.ABORT, after_chunks=16, requests=1))
        status, body, head = await rungs.post(CHAT, asking(stream=True, min_tokens=20))
        assert (status, head["x-hearth-rung"], texts(body)[0]) == (200, rung, {rung})
        assert said(body) == said(whole)
        await settled(rungs, head["x-hearth-receipt"])
        await empty(rungs)


def said(body: bytes) -> str:
    events = [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)

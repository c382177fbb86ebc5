"""The simulated scheduler beside vLLM's own, step by step: who gets a token when, what is cached, who is preempted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from simulator.engine import Engine
from simulator.profile import Profile
from simulator.sequence import Milestone, Sequence
from tests.vllm.pods import VENV

BLOCK = 16
CONTEXT = 512
KEEPER = "r0"
"""Runs through the whole script, so that the engine is never idle: an idle one would plan as the first one comes."""

SCRIPTS = range(60)
"""Seeds."""

SAMPLED = 7
"""The token that scheduling.py gives every request in every step."""

WITHIN_S = 300


@dataclass(frozen=True)
class Script:
    """Sizes of an engine, and what arrives before which step."""

    sizes: dict[str, int]
    arrivals: list[dict[str, Any]]


def make_script(seed: int) -> Script:
    """Prompts of three conversations whose beginnings are shared, on an engine that is mostly too small."""
    draw = Random(seed)
    sizes = {
        "block_size": BLOCK,
        "max_model_len": CONTEXT,
        "max_num_seqs": draw.choice([3, 6, 12]),
        "max_num_batched_tokens": draw.choice([32, 64, 200]),
        "blocks": draw.choice([34, 44, 90]),
    }
    arrivals = [{"id": KEEPER, "step": 0, "prompt": [3, 4, 5], "output": 400}]
    for number in range(1, 15):
        conversation, shared = draw.randint(10, 12), draw.randint(0, 200)
        own = [draw.randint(100, 900) for _ in range(draw.randint(1, 90))]
        prompt = [conversation] * shared + own
        output = draw.randint(1, 40)
        arrivals.append({"id": f"r{number}", "step": draw.randint(1, 120), "prompt": prompt, "output": output})
    return Script(sizes, sorted(arrivals, key=lambda one: one["step"]))


def play_simulated(script: Script, *, is_async: bool) -> dict[str, Any]:
    """The same script on our engine: who got a token in which step, at whatever time it left."""
    sizes = script.sizes
    engine = Engine(
        Profile(
            block_size=BLOCK,
            max_num_seqs=sizes["max_num_seqs"],
            max_num_batched_tokens=sizes["max_num_batched_tokens"],
            kv_capacity_tokens=sizes["blocks"] * BLOCK,
            async_scheduling=is_async,
        )
    )
    waiting, ids = list(script.arrivals), dict[tuple[int, ...], int]()
    steps: list[list[str]] = []
    ends: dict[str, Milestone] = {}
    now, number = 0.0, 0
    while waiting or engine.next_step_at() is not None:
        # A step is planned when the one before ends: what arrives before its plan is there by then.
        while waiting and waiting[0]["step"] <= number:
            one = waiting.pop(0)
            blocks = chain(one["prompt"] + [SAMPLED] * one["output"], ids)
            engine.submit(
                Sequence(one["id"], len(one["prompt"]), one["output"], answer_blocks=prefix_of(blocks)),
                now,
            )
        if number:
            report = engine.step(engine.next_step_at() or 0.0)
            assert report is not None
            now = report.at
            steps.append(sorted(report.tokens))
            ends.update({one.sequence_id: one for one in report.milestones if one.reason})
        number += 1
    return {
        "steps": steps,
        "cached": {name: end.cached_tokens for name, end in ends.items()},
        "preemptions": {name: end.preemptions for name, end in ends.items()},
    }


def chain(prompt: list[int], ids: dict[tuple[int, ...], int]) -> tuple[int, ...]:
    """Ids of a prompt's full blocks: equal where all before is equal."""
    ends = range(BLOCK, len(prompt) + 1, BLOCK)
    return tuple(ids.setdefault(tuple(prompt[:end]), len(ids)) for end in ends)


def prefix_of(blocks: tuple[int, ...]) -> Callable[[int], tuple[int, ...]]:
    """What a sequence's blocks will be, asked for as they fill."""
    return lambda count: blocks[:count]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """Which of vLLM's two schedulers."""
    return bool(request.param)


@pytest.fixture(scope="module")
def both() -> dict[bool, list[dict[str, Any]]]:
    """What vLLM's two schedulers do with all scripts, in one process: importing it takes a quarter of a minute."""
    ways, scripts = (False, True), [make_script(seed) for seed in SCRIPTS]
    plays = [{"sizes": one.sizes, "arrivals": one.arrivals, "is_async": way} for way in ways for one in scripts]
    order = json.dumps({"model": str(VENV / "models" / "tinyqwen"), "plays": plays})
    words = [str(VENV / "bin" / "python"), str(Path(__file__).with_name("scheduling.py"))]
    done = subprocess.run(words, input=order, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    played: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return {False: played[: len(scripts)], True: played[len(scripts) :]}


@pytest.fixture(scope="module")
def real(both: dict[bool, list[dict[str, Any]]], is_async: bool) -> list[dict[str, Any]]:
    """What the scheduler of this parameter does."""
    return both[is_async]


@pytest.mark.parametrize("seed", SCRIPTS)
def test_the_same_requests_get_tokens_in_the_same_steps(real: list[dict[str, Any]], is_async: bool, seed: int) -> None:
    """Chunks, order of service, admission by blocks, prefix hits, eviction and preemption, all in one."""
    simulated = play_simulated(make_script(seed), is_async=is_async)
    theirs = real[seed]
    emitted = theirs["steps"]
    while emitted and not emitted[-1]:
        emitted.pop()
    assert simulated["cached"] == theirs["cached"]
    assert simulated["preemptions"] == theirs["preemptions"]
    assert simulated["steps"] == emitted


def test_the_scripts_reach_what_they_are_for(real: list[dict[str, Any]]) -> None:
    """Some are preempted, some find their prefix, some wait."""
    assert sum(sum(one["preemptions"].values()) for one in real) > 20
    assert sum(sum(one["cached"].values()) for one in real) > 100 * BLOCK

"""The baseline survives a restart, is replaced as one, and learns from healthy looks alone."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from diagnosis.baseline import Baseline, InvalidBaseline, Level
from diagnosis.facts import FleetFacts
from diagnosis.finding import Diagnosis, FirstAnswer, Question
from diagnosis.request_times import RequestTimes, TrafficKey
from gateway.diagnosis.baseline_store import BaselineStore, read_baseline, write_baseline
from gateway.diagnosis.request_sample import STEPS
from tests.gateway.diagnosis.test_finding_drains import a_finding

HEALTHY = Diagnosis(1.0, FirstAnswer(Question.NOTHING, ""))


def some_facts(at_s: float) -> FleetFacts:
    return FleetFacts(at_s, times={TrafficKey("tiny"): RequestTimes(at_s - 30, at_s, requests=10)})


class Scene:
    """A store, and what it logged."""

    def __init__(self, file: Path | None) -> None:
        self.now_s = 0.0
        self.events: list[Any] = []
        self.store = BaselineStore(file, lambda *event, **_: self.events.append(event[1]), lambda: self.now_s)


async def test_it_is_learned_saved_and_read_again(tmp_path: Path) -> None:
    """Windows that overlap are counted once; no other file is left beside."""
    file = tmp_path / "baseline.json"
    scene = Scene(file)
    await scene.store.load()
    for look in range(2 * STEPS):
        await scene.store.learn(some_facts(1000.0 + 5 * look), HEALTHY)
    saved = await scene.store.save()
    assert (saved["requests"], saved["hours"]) == (20, 1)
    assert os.listdir(tmp_path) == ["baseline.json"]  # noqa: PTH208 - pathlib is for code that may block
    assert os.stat(file).st_mode & 0o077 == 0  # noqa: PTH116
    again = Scene(file)
    await again.store.load()
    assert again.store.baseline is not None
    assert sum(held.times.requests for held in again.store.baseline.times.values()) == 20
    assert (await again.store.save(resets=True))["requests"] == 0
    assert scene.events == again.events == []


async def test_nothing_is_learned_while_a_finding_lasts() -> None:
    """What is slow must not become normal."""
    scene = Scene(None)
    for look in range(STEPS):
        await scene.store.learn(some_facts(1000.0 + 5 * look), Diagnosis(1.0, HEALTHY.first, (a_finding(1),)))
    assert scene.store.baseline is None
    assert "error" in await scene.store.save()


async def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """And one that cannot be written."""
    file = tmp_path / "baseline.json"
    file.write_text("{}")
    scene = Scene(file)
    await scene.store.load()
    assert scene.store.baseline is None
    gone = Scene(tmp_path / "gone" / "baseline.json")
    assert "error" in await gone.store.save()
    assert scene.events == gone.events == ["baseline_failed"]


def test_a_baseline_is_checked(tmp_path: Path) -> None:
    """What is no JSON, and what is something else."""
    file = tmp_path / "b"
    for body in (b"{", b"[]", b'{"baseline": 99}', b"\xff"):
        file.write_bytes(body)
        with pytest.raises(InvalidBaseline):
            read_baseline(file)
    held = Baseline(1.0, "x", levels={("pool", "kv"): Level({3: (1.0, 2.0)})})
    write_baseline(file, held)
    assert read_baseline(file).levels == held.levels


async def test_a_reset_is_not_undone_by_a_look_that_is_being_counted(tmp_path: Path) -> None:
    """Nor do two saves at a time meet in one file."""
    scene = Scene(tmp_path / "b.json")
    for look in range(STEPS):
        await scene.store.learn(some_facts(1000.0 + 5 * look), HEALTHY)
    for look in range(STEPS - 1):
        await scene.store.learn(some_facts(2000.0 + 5 * look), HEALTHY)
    learning = asyncio.create_task(scene.store.learn(some_facts(2030.0), HEALTHY))
    await asyncio.sleep(0)
    saved = await asyncio.gather(*(scene.store.save(resets=True) for _ in range(3)))
    await learning
    assert [each["requests"] for each in saved] == [0, 0, 0]
    assert not any("error" in each for each in saved)
    assert scene.store.baseline == Baseline()


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """In a folder that others may write to."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / f".b.json.{os.getpid()}").symlink_to(victim)
    write_baseline(tmp_path / "b.json", Baseline())
    assert victim.read_text() == "kept"
    assert read_baseline(tmp_path / "b.json") == Baseline()

"""A small trace over HTTP: through one pod directly, and through the whole stage as the demo has it."""

import os
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from simulator.children import ChildFailed
from simulator.live_replay import play_live
from simulator.options import Options
from simulator.player import Player, Venue
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from simulator.records import Record
from simulator.report import report_on
from simulator.stage import MODEL, staged
from simulator.traces import Arrival, Trace, make_trace

FAST = Profile(time_scale=200.0)


def conversations(count: int, turns: int) -> Trace:
    """So many at the same time, each turn half as long again as the first."""
    return make_trace(
        "conversations",
        [
            Arrival(20.0 * turn + number, 2048 + 1024 * turn, 6, f"{number}", ((1000 * (number + 1), 128 + 64 * turn),))
            for number in range(count)
            for turn in range(turns)
        ],
        16,
    )


async def test_a_player_times_and_counts_what_a_pod_answers() -> None:
    """Prompt and answer lengths are the trace's, a second turn is warm, and every record is noted once."""
    noted: list[Record] = []
    trace = conversations(2, 2)
    async with SimulatedPod(Options(profile=FAST, models=(MODEL,))) as pod, aiohttp.ClientSession() as client:
        venue = Venue(pod.url, MODEL, FAST.time_scale, {pod.url: "pod-0"})
        player = Player(trace, venue, client, noted.append)
        records = await player.play()
    assert [record.failure for record in records] == [""] * 4
    assert [record.output_tokens for record in records] == [6] * 4
    for record, arrival in zip(records, trace.arrivals, strict=True):
        assert 0 <= record.prompt_tokens - arrival.prompt_tokens < 16
    assert [(record.cached_tokens or 0) > 2000 for record in records] == [False, False, True, True]
    assert sorted(noted, key=lambda record: record.index) == records
    assert len(player.late_s) == 4
    assert all(record.ttft_s is not None and record.ttft_s < (record.duration_s or 0) for record in records)


async def test_a_player_whose_pod_rejects_notes_failures() -> None:
    """A refusal is a record with its reason, not an exception."""
    async with SimulatedPod(Options(profile=FAST, models=("other",))) as pod, aiohttp.ClientSession() as client:
        player = Player(conversations(1, 1), Venue(pod.url, MODEL, 200.0, {}), client, lambda _: None)
        (record,) = await player.play()
    assert record.failure == "404 404"
    assert record.ttft_s is None


@pytest.mark.timeout(300)
async def test_the_complete_stage_plays_and_leaves_nothing(tmp_path: Path) -> None:
    """Pods and gateway as programs of their own: all answered, conversations stay warm, receipts tell why, all end."""
    trace = conversations(6, 3)
    async with staged("warm", 2, FAST, tmp_path / "logs") as stage:
        assert len(stage.pids) == 3
        replay = await play_live(trace, "warm", stage, FAST.time_scale, lambda _: None)
    for pid in stage.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    report = report_on(replay, FAST)
    assert report.failed == 0
    assert report.hit_ratio == pytest.approx(5120 / (2048 + 3072 + 4096), abs=0.03)
    assert report.foresight is not None
    assert report.foresight.warm_error < 0.02
    assert set(report.requests_by_pod) == {"pod-0", "pod-1"}
    assert min(report.requests_by_pod.values()) > 0


async def test_a_stage_whose_pods_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    """The first that fails is named in one sentence; those that had started end."""
    broken = replace(FAST, block_size=16)
    object.__setattr__(broken, "kv_capacity_tokens", 3)
    with pytest.raises(ChildFailed, match=r"warm-pod-\d ended before it was ready: .*kv_capacity_tokens"):
        async with staged("warm", 2, broken, tmp_path / "logs"):
            pass

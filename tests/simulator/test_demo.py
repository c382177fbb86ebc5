"""The demo as a person runs it, on a tiny trace: two replays, a table, a picture; left up when asked, else gone."""

import asyncio
import json
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from simulator.demo import PODS, choose_trace, cold_load
from simulator.profile import Profile
from simulator.traces import Arrival, make_trace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Five conversations of four turns in nine seconds: on four pods taking turns sends each to a new pod each time."""
    path = tmp_path / "tiny.jsonl"
    rows = [
        {"timestamp": 3000 * turn + number, "input_length": 2100 + 512 * turn, "output_length": 5, "hash_ids": ids}
        for turn in range(4)
        for number in range(5)
        for ids in [[100 * number + block for block in range(4 + turn)]]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "simulator.demo",
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


@pytest.mark.timeout(300)
async def test_the_demo_ends_in_a_table_and_a_picture(tiny: Path, tmp_path: Path) -> None:
    """Warm routing has more hits than round robin, nothing failed, nothing is left running."""
    demo = await start("--trace", str(tiny), "--out", str(tmp_path / "out"))
    stated = (await demo.communicate())[0].decode()
    assert demo.returncode == 0, stated
    hits = {name: float(share) for name, share in re.findall(r"^(round-robin|warm) +([\d.]+)%  ", stated, re.MULTILINE)}
    assert hits["warm"] > hits["round-robin"]
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert [(one["routing"], one["answered"]) for one in report["routings"]] == [("round-robin", 20), ("warm", 20)]
    assert (tmp_path / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(300)
async def test_kept_up_it_can_be_called_by_hand_until_interrupted(tiny: Path, tmp_path: Path) -> None:
    """The printed line works as it stands; Ctrl-C ends gateway and pods."""
    demo = await start("--trace", str(tiny), "--out", str(tmp_path / "out"), "--keep")
    assert demo.stdout is not None
    stated = ""
    while "known of the pods" not in stated:
        line = await demo.stdout.readline()
        assert line, stated
        stated += line.decode()
    urls = set(re.findall(r"http://127\.0\.0\.1:\d+", stated))
    assert len(urls) == 2
    body = re.search(r"-d '(.*)'", stated)
    traffic = re.search(r"curl -N (\S+)", stated)
    assert body
    assert traffic
    async with aiohttp.ClientSession() as client:
        headers = {"content-type": "application/json"}
        async with client.post(traffic[1], data=body[1], headers=headers) as answer:
            assert answer.status == 200
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        demo.send_signal(signal.SIGINT)
        assert await demo.wait() == 0
        for url in urls:
            with pytest.raises(aiohttp.ClientConnectionError):
                await client.get(url)


def test_a_trace_that_would_drown_round_robin_is_slowed_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To three quarters of what the pods can compute with nothing warm, and it is said."""
    rows = [{"timestamp": 100 * at, "input_length": 20_000, "output_length": 5, "hash_ids": []} for at in range(300)]
    path = tmp_path / "heavy.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    trace = choose_trace(path)
    assert cold_load(trace, Profile()) == pytest.approx(0.75)
    assert "times its rate" in capsys.readouterr().out
    assert cold_load(
        make_trace("one", [Arrival(0.0, 12_000, 1), Arrival(10.0, 12_000, 1)], None), Profile()
    ) == pytest.approx(2 * 1.06 / 10 / PODS)


def test_the_generated_workload_is_what_is_played_by_default() -> None:
    """Some minutes of it."""
    trace = choose_trace(None)
    assert 200 < trace.length_s < 400
    assert trace == choose_trace(None)

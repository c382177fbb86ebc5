"""`hearth shadow` receives copies, reads pods and writes a report of what happens."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from simulator.shadow import finish, make_app, make_parser, read_pods
from simulator.shadowing.readings import growth_of
from simulator.shadowing.recording import Recording

USERS, TURNS = 5, 8


def body_of(user: int, turn: int) -> bytes:
    """A conversation that grows by its turn."""
    history = f"Conversation {user}. " + "".join(f"Turn {n} of {user} says much. " * 60 for n in range(turn + 1))
    message = {"model": "simulated", "max_tokens": 4, "messages": [{"role": "user", "content": history}]}
    return json.dumps(message).encode()


async def test_the_prediction_is_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pods in turn, a copy of each request to the shadow: cached tokens are predicted within 5 %."""
    recording = Recording()
    runner = web.AppRunner(make_app(recording), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    mirror = f"http://127.0.0.1:{runner.addresses[0][1]}"
    options = Options(profile=Profile(time_scale=20.0))
    try:
        async with SimulatedPod(options) as first, SimulatedPod(options) as second, aiohttp.ClientSession() as client:
            pods = [first.url, second.url]
            before = await read_pods(pods)
            for number in range(USERS * TURNS):
                body = body_of(number % USERS, number // USERS)
                headers = {"content-type": "application/json"}
                for where, status in ((mirror, 204), (pods[number % 2], 200)):
                    async with client.post(f"{where}/v1/chat/completions", data=body, headers=headers) as answer:
                        await answer.read()
                        assert answer.status == status
            seen = growth_of(before, await read_pods(pods))
    finally:
        await runner.cleanup()
    assert (len(recording.rows), seen.requests) == (USERS * TURNS, USERS * TURNS)
    flags = ["--pod", pods[0], "--pod", pods[1], "--out", str(tmp_path)]
    assert await asyncio.to_thread(finish, make_parser().parse_args(flags), recording, seen) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["seen"]["hit_ratio"] is not None
    assert report["present"]["hit_ratio"] == pytest.approx(report["seen"]["hit_ratio"], rel=0.05)
    assert report["hearth"]["hit_ratio"] >= report["present"]["hit_ratio"]
    assert "present, predicted" in capsys.readouterr().out


async def test_pods_without_metrics_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The others count, and the one that does not answer is reported."""
    async with SimulatedPod(Options()) as pod:
        pages = await read_pods([pod.url, "http://127.0.0.1:9"])
    assert list(pages) == [pod.url]
    assert "127.0.0.1:9: no metrics" in capsys.readouterr().err

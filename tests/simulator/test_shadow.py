"""A shadow records sizes and prefixes of mirrored requests, and predicts of the present routing what happens."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from routing.request import Api
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from simulator.shadow import (
    Recording,
    Seen,
    conclude,
    difference,
    engine_of,
    engines_needed,
    make_app,
    make_parser,
    predict,
    read_pods,
    read_samples,
)

USERS, TURNS = 5, 8

SECRET = "the recipe of the house"


def body_of(user: int, turn: int) -> bytes:
    """A conversation that grows by its turn."""
    history = f"Conversation {user}. {SECRET} " + "".join(
        f"Turn {n} of {user} says much. " * 60 for n in range(turn + 1)
    )
    message = {"model": "simulated", "max_tokens": 4, "messages": [{"role": "user", "content": history}]}
    return json.dumps(message).encode()


def recorded(interval_s: float = 0.5) -> Recording:
    recording = Recording()
    for number in range(USERS * TURNS):
        recording.add(Api.CHAT, body_of(number % USERS, number // USERS), None, number * interval_s)
    return recording


def test_no_prompt_is_kept() -> None:
    """Only sizes, and digests under a key that is drawn for each recording."""
    first, second = recorded(), recorded()
    assert SECRET not in repr(first.rows)
    assert first.rows[0].blocks != second.rows[0].blocks
    assert len(first.rows[0].blocks) > 0


def test_what_cannot_be_read_is_counted() -> None:
    """A body that is no request of an API does not end the recording."""
    recording = Recording()
    recording.add(Api.CHAT, b"{", None, 0.0)
    recording.add(Api.CHAT, b'{"messages": []}', None, 0.0)
    assert (len(recording.rows), recording.skipped) == (0, 2)


def test_metrics_become_what_was_seen() -> None:
    """Growth between two readings; the median within its bucket; speeds and sizes of the engine."""
    page = """\
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0"} %d
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} %d
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop"} %d
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0"} %d
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0"} %d
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} %d
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{engine="0",num_gpu_blocks="1000",block_size="16"} 1
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_sum{engine="0"} %d
vllm:request_prefill_time_seconds_count{engine="0"} 4
vllm:request_prefill_time_seconds_bucket{engine="0",le="+Inf"} 4
"""
    before = read_samples([page % (100, 10, 1, 100, 0, 0, 1, 1, 0)])
    seen = difference(before, read_samples([page % (1100, 50, 5, 1100, 400, 0, 5, 5, 2)]))
    assert (seen.requests, seen.prompt_tokens, seen.output_tokens) == (4, 1000, 40)
    assert seen.hit_ratio == pytest.approx(0.4)
    assert seen.ttft_p50_s == pytest.approx(0.3)
    assert seen.prefill_tokens_per_s == pytest.approx(300)
    profile = engine_of(seen, Profile(), is_measured=False)
    assert profile.kv_capacity_tokens == 16_000
    assert profile.prefill_tokens_per_s == pytest.approx(300)
    assert engine_of(seen, Profile(), is_measured=True).prefill_tokens_per_s == Profile().prefill_tokens_per_s
    assert difference(before, before) == Seen(kv_capacity_tokens=16_000, block_size=16)


def test_hearth_needs_no_more_engines_than_round_robin() -> None:
    """More of the prompts is cached, and the same first tokens take fewer engines."""
    trace = recorded(interval_s=0.05).trace(Seen())
    profile = Profile(prefill_tokens_per_s=4000)
    present = predict(trace, "round-robin", 4, profile)
    ours = predict(trace, "warm", 4, profile)
    assert ours.hit_ratio > present.hit_ratio
    assert ours.prefill_engine_s < present.prefill_engine_s
    assert engines_needed(trace, present, profile).engines <= 4


async def test_the_prediction_is_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pods in turn, a copy of each request to the shadow: cached tokens are predicted within 15 %."""
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
            seen = difference(before, await read_pods(pods))
    finally:
        await runner.cleanup()
    assert (len(recording.rows), seen.requests) == (USERS * TURNS, USERS * TURNS)
    flags = ["--pod", pods[0], "--pod", pods[1], "--out", str(tmp_path)]
    assert await asyncio.to_thread(conclude, make_parser().parse_args(flags), recording, seen) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["seen"]["hit_ratio"] is not None
    assert report["present"]["hit_ratio"] == pytest.approx(report["seen"]["hit_ratio"], rel=0.15)
    assert report["hearth"]["hit_ratio"] >= report["present"]["hit_ratio"]
    assert "present, predicted" in capsys.readouterr().out

"""Limits over real HTTP, with gateways in processes of their own and simulated pods behind them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import aiohttp

from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.gateway.kv_index.redis_servers import redis_server
from tests.gateway.running import Running, serving

CHAT = "/v1/chat/completions"

FAST = Profile(step_base_s=0.004)

SHARED = 30
"""Requests per minute that several processes grant together."""

MOST = SHARED + SHARED / 8
"""With what docs/limits.md grants beyond it where a lender is lost: a machine that stands still looks like that."""

PROMPT = "Tell me of the hearth, and of those who sit around it when the nights are long. " * 12


@dataclass
class Served:
    """One stream as its client saw it."""

    status: int
    events: int = 0
    tokens: int = 0
    """As the pod told, 0 where it could not any more."""
    finish_reason: str | None = None


def write_policy(path: Path, limits: Mapping[str, object]) -> Path:
    digest = sha256(b"sk-team").hexdigest()
    path.write_text(json.dumps({"auth": {"keys": {"team": [digest]}}, "tenants": {"team": limits}}))
    return path


async def stream(client: aiohttp.ClientSession, gateway: Running, number: int) -> Served:
    body = {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": f"{number}: {PROMPT}"}],
    }
    headers = {"authorization": "Bearer sk-team"}
    async with client.post(gateway.at("traffic", CHAT), json=body, headers=headers) as answer:
        served = Served(answer.status)
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            reported = json.loads(line[5:])
            if usage := reported.get("usage"):
                served.tokens = usage["total_tokens"]
            for choice in reported.get("choices", ()):
                served.events += bool(choice["delta"].get("content"))
                served.finish_reason = choice["finish_reason"] or served.finish_reason
        return served


async def storm(gateway: Running, count: int) -> list[Served]:
    """So many at once, each by a connection of its own."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as client:
        return list(await asyncio.gather(*(stream(client, gateway, number) for number in range(count))))


def granted(served: Iterable[Served]) -> int:
    return sum(each.status == 200 for each in served)


async def granted_together(gateways: Sequence[Running], count: int, enough: int) -> int:
    """How many of many requests are granted in all, once it is enough, and no more are to be had."""
    total = 0
    async with asyncio.timeout(40):  # before the minute is over
        while total < enough:
            total += sum(map(granted, await asyncio.gather(*(storm(gateway, count) for gateway in gateways))))
    for _ in range(2):
        total += sum(map(granted, await asyncio.gather(*(storm(gateway, count) for gateway in gateways))))
    return total


def pod(**words: object) -> SimulatedPod:
    options = {"models": ("tiny",), "min_answer_tokens": 40, "max_answer_tokens": 160, "profile": FAST} | words
    return SimulatedPod(Options(**options))  # type: ignore[arg-type]


async def test_two_hundred_streams_of_one_key_keep_to_its_tokens(tmp_path: Path) -> None:
    """Twice two hundred at once: what all of them took is less than one request's reserve above the limit."""
    limit = 20_000
    policy = write_policy(tmp_path / "policy.yaml", {"tpm": limit})
    async with pod() as engine, serving("--pod", engine.url, "--policy", str(policy)) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        served = [*await storm(gateway, 200), *await storm(gateway, 200)]
        answered = [each for each in served if each.status == 200]
        assert {each.status for each in served} == {200, 429}
        reserve = 256 + max(each.tokens for each in answered)
        assert limit * 0.6 < sum(each.tokens for each in answered) < limit + reserve
        async with aiohttp.ClientSession() as client, client.get(gateway.at("admin", "/limits")) as answer:
            [account] = (await answer.json())["accounts"]
        assert account["account"] == "team"
        assert account["requests_in_flight"] == 0
        assert account["limits"]["tokens"]["used"] == sum(each.tokens for each in answered)


async def test_long_streams_are_ended_where_the_limit_is(tmp_path: Path) -> None:
    """Answers far longer than anybody expected: they end well formed, and what they took is within the limit."""
    limit = 3_000
    policy = write_policy(tmp_path / "policy.yaml", {"output_tpm": limit})
    async with (
        pod(min_answer_tokens=900, max_answer_tokens=900) as engine,
        serving("--pod", engine.url, "--policy", str(policy)) as gateway,
    ):
        await gateway.until("pod_state_changed", state="ready")
        answered = [each for each in await storm(gateway, 40) if each.status == 200]
        assert len(answered) > 3
        assert "length" in {each.finish_reason for each in answered}
        assert all(each.finish_reason in {"length", "stop"} for each in answered)
        assert limit * 0.8 < sum(each.events for each in answered) <= limit + len(answered)


async def test_a_reload_binds_a_stream_that_runs(tmp_path: Path) -> None:
    """Its account asks for nothing else meanwhile; it ends well formed, long before its engine would have ended it."""
    policy = write_policy(tmp_path / "policy.yaml", {"output_tpm": 1_000_000})
    headers = {"authorization": "Bearer sk-team"}
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
    async with (
        pod(min_answer_tokens=20_000, max_answer_tokens=20_000) as engine,
        serving("--pod", engine.url, "--policy", str(policy)) as gateway,
        aiohttp.ClientSession() as client,
    ):
        await gateway.until("pod_state_changed", state="ready")
        async with client.post(gateway.at("traffic", CHAT), json=body, headers=headers) as answer:
            reported = await answer.content.readuntil(b"\n\n")
            write_policy(policy, {"output_tpm": 100})
            async with client.post(gateway.at("admin", "/reload")) as reloaded:
                assert reloaded.status == 200
            reported += await answer.content.read()
    assert b'"hearth_reason":"rate_limited_tokens"' in reported
    assert reported.endswith(b"data: [DONE]\n\n")
    assert reported.count(b"\n\n") < 10_000


async def test_workers_of_one_host_share_a_limit(tmp_path: Path) -> None:
    """Three processes without Redis: all of the limit, and no more, whoever the connections land on."""
    policy = write_policy(tmp_path / "policy.yaml", {"rpm": SHARED})
    async with pod() as engine, serving("--pod", engine.url, "--policy", str(policy), "--processes", "3") as gateway:
        assert await granted_together([gateway], 40, enough=24) <= MOST


async def test_gateways_of_two_hosts_share_a_limit_by_redis(tmp_path: Path) -> None:
    """Each is told in headers how little is left."""
    policy = write_policy(tmp_path / "policy.yaml", {"rpm": SHARED, "max_parallel_requests": 100})
    async with redis_server(tmp_path) as redis, pod() as engine:
        flags = ("--pod", engine.url, "--policy", str(policy), "--redis", redis.url)
        async with serving(*flags) as one, serving(*flags) as other:
            assert await granted_together([one, other], 20, enough=24) <= MOST

"""A new pod over real HTTP: hot prefixes are replayed to it before its first request, where its region allows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.kv_index.redis_servers import redis_server
from tests.gateway.running import Running, serving
from tests.scenarios.place import CHAT, FAST, LONG, policy_of

STARTUP_S = 5.0
"""Pods that are ready so soon after the gateway's start ran before it (`ProbeIntervals.startup_s`)."""

RULES = [f"Rule {number}: {LONG}" for number in range(3)]
"""System prompts that many conversations share."""


def pod_entry(pod: SimulatedPod, region: str) -> dict[str, str]:
    return {"url": pod.url, "region": region, "scheduling_policy": "priority"}


def chat_of(rule: int, number: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": RULES[rule]}, {"role": "user", "content": f"Secret {number}: why?"}]
    return {"model": "big", "messages": messages, "max_tokens": 4}


async def send(session: aiohttp.ClientSession, gateway: Running, tenant: str, rule: int, number: int) -> dict[str, Any]:
    url, headers = gateway.at("traffic", CHAT), {"authorization": f"Bearer sk-{tenant}"}
    async with session.post(url, json=chat_of(rule, number), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def serve_for(seconds: float, session: aiohttp.ClientSession, gateway: Running, tenant: str) -> int:
    """Send requests until so much time has passed: the gateway has learned what is hot. Returns their number."""
    clock, number = asyncio.get_running_loop().time, 0
    until_s = clock() + seconds
    while clock() < until_s:
        await send(session, gateway, tenant, number % 2, number)
        number += 1
    return number


def replays_of(pod: SimulatedPod) -> list[dict[str, Any]]:
    """Bodies of the replays that a pod has received."""
    return [
        json.loads(each.body) for each in pod.received if each.headers.get("x-request-id", "").startswith("warmup-")
    ]


def clients_of(pod: SimulatedPod) -> int:
    """Client requests that a pod has received."""
    return sum(each.method == "POST" for each in pod.received) - len(replays_of(pod))


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["one process", "two workers"])
async def test_a_new_pod_gets_its_replays_before_its_first_request(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Each hot prefix once, by one worker, cut to what is shared, at the lowest priority, with the tenant's salt; a pod
    of another region gets none; the first request that comes finds its prefix cached.
    """
    pods, policy, config = tmp_path / "pods.yaml", tmp_path / "policy.yaml", tmp_path / "hearth.yaml"
    tenant = {"allowed_regions": ["on-prem"], "cache_isolation": "tenant", "prewarm": True}
    policy.write_text(json.dumps(policy_of(bank=tenant, quiet={"cache_isolation": "tenant"})))
    settings = {
        "policy": str(policy),
        "discovery": {"file": {"path": str(pods)}},
        "supply": {"scaling": "off", "prewarm": "act"},
        "timeouts": {"startup_discovery_s": 60},
    }
    config.write_text(json.dumps(settings))
    options = Options(models=("big",), profile=FAST)
    async with (
        SimulatedPod(options) as old,
        SimulatedPod(options) as new,
        SimulatedPod(options) as cloud,
        aiohttp.ClientSession() as session,
    ):
        entries = [pod_entry(old, "on-prem")]
        pods.write_text(json.dumps({"pods": entries}))
        async with serving("--config", str(config), *flags) as gateway:
            assert await serve_for(STARTUP_S + 0.5, session, gateway, "bank") > 8
            for number in range(6):
                await send(session, gateway, "quiet", 2, number)
            entries += [pod_entry(new, "on-prem"), pod_entry(cloud, "cloud")]
            pods.write_text(json.dumps({"pods": entries}))
            line = await gateway.until("pod_warmed", upstream=new.url)
            await gateway.until_each("pod_state_changed", "upstream", new.url, state="ready")
            assert (line["reason"], line["replays"]) == ("done", 2)
            replays = replays_of(new)
            assert clients_of(new) == 0
            texts = [each["messages"][0]["content"] for each in replays]
            assert sorted(text[:7] for text in texts) == ["Rule 0:", "Rule 1:"]
            assert all(len(text) > 0.9 * len(RULES[0]) for text in texts)
            assert "Secret" not in json.dumps(replays)
            assert {each["priority"] for each in replays} == {1_000_000}
            assert {each["max_tokens"] for each in replays} == {1}
            salts = {each["cache_salt"] for each in replays}
            assert len(salts) == 1
            assert salts == {json.loads(each.body).get("cache_salt") for each in old.received if b"Rule 0" in each.body}
            entries.pop(0)
            pods.write_text(json.dumps({"pods": entries}))
            await gateway.until("pod_removed", upstream=old.url)
            answer = await send(session, gateway, "bank", 0, 10_000)
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0.8 * answer["usage"]["prompt_tokens"]
            assert replays_of(cloud) == []
            assert not any("Secret" in json.dumps(each) or "Rule" in json.dumps(each) for each in gateway.lines)


async def test_gateways_on_one_redis_replay_each_prefix_once(tmp_path: Path) -> None:
    """Both know what is hot and notice both new pods: each pod is owned by one gateway, and no pod takes load before
    its owner has ended.
    """
    pods, config = tmp_path / "pods.yaml", tmp_path / "hearth.yaml"
    options = Options(models=("big",), profile=FAST)
    async with (
        redis_server(tmp_path) as redis,
        SimulatedPod(options) as old,
        SimulatedPod(options) as first,
        SimulatedPod(options) as second,
        aiohttp.ClientSession() as session,
    ):
        entries = [pod_entry(old, "on-prem")]
        pods.write_text(json.dumps({"pods": entries}))
        settings = {
            "redis": redis.url,
            "discovery": {"file": {"path": str(pods)}},
            "supply": {"scaling": "off", "prewarm": "act"},
            "timeouts": {"startup_discovery_s": 60},
        }
        config.write_text(json.dumps(settings))
        async with serving("--config", str(config)) as one, serving("--config", str(config)) as other:
            served = (serve_for(STARTUP_S + 0.5, session, gateway, "any") for gateway in (one, other))
            assert min(await asyncio.gather(*served)) > 8
            entries += [pod_entry(first, "on-prem"), pod_entry(second, "on-prem")]
            pods.write_text(json.dumps({"pods": entries}))
            for gateway in (one, other):
                await gateway.until_each("pod_state_changed", "upstream", first.url, second.url, state="ready")
            for pod in (first, second):
                owners = [
                    line
                    for gateway in (one, other)
                    for line in gateway.lines
                    if (line["event"], line.get("upstream")) == ("pod_warmed", pod.url)
                ]
                assert [(line["reason"], line["replays"]) for line in owners] == [("done", 2)]
                texts = [each["messages"][0]["content"] for each in replays_of(pod)]
                assert sorted(text[:7] for text in texts) == ["Rule 0:", "Rule 1:"]
                assert clients_of(pod) == 0

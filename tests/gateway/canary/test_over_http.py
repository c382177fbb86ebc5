"""Canaries as their users run them: `hearth serve` in front of simulated pods over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from routing.facts import PodFacts
from routing.pod_record import AgentRecord, RegisteredPod, record_channel, record_key, write_record
from routing.server_settings import NO_SEED, ServerSettings
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from simulator.transfer.wiring import KvRole, Wiring
from tests.gateway.kv_index.redis_servers import redis_server
from tests.gateway.running import Running, serving
from tests.simulator.asking import LONG, chat, running

CHAT = "/v1/chat/completions"

SLUGGISH = Profile(step_base_s=0.3, block_size=16, kv_capacity_tokens=16_000)
"""A third of a second a token: far beyond what a busy machine makes of a quick pod."""

TERMS = {
    "name": "new",
    "revision": "v2",
    "traffic_share": 0.5,
    "false_revert_rate": 0.2,
    "min_comparisons": 20,
    "max_ttft_ratio": 3,
    "max_tpot_ratio": 3,
    "max_error_increase": 0.3,
    "max_quality_loss": 0.3,
    "quality_share": 1.0,
}


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Each request by a connection of its own: the kernel deals them out to processes."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


def write(folder: Path, pods: list[dict[str, Any]], terms: dict[str, Any], **more: Any) -> str:
    """A configuration of these pods and this canary, whose verdict is kept in a file."""
    path = folder / "hearth.json"
    kept = {"state_file": str(folder / "canary.json")}
    settings = {"discovery": {"static": {"pods": pods}}, "canaries": [terms | kept]}
    path.write_text(json.dumps(settings | more))
    return str(path)


async def ask(
    client: aiohttp.ClientSession, gateway: Running, body: dict[str, Any], key: str | None = None
) -> dict[str, Any]:
    """Send a chat, and return its receipt."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with client.post(gateway.at("traffic", CHAT), json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        receipt = answer.headers["x-hearth-request-id"]
    async with client.get(gateway.at("admin", f"/receipts/{receipt}")) as shown:
        assert shown.status == 200, await shown.text()
        return dict(await shown.json())


async def load(
    client: aiohttp.ClientSession, gateway: Running, until: str, key: str | None = None, at_once: int = 4
) -> list[dict[str, Any]]:
    """Stream requests until the gateway logs an event. Returns the attempts that answered them."""
    logged = asyncio.create_task(gateway.until(until))
    attempts = []

    async def go_on(number: int) -> None:
        requested = 0
        while not logged.done():
            requested += 1
            body = chat(f"{number}-{requested}", max_tokens=3, ignore_eos=True, stream=True)
            attempts.append((await ask(client, gateway, body, key))["attempts"][-1])

    try:
        await asyncio.gather(*(go_on(number) for number in range(at_once)))
    finally:
        logged.cancel()
    await logged
    return attempts


async def shown_canary(client: aiohttp.ClientSession, gateway: Running) -> dict[str, Any]:
    """The canary as the admin port has it."""
    async with client.get(gateway.at("admin", "/fleet")) as shown:
        return dict((await shown.json())["canary"])


async def test_a_slow_canary_is_reverted_for_all_workers_and_after_a_restart(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """By the requests of two workers together; at most its share went to it, and none after, also from a new start."""
    async with AsyncExitStack() as stack:
        standing, _ = await stack.enter_async_context(running())
        canary, _ = await stack.enter_async_context(running(profile=SLUGGISH))
        config = write(
            tmp_path, [{"url": standing.url, "revision": "v1"}, {"url": canary.url, "revision": "v2"}], TERMS
        )
        async with serving("--config", config, "--processes", "2") as gateway:
            await gateway.until("canary_started")
            attempts = await load(client, gateway, "canary_reverted")
            by_worker = [attempt["engine"] == canary.url for attempt in attempts]
            assert 0 < sum(by_worker) <= len(by_worker) / 2
            assert {attempt["canary"] for attempt in attempts if attempt["engine"] == canary.url} == {"share"}
            async with client.get(gateway.at("metrics", "/metrics")) as page:
                assert 'hearth_canary_verdict{canary="new",verdict="revert"} 1.0' in await page.text()
        async with serving("--config", config) as gateway:
            line = await gateway.until("canary_reverted")
            assert line["reason"] in ("ttft_worse", "tpot_worse")
            for number in range(8):
                receipt = await ask(client, gateway, chat(f"after {number}", max_tokens=2, ignore_eos=True))
                assert [attempt["engine"] for attempt in receipt["attempts"]] == [standing.url]
            found = await shown_canary(client, gateway)
            assert (found["verdict"], found["serves"], found["pods"]) == ("revert", "nothing", [canary.url])
            assert found["comparisons"][1]["lower"] > 3


async def test_lower_precision_is_promoted_after_a_comparison_on_opted_in_data_only(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Held while only a tenant sends that has not opted in; promoted by the answers to one that has."""
    keys = {name: [sha256(f"sk-{name}".encode()).hexdigest()] for name in ("open", "closed")}
    policy = {"auth": {"keys": keys}, "tenants": {"open": {"canary_compare": True}, "closed": {}}}
    (tmp_path / "policy.yaml").write_text(json.dumps(policy))
    async with AsyncExitStack() as stack:
        pods = [(await stack.enter_async_context(running()))[0] for _ in range(2)]
        reported = [{"url": pod.url, "revision": f"v{number}"} for number, pod in enumerate(pods, 1)]
        terms = {**TERMS, "lower_precision": True, "one_tenant_decides": True}
        config = write(tmp_path, reported, terms, policy=str(tmp_path / "policy.yaml"))
        gateway = await stack.enter_async_context(serving("--config", config))
        await gateway.until("canary_started")
        await load(client, gateway, "canary_held", "sk-closed")
        found = await shown_canary(client, gateway)
        assert (found["verdict"], found["reason"], found["serves"]) == ("hold", "quality_missing", "share")
        assert "canary_compare" in found["fix"]
        assert found["comparisons"][3]["comparisons"] == 0
        await load(client, gateway, "canary_promoted", "sk-open")
        found = await shown_canary(client, gateway)
        assert (found["verdict"], found["serves"]) == ("promote", "all")


async def test_a_prefill_canary_is_paired_with_the_standing_decode_pods(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """It does its share of prefills, judged beside the standing prefill pod's, and is reverted where it is slow."""
    async with AsyncExitStack() as stack:

        async def pod(role: KvRole, **options: Any) -> SimulatedPod:
            return (await stack.enter_async_context(running(wiring=Wiring(role=role), **options)))[0]

        standing, decode = await pod(KvRole.PRODUCER), await pod(KvRole.CONSUMER)
        slow = await pod(KvRole.PRODUCER, profile=SLUGGISH)
        reported = [
            {"url": each.url, "kv_connector": "NixlConnector", "kv_role": role, "pool": pool}
            for each, role, pool in (
                (standing, "kv_producer", "p"),
                (decode, "kv_consumer", "d"),
                (slow, "kv_producer", "trial"),
            )
        ]
        terms = {name: value for name, value in TERMS.items() if name != "revision"} | {"pool": "trial"}
        # Decode engines prefill nothing that a pair can.
        config = write(tmp_path, reported, terms, roles=True)
        gateway = await stack.enter_async_context(serving("--config", config))
        await gateway.until("canary_started")
        logged = asyncio.create_task(gateway.until("canary_reverted"))
        attempts, number = [], 0
        while not logged.done():
            number += 1
            body = chat(f"{number} {LONG}", max_tokens=3, ignore_eos=True, stream=True)
            attempts.append((await ask(client, gateway, body))["attempts"][-1])
            taken = sum(each.get("prefill_engine") == slow.url for each in attempts)
            assert taken <= len(attempts) / 2
        await logged
        assert {each["engine"] for each in attempts} == {decode.url}
        by_canary = [each for each in attempts if each.get("prefill_engine") == slow.url]
        assert {each["canary"] for each in by_canary} == {"share"}
        assert len(by_canary) > 5


async def test_a_canary_of_configuration_changes_one_parameter_and_gateways_agree(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """By the command lines that agents report: two changes are rejected by name. With one, two gateways on one Redis
    have one verdict, though requests came to one of them alone.
    """
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(tmp_path / "redis"))
        standing, canary = [(await stack.enter_async_context(running()))[0] for _ in range(2)]
        before = {"max-num-seqs": "128", "max-num-batched-tokens": "8192"}

        async def report(beat: int, **changed: str) -> None:
            pods = [
                RegisteredPod(
                    pod.url,
                    PodFacts(revision=revision, version="0.32.0"),
                    settings=ServerSettings(options, hash_seed=NO_SEED),
                )
                for pod, revision, options in (
                    (standing, "v1", before),
                    (canary, "v2", before | {name.replace("_", "-"): value for name, value in changed.items()}),
                )
            ]
            written = write_record(AgentRecord("node", beat, 600.0, tuple(pods), life=1))
            await redis.log_event("SET", record_key("", "node"), written, "PX", 600_000)
            await redis.log_event("PUBLISH", record_channel(""), written)

        await report(1, max_num_seqs="256", max_num_batched_tokens="4096")
        settings = {"redis": redis.url, "discovery": {"agent_registry": True}, "canaries": [TERMS]}
        (tmp_path / "hearth.json").write_text(json.dumps(settings))
        config = ("--config", str(tmp_path / "hearth.json"))
        one = await stack.enter_async_context(serving(*config))
        line = await one.until("canary_rejected")
        assert (line["reason"], line["options"]) == (
            "many_options",
            ["--max-num-batched-tokens (8192 -> 4096)", "--max-num-seqs (128 -> 256)"],
        )
        for number in range(4):
            receipt = await ask(client, one, chat(f"rejected {number}", max_tokens=2, ignore_eos=True))
            assert [attempt["engine"] for attempt in receipt["attempts"]] == [standing.url]
        await report(2, max_num_seqs="256")
        await one.until("canary_started")
        await load(client, one, "canary_promoted")
        two = await stack.enter_async_context(serving(*config))
        await two.until("canary_promoted")
        found = await shown_canary(client, two)
        assert (found["verdict"], found["options"]) == ("promote", ["--max-num-seqs (128 -> 256)"])

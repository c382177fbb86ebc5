"""A whole gateway that follows objectives and rewrites of Kubernetes beside its pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.discovery.api_server import TOKEN, ApiServer, api_server
from tests.gateway.discovery.cluster import PODS, POOLS, VLLM, a_pod, a_pool
from tests.gateway.discovery.test_kubernetes_objectives import (
    GROUP,
    OBJECTIVES,
    REWRITES,
    a_rewrite,
    a_rule,
    an_objective,
)
from tests.gateway.running import Running, serving

POLICY = """
auth: {default_tenant: one}
tiers: {interactive: {priority: 10}, batch: {priority: -5}}
tenants: {one: {tier: interactive}}
"""


def a_config(folder: Path, server: ApiServer) -> Path:
    """Pods of the pool `p`; this machine is a trusted proxy."""
    (folder / "token").write_text(TOKEN)
    (folder / "policy.yaml").write_text(POLICY)
    place = {"namespace": "inference", "inference_pools": ["p"], "objectives": GROUP, "api": server.url}
    config = folder / "hearth.json"
    config.write_text(
        json.dumps(
            {
                "discovery": {"kubernetes": place | {"token_file": str(folder / "token")}},
                "policy": str(folder / "policy.yaml"),
                "trusted_proxies": ["127.0.0.1/32"],
                "timeouts": {"startup_discovery_s": 100},
            }
        )
    )
    return config


async def until_receipt(
    gateway: Running, client: aiohttp.ClientSession, objective: str, is_so: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Ask until a request's receipt is as expected: the watch brings the objects within a moment."""
    body, headers = {"model": "gpt", "prompt": "Hi", "max_tokens": 2}, {"x-gateway-inference-objective": objective}
    async with asyncio.timeout(60):
        while True:
            async with client.post(gateway.at("traffic", "/v1/completions"), json=body, headers=headers) as answer:
                await answer.read()
            async with client.get(gateway.at("admin", f"/receipts/{answer.headers['x-request-id']}")) as found:
                receipt: dict[str, Any] = await found.json()
            if is_so(receipt):
                return receipt


async def test_objects_of_the_cluster_steer_requests(tmp_path: Path) -> None:
    """A rewritten name is served, an objective lowers the tier and raises none; both end with their objects."""
    async with api_server() as server, SimulatedPod(Options(models=("small",))) as pod:
        await server.put(PODS, a_pod("a", "127.0.0.1"))
        await server.put(POOLS, a_pool("p", VLLM, urlsplit(pod.url).port or 0))
        await server.put(REWRITES, a_rewrite("r", a_rule("gpt", small=None)))
        await server.put(OBJECTIVES, an_objective("nightly", -5))
        await server.put(OBJECTIVES, an_objective("urgent", 99))
        async with (
            serving("--config", str(a_config(tmp_path, server))) as gateway,
            aiohttp.ClientSession() as client,
        ):
            served = await until_receipt(gateway, client, "nightly", lambda seen: seen["status"] == 200)
            assert served["model"] == "small"
            await until_receipt(gateway, client, "nightly", lambda seen: seen["tier"] == "batch")
            await until_receipt(gateway, client, "urgent", lambda seen: seen["tier"] == "interactive")
            await server.delete(OBJECTIVES, "nightly")
            await until_receipt(gateway, client, "nightly", lambda seen: seen["tier"] == "interactive")
            await server.delete(REWRITES, "r")
            await until_receipt(gateway, client, "nightly", lambda seen: seen["status"] == 404)

"""A gateway with a policy and prices in front of simulated pods, and clients of several tenants, to be monitored.

Everything listens on the loopback address and ends with the block.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from simulator.children import Child, running
from simulator.profile import Profile
from simulator.stage import MODEL, start_pods

TENANTS = {"acme": "gold", "globex": "bronze", "initech": "bronze"}

TIERS: dict[str, dict[str, object]] = {
    "gold": {"priority": 10, "ttft_s": 2, "tpot_s": 0.5, "weight": 8, "max_queue_s": 5},
    "bronze": {"priority": -10, "ttft_s": 10, "max_queue_s": 20},
}

READY_S = 120.0


@dataclass(slots=True)
class Scene:
    """Where everything listens."""

    client: aiohttp.ClientSession
    url: str
    metrics_url: str
    admin_url: str
    pods: tuple[str, ...]
    children: tuple[Child, ...]
    """The pods."""

    async def ask(self, tenant: str, *, words: int = 300, prefix: str = "", max_tokens: int = 16) -> int:
        """Send a streamed chat of a tenant, and read its response. Returns the status, 0 without a connection."""
        text = f"{prefix} {'word ' * words}"
        body = {
            "model": MODEL,
            "stream": True,
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": text}],
        }
        headers = {"authorization": f"Bearer sk-{tenant}"}
        try:
            async with self.client.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def metrics(self) -> str:
        """Return the metrics of this moment."""
        async with self.client.get(f"{self.metrics_url}/metrics") as answer:
            return await answer.text()

    async def admin(self, path: str) -> Any:
        """Return a JSON answer of the admin port."""
        async with self.client.get(f"{self.admin_url}/{path}") as answer:
            return await answer.json(content_type=None)


@asynccontextmanager
async def scene(
    folder: Path, profile: Profile, *, pods: int = 2, slow: Profile | None = None, tenants: dict[str, Any] | None = None
) -> AsyncIterator[Scene]:
    """Start pods and a gateway. `slow`: the profile of one more pod. `tenants`: more keys of tenants in the policy."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - a folder of a test
    async with AsyncExitStack() as stack:
        started = await start_pods(stack, [folder / f"pod-{number}.log" for number in range(pods)], profile)
        if slow is not None:
            started += await start_pods(stack, [folder / "pod-slow.log"], slow)
        urls = tuple(url for _, url in started)
        config = folder / "hearth.yaml"
        config.write_text(yaml.safe_dump(_settings(folder, urls)), encoding="utf-8")
        (folder / "policy.yaml").write_text(yaml.safe_dump(_policy(tenants or {})), encoding="utf-8")
        _, listening = await stack.enter_async_context(
            running(
                "gateway",
                ["serve", "--config", str(config)],
                name="the gateway",
                log=folder / "gateway.log",
                greeting=_listening_in,
            )
        )
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=READY_S))
        )
        opened = Scene(
            client,
            url=f"http://{listening['traffic']}",
            metrics_url=f"http://{listening['metrics']}",
            admin_url=f"http://{listening['admin']}",
            pods=urls,
            children=tuple(child for child, _ in started),
        )
        async with asyncio.timeout(READY_S):
            while not await _are_ready(opened):  # noqa: ASYNC110 - another program makes it happen
                await asyncio.sleep(0.1)
        yield opened


async def _are_ready(opened: Scene) -> bool:
    fleet = await opened.admin("fleet")
    states: list[str] = [pod["state"] for pod in fleet["pods"]]
    return states.count("ready") == len(opened.pods)


def _settings(folder: Path, pods: tuple[str, ...]) -> dict[str, object]:
    listen = {f"{name}listen": "127.0.0.1:0" for name in ("", "metrics_", "admin_")}
    price = {
        "input_cost_per_token": 4e-7,
        "cache_read_input_token_cost": 4e-8,
        "output_cost_per_token": 1.6e-6,
        "model_name": MODEL,
    }
    return {
        **listen,
        "policy": str(folder / "policy.yaml"),
        "model_list": [price],
        "discovery": {"static": {"pods": list(pods)}},
    }


def _policy(tenants: dict[str, Any]) -> dict[str, object]:
    keys = {name: [hashlib.sha256(f"sk-{name}".encode()).hexdigest()] for name in TENANTS}
    return {
        "auth": {"keys": keys},
        "tiers": TIERS,
        "tenants": {name: {"tier": tier, **tenants.get(name, {})} for name, tier in TENANTS.items()},
    }


def _listening_in(line: bytes) -> dict[str, str] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if record.get("event") != "listening":
        return None
    return {port: record[port][0] for port in ("traffic", "metrics", "admin")}

"""A gateway with a policy and simulated pods, as official clients see it, for the scenarios of tenants."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai

from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.gateway.running import Running, serving

CHAT = "/v1/chat/completions"
FAST = Profile(step_base_s=0.002)
LONG = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 40


TIERS: dict[str, dict[str, Any]] = {
    "gold": {"priority": 10, "ttft_s": 5, "tpot_s": 1, "guaranteed_share": 0.5},
    "bronze": {"priority": -10, "ttft_s": 6, "tpot_s": 1, "max_queue_s": 60},
}


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def policy_of(**tenants: dict[str, Any]) -> dict[str, Any]:
    """Each tenant has one key: `sk-` and its name."""
    return {
        "auth": {"keys": {name: [digest(f"sk-{name}")] for name in tenants}},
        "tiers": TIERS,
        "headers": {"tenant": "x-hearth-tenant"},
        "tenants": tenants,
    }


class Place:
    """A gateway with two pods, one of them on our own premises, and a policy that can be written anew."""

    def __init__(self, gateway: Running, pods: list[SimulatedPod], policy: Path) -> None:
        self.gateway = gateway
        self.pods = pods
        self._policy = policy

    def write(self, **tenants: dict[str, Any]) -> None:
        self._policy.write_text(json.dumps(policy_of(**tenants)))

    def openai(self, tenant: str, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.gateway.at("traffic", "/v1"), api_key=f"sk-{tenant}", **more)

    def anthropic(self, tenant: str, **more: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.gateway.at("traffic"), api_key=f"sk-{tenant}", **more)

    async def receipts(self, tenant: str) -> list[dict[str, Any]]:
        url = self.gateway.at("admin", f"/receipts?tenant={tenant}")
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return list((await answer.json())["receipts"])

    async def metrics(self) -> str:
        async with aiohttp.ClientSession() as session, session.get(self.gateway.at("metrics", "/metrics")) as answer:
            return await answer.text()


@asynccontextmanager
async def a_place(
    tmp_path: Path, *flags: str, profile: Profile = FAST, **tenants: dict[str, Any]
) -> AsyncIterator[Place]:
    policy, config = tmp_path / "policy.yaml", tmp_path / "hearth.yaml"
    policy.write_text(json.dumps(policy_of(**tenants)))
    async with AsyncExitStack() as stack:
        options = Options(models=("big", "small"), profile=profile, keeps_responses=True, max_answer_tokens=40)
        pods = [await stack.enter_async_context(SimulatedPod(options)) for _ in range(2)]
        places: list[dict[str, str]] = [{"url": pod.url, "scheduling_policy": "priority"} for pod in pods]
        places[0]["region"] = "on-prem"
        settings = {"policy": str(policy), "discovery": {"static": {"pods": places}}, "trusted_proxies": ["127.0.0.1"]}
        config.write_text(json.dumps(settings))
        gateway = await stack.enter_async_context(serving("--config", str(config), *flags))
        if "--processes" not in flags:  # Workers listen when they know their pods.
            for _ in pods:
                await gateway.until("pod_state_changed", state="ready")
        yield Place(gateway, pods, policy)


def asking(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "big", "messages": [{"role": "user", "content": text}], "max_tokens": 8} | more

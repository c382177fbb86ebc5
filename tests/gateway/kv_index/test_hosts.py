"""Two gateways with a Redis between them, as their operators run them: what one is sent the other knows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.app.test_serving import CHAT
from tests.gateway.kv_index.redis_servers import redis_server
from tests.gateway.running import Running, serving

STORY = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 60


async def attempt(client: aiohttp.ClientSession, gateway: Running, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Ask, and see where it went and why. The answer joins the conversation."""
    requested = {"model": "tiny", "messages": messages, "max_tokens": 8}
    async with client.post(gateway.at("traffic", CHAT), json=requested) as answer:
        assert answer.status == 200, await answer.text()
        receipt = answer.headers["x-hearth-request-id"]
        messages.append((await answer.json())["choices"][0]["message"])
    async with client.get(gateway.at("admin", f"/receipts/{receipt}")) as shown:
        found: dict[str, Any] = (await shown.json())["attempts"][0]
        return found


async def metric(client: aiohttp.ClientSession, gateway: Running, name: str) -> float:
    async with client.get(gateway.at("metrics", "/metrics")) as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


async def test_a_conversation_stays_warm_whichever_gateway_it_comes_to(tmp_path: Path) -> None:
    """The second turn, sent to the other gateway, goes to the pod of the first; without Redis both still answer."""
    async with (
        redis_server(tmp_path) as redis,
        SimulatedPod(Options(models=("tiny",))) as first_pod,
        SimulatedPod(Options(models=("tiny",))) as second_pod,
    ):
        flags = ("--redis", redis.url, "--pod", first_pod.url, "--pod", second_pod.url)
        async with serving(*flags) as here, serving(*flags) as there, aiohttp.ClientSession() as client:
            for gateway in (here, there):
                async with asyncio.timeout(120):
                    while not await metric(client, gateway, "hearth_redis_connected"):
                        pass
                    while not await metric(client, gateway, "hearth_replica_sync_peers"):
                        pass
            for number in range(4):
                talk = [{"role": "user", "content": f"Story {number}. {STORY}"}]
                received = await metric(client, there, "hearth_replica_sync_updates_received_total")
                first = await attempt(client, here, talk)
                async with asyncio.timeout(120):
                    while await metric(client, there, "hearth_replica_sync_updates_received_total") < received + 3:
                        pass
                talk.append({"role": "user", "content": "And then?"})
                second = await attempt(client, there, talk)
                assert second["engine"] == first["engine"]
                assert second["predicted_cached_input_tokens"] > 500
            await redis.kill()
            for gateway in (here, there):
                await attempt(client, gateway, [{"role": "user", "content": STORY}])
            assert await metric(client, here, "hearth_redis_staleness_seconds") > 0

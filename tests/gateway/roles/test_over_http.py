"""Soft roles as their users run them: `hearth serve` in front of simulated pods over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from simulator.transfer.wiring import KvRole, Wiring
from tests.gateway.running import Running, serving
from tests.simulator.asking import LONG, chat, running

CHAT = "/v1/chat/completions"
ASKED = chat(LONG, max_tokens=24, ignore_eos=True)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Each request by a connection of its own: the kernel deals them out to processes."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


def write(folder: Path, pods: list[dict[str, Any]], **words: Any) -> str:
    """A configuration of these pods."""
    path = folder / "hearth.yaml"
    path.write_text(yaml.safe_dump({"discovery": {"static": {"pods": pods}}, **words}))
    return str(path)


async def ask(client: aiohttp.ClientSession, gateway: Running, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The answer's text, and the receipt."""
    async with client.post(gateway.at("traffic", CHAT), json=body) as answer:
        assert answer.status == 200, await answer.text()
        stated, receipt = await answer.json(), answer.headers["x-hearth-request-id"]
    async with client.get(gateway.at("admin", f"/receipts/{receipt}")) as shown:
        assert shown.status == 200, await shown.text()
        return stated["choices"][0]["message"]["content"], await shown.json()


async def test_workers_keep_the_same_roles_without_redis(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Of three engines that may do either one comes to prefill: in both processes, and every answer is one pod's."""
    async with AsyncExitStack() as stack:
        alone, _ = await stack.enter_async_context(running())
        pods = [(await stack.enter_async_context(running(wiring=Wiring(role=KvRole.BOTH))))[0] for _ in range(3)]
        reported = [{"url": pod.url, "kv_connector": "NixlConnector", "kv_role": "kv_both"} for pod in pods]
        config = write(tmp_path, reported, roles={"min_role_s": 600})
        gateway = await stack.enter_async_context(serving("--config", config, "--processes", "2"))
        async with client.post(f"{alone.url}{CHAT}", json=ASKED) as answer:
            wanted = (await answer.json())["choices"][0]["message"]["content"]
        prefillers: dict[str, str | None] = {}
        async with asyncio.timeout(120):
            while len(prefillers) < 2 or None in prefillers.values() or len(set(prefillers.values())) > 1:
                text, receipt = await ask(client, gateway, ASKED)
                assert text == wanted
                (attempt,) = receipt["attempts"]
                prefillers[receipt["worker"]] = attempt.get("prefill_engine")
        (prefiller,) = set(prefillers.values())
        assert prefiller in {pod.url for pod in pods}

"""A model that is scaled to zero: what waits for its first pod is a metric that an autoscaler can follow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.running import Running, serving
from tests.scenarios.place import CHAT, FAST, asking

SERIES = 'hearth_waiting_for_pod_requests{model_name="big"}'


async def shown(gateway: Running, session: aiohttp.ClientSession) -> str:
    async with session.get(gateway.at("metrics", "/metrics")) as answer:
        return await answer.text()


async def until_shown(gateway: Running, session: aiohttp.ClientSession, line: str) -> None:
    async with asyncio.timeout(60):
        while line not in (await shown(gateway, session)).splitlines():
            pass


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["one process", "two workers"])
async def test_a_waiting_request_raises_the_signal_that_brings_its_pod(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Zero before, the number of requests while they wait, zero again once a pod has come and answered them."""
    pods, config = tmp_path / "pods.yaml", tmp_path / "hearth.yaml"
    pods.write_text("pods: []\n")
    config.write_text(
        f"discovery: {{file: {{path: {pods}}}}}\n"
        "model_list: [{model_name: big}]\n"
        "timeouts: {scale_from_zero_s: 100, startup_discovery_s: 1}\n"
    )
    async with (
        SimulatedPod(Options(models=("big",), profile=FAST)) as pod,
        serving("--config", str(config), *flags) as gateway,
        aiohttp.ClientSession() as session,
    ):
        await until_shown(gateway, session, f"{SERIES} 0.0")
        traffic = gateway.at("traffic", CHAT)
        requested = [asyncio.create_task(session.post(traffic, json=asking())) for _ in range(3)]
        unknown = asyncio.create_task(session.post(traffic, json=asking(model="invented")))
        await until_shown(gateway, session, f"{SERIES} 3.0")
        assert (await unknown).status == 404
        assert "invented" not in await shown(gateway, session)
        pods.write_text(f"pods: [{{url: '{pod.url}'}}]\n")
        assert [answer.status for answer in await asyncio.gather(*requested)] == [200] * 3
        await until_shown(gateway, session, f"{SERIES} 0.0")

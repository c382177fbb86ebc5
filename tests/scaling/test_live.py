"""A gateway, simulated pods as processes, and KEDA with the HPA's own rules: from zero, to zero, and scalers that fail.

`make test-scale`; not part of the plain tests, because pods are processes and their starts take seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.gateway.running import Running, serving
from tests.gateway.scaling.hpa import ScalingRules
from tests.scaling.local_scaler import LocalCluster, LocalScaler, scaled
from tests.scaling.waiting import until
from tests.scenarios.place import CHAT, asking, digest

TRIGGER = {"model": "big", "pool": "h100"}

FAST = ScalingRules(max_replicas=3, down_stabilization_s=60.0, cooldown_s=30.0, fallback_replicas=1).faster(10)
"""KEDA polls every 3 s, the HPA every 1.5 s."""

SUPPLY: dict[str, Any] = {
    "scaling": "act",
    "listen": "127.0.0.1:0",
    "down_after_s": 3,
    "min_stay_s": 2,
    "idle_to_zero_s": 4,
    "use_forecast": False,
    "pools": {
        "h100": {"min_engines": 0, "max_engines": 3, "max_step_per_minute": 60, "engine_hours_per_day": 72},
    },
}

TIERS = {
    "gold": {"priority": 10, "ttft_s": 2, "tpot_s": 1, "max_queue_s": 60},
    "bronze": {"priority": -10, "ttft_s": 30, "tpot_s": 1, "max_queue_s": 60},
    "hasty": {"priority": 5, "ttft_s": 1, "tpot_s": 1, "max_queue_s": 2},
}


@dataclass
class Site:
    """A gateway, a cluster and the address of the external scaler."""

    gateway: Running
    cluster: LocalCluster
    where: str
    session: aiohttp.ClientSession

    async def post(self, tenant: str = "gold", **more: Any) -> tuple[int, Mapping[str, str], Any]:
        headers = {"authorization": f"Bearer sk-{tenant}"}
        async with self.session.post(self.gateway.at("traffic", CHAT), json=asking(**more), headers=headers) as answer:
            return answer.status, answer.headers, await answer.json()

    async def scale(self) -> dict[str, Any]:
        async with self.session.get(self.gateway.at("admin", "/scale")) as answer:
            return dict(await answer.json())

    async def metrics(self) -> str:
        async with self.session.get(self.gateway.at("metrics", "/metrics")) as answer:
            return await answer.text()

    async def until_pods(self, count: int) -> None:
        await until(lambda: len(self.cluster.pods) == count)


@asynccontextmanager
async def a_site(
    tmp_path: Path, *flags: str, start_s: float = 0.5, pool: dict[str, Any] | None = None, pods: int = 0, **supply: Any
) -> AsyncIterator[Site]:
    pod_file, config, policy = tmp_path / "pods.yaml", tmp_path / "hearth.yaml", tmp_path / "policy.yaml"
    tenants = {tier: {"tier": tier} for tier in TIERS}
    policy.write_text(
        yaml.safe_dump(
            {
                "auth": {"keys": {name: [digest(f"sk-{name}")] for name in tenants}},
                "tiers": TIERS,
                "tenants": tenants,
            }
        )
    )
    config.write_text(
        yaml.safe_dump(
            {
                "discovery": {"file": {"path": str(pod_file)}},
                "model_list": [{"model_name": "big"}],
                "pools": [{"name": "h100", "model": "big", "cost_per_engine_hour": 2, "start_s": 5, **(pool or {})}],
                "supply": {**SUPPLY, **supply},
                "policy": str(policy),
                "timeouts": {"startup_discovery_s": 1},
            }
        )
    )
    cluster = LocalCluster(pod_file, "h100", ("--model", "big", "--max-answer-tokens", "64"), start_s=start_s)
    cluster.write()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(cluster.close)
        if pods:
            cluster.scale(pods)
            await until(lambda: len(cluster.pods) == pods)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        gateway = await stack.enter_async_context(serving("--config", str(config), *flags))
        line = await gateway.until("external_scaler_listening")
        yield Site(gateway, cluster, line["listen"][0], session)


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["one process", "two workers"])
async def test_from_zero_to_served_and_back_without_a_503(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Requests without a pod wait in their tiers, raise the signal, and are served; then the pool goes to zero."""
    async with a_site(tmp_path, *flags) as site:
        scaler = LocalScaler(site.where, [TRIGGER], site.cluster, FAST)
        async with scaled(scaler):
            await asyncio.sleep(1.5)
            assert site.cluster.counts in ([], [0])
            begun_s = asyncio.get_running_loop().time()
            sent = [asyncio.create_task(site.post(tier)) for tier in ("bronze", "gold", "gold", "bronze")]
            await until(lambda: 1 in site.cluster.counts)
            signal_s = asyncio.get_running_loop().time() - begun_s
            assert signal_s < 1.0
            assert [status for status, _, _ in await asyncio.gather(*sent)] == [200] * 4
            (shown,) = (await site.scale())["pools"]
            assert (shown["model"], shown["pool"], shown["desired_engines"] >= 1) == ("big", "h100", True)
            assert 'hearth_desired_engines{model="big",pool="h100",role="either"}' in await site.metrics()
            await site.until_pods(0)
            assert site.cluster.ended == 0
            assert [(await site.post("gold"))[0]] == [200]


async def test_a_tier_that_waits_for_less_than_a_start_is_rejected_with_the_time_left(tmp_path: Path) -> None:
    """At once and with Retry-After; its client's return after that time is served, because the signal was raised."""
    async with a_site(tmp_path, start_s=1.0) as site, scaled(LocalScaler(site.where, [TRIGGER], site.cluster, FAST)):
        status, headers, body = await site.post("hasty")
        assert status == 503
        assert headers["x-hearth-reason"] == "no_pod_ready"
        assert 1 <= int(headers["retry-after"]) <= 5
        assert "is being started" in body["error"]["message"]
        await site.until_pods(1)
        await asyncio.sleep(int(headers["retry-after"]))
        assert (await site.post("hasty"))[0] == 200


async def test_no_pool_goes_to_zero_while_a_stream_runs(tmp_path: Path) -> None:
    """However long it is quiet otherwise."""
    async with a_site(tmp_path) as site:
        site.cluster.flags = ("--model", "big", "--max-answer-tokens", "4000", "--step-base-s", "0.02")
        async with scaled(LocalScaler(site.where, [TRIGGER], site.cluster, FAST)):
            status, _, body = await site.post("bronze", max_tokens=900, min_tokens=900)
            assert status == 200
            assert body["usage"]["completion_tokens"] == 900
            assert 0 not in site.cluster.counts[site.cluster.counts.index(1) :]
            await site.until_pods(0)
            assert site.cluster.ended == 0


async def test_a_scaler_that_dies_loses_nothing(tmp_path: Path) -> None:
    """Waiting requests wait on, running ones end; its successor finishes the work."""
    async with a_site(tmp_path, start_s=0.2) as site:
        first = LocalScaler(site.where, [TRIGGER], site.cluster, FAST)
        site.cluster.grants = 0
        async with scaled(first):
            sent = [asyncio.create_task(site.post("gold")) for _ in range(3)]
            await until(lambda: 1 in site.cluster.counts)
        assert not any(task.done() for task in sent)
        site.cluster.grants = 3
        async with scaled(LocalScaler(site.where, [TRIGGER], site.cluster, FAST)):
            assert [status for status, _, _ in await asyncio.gather(*sent)] == [200] * 3


async def test_a_scaler_that_lies_or_lags_loses_nothing(tmp_path: Path) -> None:
    """It takes pods away under load and gives them late: requests move to other pods, or wait for the next one."""
    async with a_site(tmp_path, pods=2, start_s=1.0) as site:
        statuses: list[int] = []

        async def client(number: int) -> None:
            for turn in range(6):
                status, _, _ = await site.post("bronze", text=f"client {number} turn {turn}", max_tokens=32)
                statuses.append(status)

        clients = [asyncio.create_task(client(number)) for number in range(4)]
        for count in (0, 1, 3, 0, 2, 0):
            await asyncio.sleep(1.0)
            site.cluster.scale(count)
        async with scaled(LocalScaler(site.where, [TRIGGER], site.cluster, FAST)):
            await asyncio.gather(*clients)
        assert statuses == [200] * 24
        assert site.cluster.ended == 0


async def test_figures_of_a_gateway_that_misses_peers_are_not_given(tmp_path: Path) -> None:
    """UNAVAILABLE, so that KEDA's fallback keeps the count."""
    async with a_site(tmp_path, pods=2, min_gateways=2) as site:
        scaler = LocalScaler(site.where, [TRIGGER], site.cluster, FAST)
        async with scaled(scaler):
            await asyncio.sleep(5)
        assert set(scaler.errors) == {"UNAVAILABLE"}
        assert len(site.cluster.pods) == 2
        view = await site.scale()
        assert not view["is_known"]
        assert view["pools"][0]["desired_engines"] == 2

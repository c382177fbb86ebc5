"""A whole gateway whose pods come from everywhere at once: one fleet, known before the first request is let in."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from routing.facts import PodFacts
from routing.pod_record import AgentRecord, RegisteredPod, record_key, write_record
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.discovery.api_server import TOKEN, ApiServer, api_server
from tests.gateway.discovery.cluster import PODS, a_pod
from tests.gateway.discovery.name_server import Zone, name_server
from tests.gateway.kv_index.redis_servers import Server, redis_server
from tests.gateway.running import Running, serving

SRV = "_http._tcp.vllm.example"


class Surroundings:
    """Two pods, and all the places that name them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: list[SimulatedPod] = []
        self.zone = Zone()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Running]:
        async with AsyncExitStack() as stack:
            for model in ("first", "second"):
                self.pods.append(await stack.enter_async_context(SimulatedPod(Options(models=(model,)))))
            await stack.enter_async_context(name_server(self.zone))
            self.redis: Server = await stack.enter_async_context(redis_server(self.folder))
            self.api: ApiServer = await stack.enter_async_context(api_server())
            await self.name_pods()
            config = self.folder / "hearth.yaml"
            config.write_text(json.dumps({"discovery": self.words(), "timeouts": {"startup_discovery_s": 100}}))
            yield await stack.enter_async_context(serving("--config", str(config)))

    async def name_pods(self) -> None:
        """The first by DNS and Kubernetes, the second by Redis and in the file."""
        first, second = (urlsplit(pod.url).port for pod in self.pods)
        self.zone.put(SRV, "SRV", f"0 0 {first} node.example.")
        self.zone.put("node.example", "A", "127.0.0.1")
        labels = {"app": "vllm", "topology.kubernetes.io/zone": "eu-1"}
        await self.api.put(PODS, a_pod("first", "127.0.0.1", labels, ports=(("http", first or 0),)))
        registered = RegisteredPod(self.pods[1].url, PodFacts(zone="eu-2", gpu="none"))
        written = write_record(AgentRecord("n1", 1, 3600.0, (registered,), life=1))
        await self.redis.log_event("SET", record_key("", "n1"), written)
        (self.folder / "pods.yaml").write_text(json.dumps([{"url": f"http://127.0.0.1:{second}", "zone": "mine"}]))
        (self.folder / "token").write_text(TOKEN)

    def words(self) -> dict[str, Any]:
        kubernetes = {"namespace": "inference", "selector": "app=vllm", "api": self.api.url}
        return {
            "file": {"path": str(self.folder / "pods.yaml")},
            "dns": {"name": SRV, "servers": [self.zone.address], "region": "eu"},
            "agent_registry": {"url": self.redis.url},
            "kubernetes": kubernetes | {"token_file": str(self.folder / "token")},
        }


async def test_pods_of_all_sources_are_one_fleet(tmp_path: Path) -> None:
    """Each model is served as soon as the port is open; the view says who named which pod, and who said what of it."""
    surroundings = Surroundings(tmp_path)
    async with surroundings.at_work() as gateway, aiohttp.ClientSession() as client:
        for model in ("first", "second"):
            requested = {"model": model, "prompt": "Hello", "max_tokens": 3}
            async with client.post(gateway.at("traffic", "/v1/completions"), json=requested) as answer:
                assert answer.status == 200, await answer.text()
        async with client.get(gateway.at("admin", "/fleet")) as answer:
            shown = await answer.json()
        first, second = ({pod["url"]: pod for pod in shown["pods"]}[pod.url] for pod in surroundings.pods)
        assert first["sources"] == ["kubernetes:inference", f"dns:{SRV}"]
        assert second["sources"] == ["file", "redis"]
        assert (first["facts"]["zone"], first["region"]) == ("eu-1", "eu")
        assert (second["facts"]["zone"], second["facts"]["gpu"]) == ("mine", "none")
        names = ["static", "file", "redis", "kubernetes:inference", f"dns:{SRV}"]
        assert [source["name"] for source in shown["sources"]] == names
        assert all(source["last_update_age_s"] is not None and not source["last_error"] for source in shown["sources"])
        async with client.get(gateway.at("metrics", "/metrics")) as answer:
            assert f'hearth_discovery_source_upstreams{{source="dns:{SRV}"}} 1.0' in await answer.text()

"""`hearth deletion-cost` against a local API server: before a count falls the right pods are patched, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.commands.deletion_cost import look
from gateway.config.discovery import DiscoveredPod, KubernetesSourceConfig
from gateway.deletion_cost.annotator import COST, OURS, PodAnnotator
from gateway.discovery.kubernetes_api import ServiceAccount
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.view import show_fleet
from routing.pods import PodState
from tenancy.document import InvalidValue
from tests.gateway.discovery.api_server import TOKEN, ApiServer
from tests.routing.engines import add_pod, ask, router_of

PODS = "/api/v1/namespaces/engines/pods"
SELECTOR = "app=vllm"
POOL = "m"
"""Label of pods that name no pool: their model."""


class Admin:
    """What the admin port of a gateway answers: a fleet of three pods, as the real view shows it."""

    def __init__(self, *, desired: int = 3, needed: int = 3, mode: str = "act") -> None:
        self.router = router_of(0)
        self.watched = [WatchedPod(DiscoveredPod(f"http://10.0.0.{number}:8000")) for number in (1, 2, 3)]
        for pod in self.watched:
            add_pod(self.router, pod.url)
        self.desired, self.needed, self.mode = desired, needed, mode
        self.is_there = True

    def serve(self, number: int, requests: int = 1) -> None:
        """Have a pod hold a prompt and run requests."""
        engine = self.router.fleet.engine(f"http://10.0.0.{number}:8000")
        assert engine is not None
        for _ in range(requests):
            self.router.ledger.charge(
                engine.slot, prefill_tokens=0.0, prefill_s=0.0, kv_tokens=9.0, sequences=1, now_s=0.0, queues=False
            )
        self.router.index.insert(engine.slot, ask().prompt)

    def drain(self, number: int) -> None:
        """Send a pod no more requests."""
        url = f"http://10.0.0.{number}:8000"
        known = self.router.fleet.pod(url)
        assert known is not None
        self.router.put_pod(type(known)(url, PodState.DRAINING, known.models, engines=known.engines))

    async def read(self, path: str) -> Mapping[str, Any]:
        if not self.is_there:
            raise InvalidValue("http://127.0.0.1:1: connection refused")
        if path == "/fleet":
            return show_fleet(self.router, self.watched, 0.0)
        rails = {"min_engines": 1, "max_engines": 9, "max_step_per_minute": 1, "engine_hours_per_day": 99}
        figures = {"desired_engines": self.desired, "needed_engines": self.needed, "rails": rails}
        return {
            "mode": self.mode,
            "is_known": True,
            "pools": [{"model": "m", "pool": POOL, "role": "either", **figures}],
        }


def made(name: str, address: str, annotations: dict[str, str] | None = None, app: str = "vllm") -> dict[str, Any]:
    metadata = {"name": name, "labels": {"app": app}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": "Running", "podIP": address}}


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, PodAnnotator]]:
    """An API server with three pods of engines and one that is not."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    server = ApiServer()
    await server.start()
    for number in (1, 2, 3):
        await server.put(PODS, made(f"vllm-{number}", f"10.0.0.{number}"))
    await server.put(PODS, made("web-1", "10.0.0.9", app="web"))
    place = KubernetesSourceConfig(namespace="engines", api=server.url, token_file=token)
    async with aiohttp.ClientSession() as session:
        try:
            yield server, PodAnnotator(ServiceAccount.from_config(place, {}, tmp_path), session)
        finally:
            await server.stop()


def costs_of(server: ApiServer) -> dict[str, str]:
    """Costs by the names of pods that have one."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["annotations"][COST]
        for pod in server.held(PODS)
        if COST in pod["metadata"]["annotations"]
    }


async def test_costs_follow_the_need_before_the_count_falls(tmp_path: Path) -> None:
    """The drained pod first, then the coldest; nothing is patched twice; when the need rises again costs go."""
    admin, lines = Admin(), list[str]()
    admin.serve(1)
    admin.drain(2)
    async with cluster(tmp_path) as (server, annotator):
        assert await look(admin.read, annotator, SELECTOR, lines.append)
        assert server.patches == []
        admin.needed = 1
        assert await look(admin.read, annotator, SELECTOR, lines.append)
        assert costs_of(server) == {"vllm-2": "-2", "vllm-3": "-1"}
        count = len(server.patches)
        admin.serve(3, 5)
        assert await look(admin.read, annotator, SELECTOR, lines.append)
        assert len(server.patches) == count
        assert {name for _, patch in server.patches for name in patch} == {"metadata"}
        admin.needed = 3
        assert await look(admin.read, annotator, SELECTOR, lines.append)
        assert costs_of(server) == {}
        assert all(OURS not in pod["metadata"]["annotations"] for pod in server.held(PODS))
    assert lines == ["hearth: 2 pods patched; 2 are to go first", "hearth: 2 pods patched; 0 are to go first"]


async def test_a_cost_that_somebody_else_has_set_stays(tmp_path: Path) -> None:
    """Also one that has replaced ours."""
    admin = Admin(needed=1)
    admin.serve(1)
    async with cluster(tmp_path) as (server, annotator):
        await server.put(PODS, made("vllm-2", "10.0.0.2", {COST: "50"}))
        await server.put(PODS, made("vllm-3", "10.0.0.3", {COST: "7", OURS: "-1"}))
        assert await look(admin.read, annotator, SELECTOR, lambda _: None)
        assert costs_of(server) == {"vllm-2": "50", "vllm-3": "7"}


@pytest.mark.parametrize("case", ["advise", "unknown", "no gateway"])
async def test_nothing_changes_without_figures_that_may_be_acted_on(tmp_path: Path, case: str) -> None:
    """Costs that are there stay."""
    admin = Admin(needed=1)
    admin.serve(1)
    async with cluster(tmp_path) as (server, annotator):
        assert await look(admin.read, annotator, SELECTOR, lambda _: None)
        before = costs_of(server)
        assert before
        admin.needed, admin.mode, admin.is_there = 3, "advise" if case == "advise" else "act", case != "no gateway"

        async def read(path: str) -> Mapping[str, Any]:
            return {**await admin.read(path), "is_known": case != "unknown"}

        lines = list[str]()
        assert await look(read, annotator, SELECTOR, lines.append) is (case != "no gateway")
        assert costs_of(server) == before
        assert bool(lines) is (case == "no gateway")


async def test_a_missing_right_and_a_missing_server_are_reported(tmp_path: Path) -> None:
    """With what the API server says; the next look tries again."""
    admin, lines = Admin(needed=1), list[str]()
    async with cluster(tmp_path) as (server, annotator):
        server.forbidden_patches.add("/pods")
        assert not await look(admin.read, annotator, SELECTOR, lines.append)
        assert "403" in lines[0]
        assert 'cannot patch resource "pods"' in lines[0]
        await server.stop()
        assert not await look(admin.read, annotator, SELECTOR, lines.append)
        assert lines[1].startswith(f"hearth: {PODS}: ")

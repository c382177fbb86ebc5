"""Pods, a gateway and an Envoy in front of both, and what can be asked about them afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.envoy.envoys import Envoy, Way, a_moment, envoy
from tests.gateway.running import Running, serving
from tests.scenarios.place import policy_of

CHAT = "/v1/chat/completions"
FAST = Profile(step_base_s=0.002)
PATIENCE_S = 120.0

KEPT_S = 4.0
"""How long a connection is used again: below the 5 s after which a pod closes what is idle, as vLLM does. What went by
way of Envoy meanwhile may have taken as long as that.
"""


@dataclass
class Scene:
    """All that runs. `url` is where clients come in: Envoy, or the gateway itself where there is no Envoy."""

    pods: list[SimulatedPod]
    gateway: Running
    session: aiohttp.ClientSession
    envoy: Envoy | None = None

    @staticmethod
    def usual() -> Options:
        """The pods where nobody says otherwise."""
        return Options(models=("big", "small"), profile=FAST, keeps_responses=True, max_answer_tokens=40)

    @property
    def url(self) -> str:
        return self.envoy.url if self.envoy is not None else self.gateway.at("traffic")

    @property
    def picker(self) -> str:
        line = next(line for line in self.gateway.lines if line["event"] == "listening")
        return str(line["extproc"][0])

    def endpoint(self, at: int) -> str:
        return self.pods[at].url.removeprefix("http://")

    def post(self, body: dict[str, Any], path: str = CHAT, **more: Any) -> Any:
        return self.session.post(self.url + path, json=body, **more)

    async def receipts(self) -> list[dict[str, Any]]:
        """Newest first."""
        async with self.session.get(self.gateway.at("admin", "/receipts")) as answer:
            return list((await answer.json())["receipts"])

    async def receipt(self, receipt_id: str) -> dict[str, Any]:
        """The receipt of a request, once it has been settled."""
        found: dict[str, Any] | None = None

        async def look() -> bool:
            nonlocal found
            found = next((one for one in await self.receipts() if one["id"] == receipt_id), None)
            return found is not None

        await until(look)
        assert found is not None
        return found

    async def metrics(self) -> dict[str, float]:
        async with self.session.get(self.gateway.at("metrics", "/metrics")) as answer:
            lines = (await answer.text()).splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    async def until_idle(self) -> None:
        """Until nothing is under way and the ledger says so."""

        async def is_idle() -> bool:
            return (await self.metrics())["hearth_extproc_requests_in_flight"] == 0 and not await self.running()

        await until(is_idle)

    async def running(self) -> int:
        """Requests that stand in the ledger, all engines together."""
        async with self.session.get(self.gateway.at("admin", "/fleet")) as answer:
            pods = (await answer.json())["pods"]
        return sum(engine["own_load"]["running"] for pod in pods for engine in pod["engines"])


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that will come to be."""
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():
            await a_moment()


@asynccontextmanager
async def a_scene(
    way: Way | Callable[[Sequence[SimulatedPod]], Way] | None,
    *,
    extproc: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    tenants: dict[str, dict[str, Any]] | None = None,
    count: int = 2,
    options: Options | None = None,
) -> AsyncIterator[Scene]:
    """`way`: how Envoy works, or how that follows from the pods; None: no Envoy."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hearth-scene-")))
        pods = [await stack.enter_async_context(SimulatedPod(options or Scene.usual())) for _ in range(count)]
        reported: dict[str, Any] = {
            "discovery": {"static": {"pods": [pod.url for pod in pods]}},
            "extproc": {"listen": "127.0.0.1:0", **(extproc or {})},
            **(settings or {}),
        }
        if tenants is not None:
            policy = folder / "policy.yaml"
            policy.write_text(json.dumps(policy_of(**tenants)))
            reported["policy"] = str(policy)
        config = folder / "hearth.yaml"
        config.write_text(json.dumps(reported))
        gateway = await stack.enter_async_context(serving("--config", str(config)))
        kept = aiohttp.TCPConnector(keepalive_timeout=KEPT_S)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=kept))
        scene = Scene(pods, gateway, session)
        if way is not None:
            found = way(pods) if callable(way) else way
            scene.envoy = await stack.enter_async_context(envoy(found, scene.picker))
        yield scene


def asking(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "big", "messages": [{"role": "user", "content": text}], "max_tokens": 8} | more

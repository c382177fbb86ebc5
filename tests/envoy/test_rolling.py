"""Pickers behind a real Envoy are restarted one by one under load, and no request fails, though no client tries again.

Envoy is set up by the files in deploy/envoy. Streams stand still at the picker that goes until Envoy has seen it go.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from simulator.envoy import Bootstrap, Envoy, bootstrap, envoy_running
from simulator.faults import NO_FAULT, Fault, FaultKind
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.envoy.envoys import binary
from tests.envoy.scene import CHAT, until
from tests.gateway.rolls import Seat, a_gateway, a_pod, loaded
from tests.gateway.warmth.redis_servers import free_ports
from tests.sources import ROOT

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(300)]

LONG = "long"
"""A model of its own, on a pod that stands still when it is told to."""


def unhurried(config: Bootstrap) -> Bootstrap:
    """The same, with patience for a machine on which a living picker may be silent for long."""
    (hearth,) = [one for one in config["static_resources"]["clusters"] if one["name"] == "hearth"]
    hearth["health_checks"][0]["timeout"] = hearth["connect_timeout"] = "60s"
    (options,) = hearth["typed_extension_protocol_options"].values()
    del options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    return config


@dataclass
class Held:
    """Streams that have begun, of a pod that stands still."""

    pod: SimulatedPod
    url: str
    client: aiohttp.ClientSession
    answers: list[aiohttp.ClientResponse] = field(default_factory=list)

    async def begin(self) -> None:
        """One more has told its first token; then none of them tells anything."""
        self.pod.set_fault(NO_FAULT)
        body = {"model": LONG, "stream": True, "max_tokens": 300, "messages": [{"role": "user", "content": "Hi"}]}
        answer = await self.client.post(self.url + CHAT, json=body)
        assert answer.status == 200, await answer.text()
        self.answers.append(answer)
        await answer.content.readline()
        self.pod.set_fault(Fault(FaultKind.HANG))

    async def end(self) -> None:
        """All of them come to their ends."""
        self.pod.set_fault(NO_FAULT)
        for answer in self.answers:
            assert (await answer.text()).endswith("data: [DONE]\n\n")
        self.answers.clear()


@dataclass(frozen=True)
class Scene:
    """Two pickers, the Envoy that asks them, and streams that can be held."""

    pickers: dict[int, Seat]
    envoy: Envoy
    held: Held

    async def roll(self, port: int) -> None:
        """Restart the picker on this port while a stream stands at it."""
        seat = self.pickers[port]
        while not await self._holds_one(seat):
            await self.held.begin()
        seat.now.running.send_signal(signal.SIGTERM)
        await seat.now.until("draining")
        await until(partial(self._is_seen, port, healthy=False))
        await self.held.end()
        assert await seat.now.end() == 0
        await seat.empty()
        await seat.fill()
        await until(partial(self._is_seen, port, healthy=True))

    async def _holds_one(self, seat: Seat) -> bool:
        async with self.held.client.get(seat.now.at("admin", "/fleet")) as answer:
            pods = (await answer.json())["pods"]
        engines = [engine for pod in pods if pod["url"] == self.held.pod.url for engine in pod["engines"]]
        return any(engine["ledger"]["running"] for engine in engines)

    async def _is_seen(self, port: int, *, healthy: bool) -> bool:
        async with self.held.client.get(f"{self.envoy.admin_url}/clusters?format=json") as told:
            clusters = (await told.json(content_type=None))["cluster_statuses"]
        (hosts,) = [one["host_statuses"] for one in clusters if one["name"] == "hearth"]
        (host,) = [one for one in hosts if one["address"]["socket_address"]["port_value"] == port]
        return bool(host["health_status"].get("failed_active_health_check")) != healthy


def seats_of(ports: Iterator[int], flags: tuple[str, ...], pods: list[str], stack: AsyncExitStack) -> dict[int, Seat]:
    """Two places for pickers, by the port on which Envoy finds them."""
    found = {}
    for _ in range(2):
        at, own = next(ports), [next(ports) for _ in range(3)]
        found[at] = Seat(partial(a_gateway, own, pods, (*flags, "--extproc", f"127.0.0.1:{at}")), stack)
    return found


@asynccontextmanager
async def a_scene(folder: Path, file: str) -> AsyncIterator[Scene]:
    ports = iter(free_ports(9))
    busy, slow = next(ports), Profile(step_base_s=0.01)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(a_pod(busy, folder))
        lasting = Options(models=(LONG,), profile=slow, shortest_answer=300, longest_answer=300)
        long = await stack.enter_async_context(SimulatedPod(lasting))
        pods = [f"http://127.0.0.1:{busy}", long.url]
        (config := folder / "hearth.json").write_text(json.dumps({"timeouts": {"drain_s": 600}}))
        pickers = seats_of(ports, ("--config", str(config)), pods, stack)
        for seat in pickers.values():
            await seat.fill()
        places = [f"127.0.0.1:{port}" for port in pickers]
        words = unhurried(bootstrap(ROOT / "deploy" / "envoy" / f"{file}.yaml", places, pods))
        front = await stack.enter_async_context(envoy_running(Path(binary()), words, folder))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)))
        yield Scene(pickers, front, Held(long, front.url, client))


@pytest.mark.parametrize("file", ["own", "observed", "gie"])
async def test_two_pickers_are_rolled_and_no_request_fails(tmp_path: Path, file: str) -> None:
    """Also without a lame duck: whoever finds a port closed, or is sent away, is picked for by the other one."""
    async with a_scene(tmp_path, file) as scene, loaded(scene.envoy.url, retries=0) as load:
        for port in scene.pickers:
            await scene.roll(port)
            await load.goes_on()
    assert not load.failures, load.failures

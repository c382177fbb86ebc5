"""Pickers behind a real Envoy are restarted one by one under load, and no request fails, though no client tries again.

Envoy is set up by the files in deploy/envoy. Streams stand still at the picker that goes until Envoy has seen it go.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from simulator.faults import NO_FAULT, Fault, FaultKind
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.envoy.pickers import Pickers, two_pickers
from tests.envoy.scene import CHAT
from tests.gateway.kv_index.redis_servers import free_ports
from tests.gateway.rolls import Seat, a_pod, loaded

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(300)]

LONG = "long"
"""A model of its own, on a pod that stands still when it is told to."""


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
    """Two pickers, and streams that can be held."""

    pickers: Pickers
    held: Held

    async def roll(self, port: int) -> None:
        """Restart the picker on this port while a stream stands at it."""
        seat = self.pickers.seats[port]
        while not await self._holds_one(seat):
            await self.held.begin()
        seat.now.running.send_signal(signal.SIGTERM)
        await seat.now.until("drain_started")
        await self.pickers.until_seen(port, healthy=False)
        await self.held.end()
        assert await seat.now.end() == 0
        await seat.empty()
        await seat.fill()
        await self.pickers.until_seen(port, healthy=True)

    async def _holds_one(self, seat: Seat) -> bool:
        async with self.held.client.get(seat.now.at("admin", "/fleet")) as answer:
            pods = (await answer.json())["pods"]
        engines = [engine for pod in pods if pod["url"] == self.held.pod.url for engine in pod["engines"]]
        return any(engine["own_load"]["running"] for engine in engines)


@asynccontextmanager
async def a_scene(folder: Path, file: str) -> AsyncIterator[Scene]:
    [busy], slow = free_ports(1), Profile(step_base_s=0.01)
    lasting = Options(models=(LONG,), profile=slow, min_answer_tokens=300, max_answer_tokens=300)
    async with a_pod(busy, folder), SimulatedPod(lasting) as long:
        pods = [f"http://127.0.0.1:{busy}", long.url]
        async with two_pickers(folder, file, pods, settings={"timeouts": {"drain_s": 600}}) as pickers:
            yield Scene(pickers, Held(long, pickers.envoy.url, pickers.client))


@pytest.mark.parametrize("file", ["own", "observed", "gie"])
async def test_two_pickers_are_rolled_and_no_request_fails(tmp_path: Path, file: str) -> None:
    """Also without a lame duck: each stays until Envoy knows that it goes, and its streams end as they would have."""
    async with a_scene(tmp_path, file) as scene, loaded(scene.pickers.envoy.url, retries=0) as load:
        for port in scene.pickers.seats:
            await scene.roll(port)
            await load.goes_on()
    assert not load.failures, load.failures

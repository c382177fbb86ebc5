"""Pickers are asked with large bodies in full duplex, one of them goes, and no request fails, nobody trying again.

Envoy asks another picker only as long as it has written no more than 64 KB of a body: a port that it finds closed costs
the request. So a picker that goes keeps its port open until Envoy's health check knows.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from simulator.envoy import Bootstrap
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.envoy.envoys import a_moment
from tests.envoy.pickers import Pickers, cluster_of, two_pickers, unhurried
from tests.envoy.scene import CHAT
from tests.gateway.rolls import MODEL, TOKENS, Seat, loaded

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(300)]

LARGE = " word" * 41_000
PIECE_BYTES = 20_000


def seldom(config: Bootstrap) -> Bootstrap:
    """Envoy looks at its pickers at intervals in which many requests would find a closed port."""
    checks = cluster_of(unhurried(config))["health_checks"][0]
    checks |= {"interval": "3s", "no_traffic_interval": "3s", "unhealthy_interval": "0.2s"}
    return config


def question(text: str) -> dict[str, object]:
    return {"model": MODEL, "max_tokens": TOKENS, "messages": [{"role": "user", "content": text}]}


@dataclass
class Uploads:
    """Large bodies that stand still after their first piece until they are let go on."""

    pickers: Pickers
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    requested: list[asyncio.Task[int]] = field(default_factory=list)

    async def until_one_stands_at(self, seat: Seat) -> None:
        while not await self._stand_at(seat):
            self.requested.append(asyncio.create_task(self._ask()))
            await a_moment()

    async def statuses(self) -> set[int]:
        """What became of them, once all have been let go on."""
        self.may_go_on.set()
        return set(await asyncio.gather(*self.requested))

    async def _ask(self) -> int:
        words = {"content-type": "application/json"}
        async with self.pickers.client.post(
            self.pickers.envoy.url + CHAT, data=self._pieces(), headers=words
        ) as answer:
            await answer.read()
            return answer.status

    async def _pieces(self) -> AsyncIterator[bytes]:
        body = json.dumps(question(LARGE)).encode()
        for at in range(0, len(body), PIECE_BYTES):
            yield body[at : at + PIECE_BYTES]
            await self.may_go_on.wait()

    async def _stand_at(self, seat: Seat) -> bool:
        async with self.pickers.client.get(seat.now.at("metrics", "/metrics")) as answer:
            lines = (await answer.text()).splitlines()
        return any(line.startswith("hearth_extproc_requests_in_flight ") and float(line.split()[1]) for line in lines)


@asynccontextmanager
async def a_scene(folder: Path, file: str) -> AsyncIterator[Pickers]:
    quick = Profile(prefill_tokens_per_s=1e7, step_base_s=0.002)
    options = Options(models=(MODEL,), profile=quick, min_answer_tokens=TOKENS)
    async with SimulatedPod(options) as pod, two_pickers(folder, file, [pod.url], altered=seldom) as pickers:
        yield pickers


async def test_a_picker_that_goes_loses_no_large_body(tmp_path: Path) -> None:
    """Neither of those who ask at that time, nor of those whose body is half there."""
    async with a_scene(tmp_path, "gie") as pickers:
        port, seat = next(iter(pickers.seats.items()))
        uploads = Uploads(pickers)
        await uploads.until_one_stands_at(seat)
        async with loaded(pickers.envoy.url, retries=0, more=LARGE) as load:
            seat.now.running.send_signal(signal.SIGTERM)
            await pickers.until_seen(port, healthy=False)
            await load.goes_on()
            assert await uploads.statuses() == {200}
            assert await seat.now.end() == 0
        assert not load.failures, load.failures


@pytest.mark.parametrize("file", ["own", "gie"])
async def test_a_picker_that_is_gone_is_done_without(tmp_path: Path, file: str) -> None:
    """Killed, and before any check knows: who finds its port closed is picked for by the other one."""
    async with a_scene(tmp_path, file) as pickers:
        seat = next(iter(pickers.seats.values()))
        seat.now.running.kill()
        await seat.now.running.wait()
        for _ in range(8):
            async with pickers.client.post(pickers.envoy.url + CHAT, json=question("Hi")) as answer:
                assert answer.status == 200, await answer.text()

"""What a client sees when the picker is down, hangs, or is slow: the rows of the table in docs/envoy.md, one by one.

A picker that hangs is a real gateway that was stopped by a signal; one that is slow is let go on after a while.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from simulator.envoy import Bootstrap, Envoy, bootstrap, envoy_running
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.envoy.envoys import a_moment
from tests.gateway.running import Running, serving
from tests.sources import ROOT

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(300)]

LIMIT_S = 120.0
CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "max_tokens": 3, "messages": [{"role": "user", "content": "tell me"}]}


def filter_of(config: Bootstrap) -> Any:
    """The ext_proc filter."""
    front = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return front["http_filters"][0]["typed_config"]


def picker_of(config: Bootstrap) -> Any:
    """The cluster of pickers."""
    (found,) = [one for one in config["static_resources"]["clusters"] if one["name"] == "hearth"]
    return found


def h2_of(config: Bootstrap) -> Any:
    """How Envoy talks HTTP/2 with them."""
    (options,) = picker_of(config)["typed_extension_protocol_options"].values()
    return options["explicit_http_config"]["http2_protocol_options"]


@dataclass(frozen=True, slots=True)
class Scene:
    """A picker, an Envoy that asks it, and a client."""

    gateway: Running
    envoy: Envoy
    client: aiohttp.ClientSession

    async def ask(self) -> tuple[int, str]:
        """Status and body of a small question, by POST."""
        async with self.client.post(f"{self.envoy.url}{CHAT}", json=BODY) as answer:
            return answer.status, await answer.text()

    async def until_served(self) -> None:
        """A question is answered: the first after a start, or after somebody has come back, may find things unready."""
        await until(self._is_served)

    async def until_known(self, *, healthy: bool) -> None:
        """Envoy's own check has found the picker so."""

        async def is_known() -> bool:
            return await self._is_healthy() == healthy

        await until(is_known)

    async def _is_served(self) -> bool:
        return (await self.ask())[0] == 200

    async def _is_healthy(self) -> bool:
        async with self.client.get(f"{self.envoy.admin_url}/clusters?format=json") as reported:
            clusters = (await reported.json(content_type=None))["cluster_statuses"]
        (hosts,) = [one["host_statuses"] for one in clusters if one["name"] == "hearth"]
        return not any(host["health_status"].get("failed_active_health_check") for host in hosts)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.gateway.running.pid, number)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so; nobody tells us."""
    async with asyncio.timeout(LIMIT_S):
        while not await is_so():
            await a_moment()


@asynccontextmanager
async def staged(
    folder: Path, file: str, *, is_open: bool, checks: bool = False, pings: bool = True
) -> AsyncIterator[Scene]:
    """With health checks, or so that a request is the first to find out; with pings that find out, or without."""
    options = Options(models=("tiny",))
    client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S))
    async with SimulatedPod(options) as one, SimulatedPod(options) as two, client:
        pods = (one.url, two.url)
        named = [word for url in pods for word in ("--pod", url)]
        async with serving(*named, "--extproc-listen", "127.0.0.1:0") as gateway:
            (listening,) = [line for line in gateway.lines if line["event"] == "listening"]
            config = bootstrap(ROOT / "deploy" / "envoy" / f"{file}.yaml", listening["extproc"], pods)
            filter_of(config)["failure_mode_allow"] = is_open
            if not pings:
                h2_of(config).pop("connection_keepalive")
            if not checks:
                picker_of(config).pop("health_checks")
            async with envoy_running(binary(), config, folder) as envoy:
                yield Scene(gateway, envoy, client)


def binary() -> Path:
    return Path((ROOT / ".venv-envoy" / "binary").read_text().strip())


BOTH_WAYS = pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
FILES = pytest.mark.parametrize("file", ["own", "gie"])


@FILES
@BOTH_WAYS
async def test_a_hung_picker_delays_no_request_for_good(tmp_path: Path, file: str, *, is_open: bool) -> None:
    """Before any health check: it answers no ping, so its streams end with 503; when it goes on, so does everything."""
    async with staged(tmp_path, file, is_open=is_open) as scene:
        await scene.until_served()
        scene.signal(signal.SIGSTOP)
        assert (await scene.ask())[0] == 503
        scene.signal(signal.SIGCONT)
        await scene.until_served()


@FILES
@BOTH_WAYS
async def test_a_picker_that_is_down_is_an_error_at_once(tmp_path: Path, file: str, *, is_open: bool) -> None:
    """Before any health check, a POST is not let through even where failing open was asked for."""
    async with staged(tmp_path, file, is_open=is_open) as scene:
        await scene.until_served()
        scene.signal(signal.SIGKILL)
        await scene.gateway.running.wait()
        assert (await scene.ask())[0] == 503


@FILES
@BOTH_WAYS
@pytest.mark.parametrize("failure", [signal.SIGKILL, signal.SIGSTOP], ids=["down", "hung"])
async def test_a_picker_known_to_fail_is_rejected_or_passed_by(
    tmp_path: Path, file: str, failure: signal.Signals, *, is_open: bool
) -> None:
    """Closed: 503. Open: 200 where Envoy knows pods itself, still 503 where only the picker does."""
    async with staged(tmp_path, file, is_open=is_open, checks=True) as scene:
        await scene.until_served()
        scene.signal(failure)
        await scene.until_known(healthy=False)
        status, _ = await scene.ask()
        assert status == (200 if is_open and file == "gie" else 503)
        if failure is signal.SIGSTOP:
            scene.signal(signal.SIGCONT)
            await scene.until_known(healthy=True)
            await scene.until_served()


@FILES
async def test_a_slow_picker_is_waited_for(tmp_path: Path, file: str) -> None:
    """Late is not lost, as long as it is not later than Envoy waits: for a message, and for a ping."""
    async with staged(tmp_path, file, is_open=False, pings=False) as scene:
        await scene.until_served()
        scene.signal(signal.SIGSTOP)
        asking = asyncio.create_task(scene.ask())
        _, late = await asyncio.wait({asking}, timeout=0.2)
        assert late
        scene.signal(signal.SIGCONT)
        assert (await asking)[0] == 200

"""A small cluster on this machine: `hearth pod` processes, started and ended by a count that KEDA's protocol moves.

Pods are listed in a pod file; a pod that is to go is taken out of the list first, and ended when its streams are.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import yaml

from tests.gateway.scaling.hpa import Autoscaler, ScalingRules
from tests.gateway.scaling.keda import KedaClient, keda
from tests.sources import ROOT

POLL_S = 0.1


@dataclass(slots=True)
class LocalCluster:
    """Pods as processes. `start_s`: seconds until a requested pod begins to start; `grants`: at most so many."""

    pod_file: Path
    pool: str
    flags: Sequence[str] = ()
    start_s: float = 0.0
    grants: int = 100
    grace_s: float = 20.0
    pods: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    """Each requested count, in order."""
    ended: int = 0
    """Pods that were killed with running requests."""
    _wanted: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _starting: int = 0

    def scale(self, count: int) -> None:
        """Request a count of pods."""
        if not self.counts or self.counts[-1] != count:
            self.counts.append(count)
        self._wanted = count
        while len(self.pods) + self._starting < min(count, self.grants):
            self._starting += 1
            self._run(self._start())
        while len(self.pods) > count:
            url = next(reversed(self.pods))
            self._run(self._stop(url, self.pods.pop(url)))
            self.write()

    def write(self) -> None:
        """Write the pod file: as discovery sees it."""
        content = {"pods": [{"url": url, "pool": self.pool} for url in self.pods]}
        fresh = self.pod_file.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(content))
        fresh.replace(self.pod_file)

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self.pods.values():
            process.kill()
        await asyncio.gather(*(process.wait() for process in self.pods.values()))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self) -> None:
        try:
            await asyncio.sleep(self.start_s)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway", "pod", "--listen", "127.0.0.1:0", *self.flags),
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            assert process.stdout is not None
            try:
                url = (await process.stdout.readline()).decode().strip()
            except asyncio.CancelledError:  # The cluster closes while it starts.
                process.kill()
                raise
        finally:
            self._starting -= 1
        self.pods[url] = process
        self.write()
        self.scale(self._wanted)

    async def _stop(self, url: str, process: asyncio.subprocess.Process) -> None:
        """Wait until nothing runs there, then end it: as a preStop hook of a serving pod does."""
        try:
            async with asyncio.timeout(self.grace_s), aiohttp.ClientSession() as session:
                await asyncio.sleep(1.5)  # Endpoints are removed before the pod is.
                while await _running(session, url):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self.ended += 1
        finally:
            process.terminate()
            await process.wait()


async def _running(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(f"{url}/metrics") as answer:
        page = await answer.text()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))
    )


@dataclass(slots=True)
class LocalScaler:
    """KEDA and the HPA against a gateway's external scaler, with pushes."""

    where: str
    triggers: Sequence[Mapping[str, str]]
    cluster: LocalCluster
    rules: ScalingRules
    errors: list[str] = field(default_factory=list)
    """Status of each failed call."""
    values: list[float] = field(default_factory=list)
    autoscaler: Autoscaler = field(init=False)

    def __post_init__(self) -> None:
        self.autoscaler = Autoscaler(self.rules, replicas=len(self.cluster.pods))

    async def run(self) -> None:
        """Scale until cancelled."""
        async with keda(self.where) as client, asyncio.TaskGroup() as group:
            group.create_task(self._poll(client))
            group.create_task(self._sync(client))
            for trigger in self.triggers:
                group.create_task(self._push(client, trigger))

    async def _poll(self, client: KedaClient) -> None:
        """KEDA's own loop: between zero and one."""
        while True:
            states = [await self._is_active(client, trigger) for trigger in self.triggers]
            now_s = asyncio.get_running_loop().time()
            if any(states):
                self.autoscaler.activate(now_s)
            elif None not in states:  # A scaler that fails deactivates nothing.
                self.autoscaler.deactivate(now_s)
            self.cluster.scale(self.autoscaler.replicas)
            await asyncio.sleep(self.rules.polling_s)

    async def _sync(self, client: KedaClient) -> None:
        """The HPA's loop: one and above."""
        while True:
            values = [await self._value(client, trigger) for trigger in self.triggers]
            self.values += [value for value in values if value is not None]
            self.autoscaler.sync(values, asyncio.get_running_loop().time())
            self.cluster.scale(self.autoscaler.replicas)
            await asyncio.sleep(self.rules.sync_s)

    async def _push(self, client: KedaClient, trigger: Mapping[str, str]) -> None:
        """`external-push`: a true wakes at once, a false is ignored, a lost stream is opened again."""
        while True:
            try:
                async for is_active in client.activity(trigger):
                    if is_active:
                        self.autoscaler.activate(asyncio.get_running_loop().time())
                        self.cluster.scale(self.autoscaler.replicas)
            except grpc.aio.AioRpcError as error:
                self.errors.append(error.code().name)
            await asyncio.sleep(2.0 / 10)

    async def _is_active(self, client: KedaClient, trigger: Mapping[str, str]) -> bool | None:
        try:
            return await client.is_active(trigger)
        except grpc.aio.AioRpcError as error:
            self.errors.append(error.code().name)
            return None

    async def _value(self, client: KedaClient, trigger: Mapping[str, str]) -> float | None:
        try:
            return await client.desired(trigger)
        except grpc.aio.AioRpcError as error:
            self.errors.append(error.code().name)
            return None


@asynccontextmanager
async def scaled(scaler: LocalScaler) -> AsyncIterator[asyncio.Task[None]]:
    """A scaler that runs; its cluster outlives it."""
    running = asyncio.create_task(scaler.run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

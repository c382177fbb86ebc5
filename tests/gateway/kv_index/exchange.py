"""Hosts and workers that exchange news over real sockets, for the tests of the exchange."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.cluster.index_process import IndexProcessServer
from gateway.config.fields import Secret
from gateway.config.settings import Settings
from gateway.replica_sync.host_client import IndexProcessClient
from gateway.replica_sync.ipc_messages import Hello
from gateway.replica_sync.sync import ReplicaSync
from gateway.runtime.event_log import EventLog
from routing.decision.router import Router
from tests.routing.engines import router_of
from tests.routing.exchanges import loads

PATIENCE_S = 120.0


class Said(EventLog):
    """An event log that is a list."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def __call__(self, level: str, event: str, **fields: object) -> None:
        self.lines.append((level, event, fields))


async def until(is_so: Callable[[], object]) -> None:
    """Come back when something has become so; looked at whenever the loop has had its turn."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            looked = asyncio.Event()
            loop.call_later(0.002, looked.set)
            await looked.wait()


def alike(*workers: Worker) -> bool:
    """Whether all hold the same of every engine, and something at all. What is told is told in whole tokens."""
    first, *others = (loads(worker.router) for worker in workers)
    return bool(first) and all(
        other.keys() == first.keys() and all(map(_is_near, (first[name] for name in other), other.values()))
        for other in others
    )


def _is_near(one: tuple[float, float, int], other: tuple[float, float, int]) -> bool:
    return one[2] == other[2] and all(abs(mine - theirs) <= one[2] for mine, theirs in zip(one, other, strict=True))


@dataclass
class Worker:
    """One gateway's part of the exchange."""

    router: Router
    client: IndexProcessClient
    sharing: ReplicaSync
    stated: Said
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def die(self) -> None:
        """Be gone without a word."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@dataclass
class Host:
    """An index process, and the workers that were started on its host."""

    where: Path
    warmth: IndexProcessServer
    stated: Said
    registry: CollectorRegistry
    running: asyncio.Task[None]
    workers: list[Worker] = field(default_factory=list)

    def worker(self, pods: int = 3, *, fleet_known: bool = True) -> Worker:
        """Start a worker."""
        origin = Random(str(self.where) + str(len(self.workers))).getrandbits(63)
        router, stated = router_of(pods), Said()
        client = IndexProcessClient(self.where, Hello(origin), log_event=stated, draw=lambda: 0.0)
        known = asyncio.Event()
        if fleet_known:
            known.set()
        sharing = ReplicaSync(
            router, client, log_event=stated, clock=asyncio.get_running_loop().time, fleet_known=known
        )
        worker = Worker(router, client, sharing, stated)
        worker.tasks += [asyncio.create_task(client.run()), asyncio.create_task(sharing.run())]
        self.workers.append(worker)
        return worker

    def knows(self, *workers: Worker) -> bool:
        """Whether all are connected, and the index process has heard who they are: that comes a moment later."""
        received = self.warmth.hub._connections.values()
        return all(worker.sharing.is_connected and worker.sharing.replica_id in received for worker in workers)

    async def stop(self) -> None:
        """End the index process; workers live on."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    def start(self, settings: Settings) -> None:
        """Start it (again)."""
        self.registry = CollectorRegistry()
        self.warmth = IndexProcessServer(settings, self.where, self.stated, self.registry)
        self.running = asyncio.create_task(self.warmth.run())


@asynccontextmanager
async def host(folder: Path, redis: str | None = None, **changed: Any) -> AsyncIterator[Host]:
    """A host whose children are ended when the test is over."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - a folder of a test
    settings = replace(Settings(), redis=Secret(redis) if redis else None, **changed)
    where, stated, registry = folder / "warmth.sock", Said(), CollectorRegistry()
    warmth = IndexProcessServer(settings, where, stated, registry)
    started = Host(where, warmth, stated, registry, asyncio.create_task(warmth.run()))
    try:
        yield started
    finally:
        for worker in started.workers:
            await worker.die()
        await started.stop()

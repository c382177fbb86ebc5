"""A watcher with a router that can be waited for, and sources that tell what a test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.config.discovery import DiscoveredPod
from gateway.config.models import ModelEntry
from gateway.discovery.source import PodSource, StaticSource
from gateway.fleet.probe import Prober, probe_session
from gateway.fleet.watcher import FleetWatcher, ProbeIntervals
from routing.decision.router import Router
from routing.facts import PodFacts
from routing.ledger import ExternalLoad
from routing.pods import Pod, PodState
from scorers.registry import routings
from tests.gateway.fake_pod import Pulse

FAST = ProbeIntervals(probe_s=0.02, scrape_s=0.02, list_s=0.02, min_probe_s=0.0)


@dataclass
class Heard:
    """What the watcher said, and a way to wait until something is so."""

    events: list[tuple[str, str | None]] = field(default_factory=list)

    def __call__(self, level: str, event: str, *, upstream: str | None = None, **_: object) -> None:
        self.events.append((event, upstream))


class TellingRouter(Router):
    """Beats whenever the watcher tells it something."""

    def __init__(self) -> None:
        super().__init__(routings()["warm"])
        self.pulse = Pulse()

    def standings(self) -> list[PodState]:
        return [pod.state for pod in self.fleet.pods]

    def put_pod(self, pod: Pod) -> None:
        super().put_pod(pod)
        self.pulse.beat()

    def remove_pod(self, url: str) -> None:
        super().remove_pod(url)
        self.pulse.beat()

    def observe_load(self, slot: int, foreign: ExternalLoad) -> None:
        super().observe_load(slot, foreign)
        self.pulse.beat()


class Told:
    """A source that tells what the test wants, when it wants."""

    name = "told"
    trouble = ""

    def __init__(self) -> None:
        self._lists: asyncio.Queue[tuple[DiscoveredPod, ...] | None] = asyncio.Queue()

    def tell(self, *urls: str) -> None:
        self.tell_of(*map(DiscoveredPod, urls))

    def tell_of(self, *pods: DiscoveredPod) -> None:
        self._lists.put_nowait(pods)

    def break_down(self) -> None:
        self._lists.put_nowait(None)

    async def follow(self, take: Callable[[tuple[DiscoveredPod, ...]], None]) -> None:
        while (found := await self._lists.get()) is not None:
            take(found)
        raise RuntimeError


@dataclass
class Watch:
    router: TellingRouter
    watcher: FleetWatcher
    received: Heard
    gone: list[str]

    def pod(self, url: str) -> Pod:
        pod = self.router.fleet.pod(url)
        assert pod is not None
        return pod

    async def stands(self, url: str, standing: PodState) -> Pod:
        await self.until(lambda: (pod := self.router.fleet.pod(url)) is not None and pod.state is standing)
        return self.pod(url)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something that the router is told of is so."""
        await self.router.pulse.until(is_so)


def placed(url: str, region: str) -> DiscoveredPod:
    return DiscoveredPod(url, "p", PodFacts(region=region))


def static(*urls: str) -> StaticSource:
    return StaticSource(map(DiscoveredPod, urls))


@asynccontextmanager
async def watching(
    *sources: PodSource,
    rhythm: ProbeIntervals = FAST,
    models: dict[str, ModelEntry] | None = None,
    timeout_s: float = 60.0,
) -> AsyncIterator[Watch]:
    router, received, gone = TellingRouter(), Heard(), list[str]()
    async with probe_session() as session:
        watcher = FleetWatcher(
            router,
            sources,
            Prober(session, lambda _: None, timeout_s=timeout_s),
            log_event=received,
            clock=asyncio.get_running_loop().time,
            draw=lambda: 0.5,
            models=models,
            rhythm=rhythm,
        )
        watcher.set_unreachable_listener(gone.append)
        task = asyncio.create_task(watcher.run())
        try:
            yield Watch(router, watcher, received, gone)
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

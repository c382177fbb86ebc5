"""Follows a source as the watcher does, and waits for what it tells and says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.config.discovery import DiscoveredPod
from gateway.discovery.source import PodSource
from tests.gateway.fake_pod import Pulse


@dataclass(slots=True)
class Heard:
    """What a source has told and said so far."""

    reported: list[tuple[DiscoveredPod, ...]] = field(default_factory=list)
    stated: list[str] = field(default_factory=list)
    pulse: Pulse = field(default_factory=Pulse)
    source: PodSource | None = None

    def tell(self, found: tuple[DiscoveredPod, ...]) -> None:
        self.reported.append(found)
        self.pulse.beat()

    def log_event(self, level: str, message: str, **_: object) -> None:
        self.stated.append(message)
        self.pulse.beat()

    @property
    def urls(self) -> list[str] | None:
        """Of the last list, None before the first."""
        return sorted(pod.url for pod in self.reported[-1]) if self.reported else None

    @property
    def trouble(self) -> str:
        return self.source.trouble if self.source else ""

    async def hears(self, *urls: str) -> None:
        """Wait until exactly these are told."""
        await self.until(lambda: self.urls == sorted(urls))

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self.pulse.until(is_so)


@asynccontextmanager
async def following(source: PodSource, received: Heard) -> AsyncIterator[Heard]:
    """The source tells while inside; that it ends by itself is a fault."""
    received.source = source
    task = asyncio.create_task(source.follow(received.tell))
    try:
        yield received
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

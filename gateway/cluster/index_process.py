"""The index process of a host: serves replica sync, precise prefix lookups and quota leases to the workers.

Workers do not depend on it: it may be slow, restarted or dead at any time.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from gateway.app.reload import Fresh
from gateway.app.serving import bridged, caught, taking_signals
from gateway.cluster.channel import Channel, Orders, Started, obeying
from gateway.cluster.child import socket_of
from gateway.config.settings import Settings
from gateway.kv_index.lookup_service import Sights
from gateway.kv_index.metrics import ExactExposition
from gateway.limits.coordinator import HostSlices
from gateway.observe.metrics.process import CallbackErrors, ExchangeExposition
from gateway.observe.metrics_listener import metrics_app
from gateway.replica_sync.hub import Hub
from gateway.replica_sync.ipc import Line
from gateway.replica_sync.ipc_messages import (
    Batch,
    FleetTold,
    Hello,
    Message,
    Missed,
    Recall,
    SightAsked,
    SightMoved,
    SlicesAsked,
)
from gateway.replica_sync.redis_bridge import RedisBridge
from gateway.runtime.event_log import EventLog
from gateway.runtime.line_writer import STDOUT, LineWriter
from gateway.runtime.ports import open_socket
from gateway.runtime.redis_location import parse_redis_url


class Warmth:
    """Accepts the connections of workers and dispatches their messages. `run` until cancelled."""

    def __init__(self, settings: Settings, where: Path, say: EventLog, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.hub = Hub()
        self.bridge = _bridge(settings, self.hub, say)
        self._where = where
        self._say = say
        self._handlers: dict[type, Callable[..., None]] = {
            Hello: self.hub.take,
            Batch: self.hub.take,
            Missed: self.hub.take,
            Recall: self.hub.take,
            SlicesAsked: HostSlices(time.monotonic).take,
        }
        """Handlers by message type; they answer with `connection.send`."""
        self.lookups = Sights(settings, say) if settings.kv_events is not None else None
        if self.lookups is not None:
            self._handlers |= {
                FleetTold: self.lookups.take_fleet,
                SightAsked: self.lookups.take_asked,
                SightMoved: self.lookups.take_moved,
            }
            registry.register(ExactExposition(self.lookups))
        registry.register(ExchangeExposition(self.hub, self.bridge))

    def renew(self, settings: Settings) -> None:
        """Apply reloaded settings."""
        self.settings = settings
        if self.lookups is not None:
            self.lookups.renew(settings)

    async def run(self) -> None:
        """Serve the workers until cancelled."""
        with suppress(FileNotFoundError):
            self._where.unlink()
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            group = await stack.enter_async_context(asyncio.TaskGroup())
            server = await loop.create_unix_server(self._accept, str(self._where))
            stack.callback(self.hub.close)
            stack.callback(server.close)
            self._say("info", "warmth process listening", socket=str(self._where))
            if self.bridge is not None:
                group.create_task(self.bridge.run(), name="redis")
            if self.lookups is not None:
                group.create_task(self.lookups.run(), name="prefix lookups")
            await loop.create_future()

    def _accept(self) -> Line:
        return Line(self._take, began=self.hub.join, ended=self._leave)

    def _leave(self, connection: Line) -> None:
        self.hub.leave(connection)
        if self.lookups is not None:
            self.lookups.leave(connection)

    def _take(self, connection: Line, message: Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(connection, message)


def _bridge(settings: Settings, hub: Hub, say: EventLog) -> RedisBridge | None:
    if settings.redis is None:
        return None
    return RedisBridge(
        parse_redis_url(settings.redis.value),
        hub,
        host=secrets.randbits(63),
        say=say,
        clock=time.monotonic,
        draw=random.Random().random,  # noqa: S311 - spreads reconnects, keeps no secret
    )


async def be_warmth(orders: Orders, channel: Channel, where: Path) -> None:
    """Run the index process until the supervisor stops it."""
    settings, registry = orders.fresh.settings, CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    writer = LineWriter(STDOUT, lock=orders.host.lock("stdout"))
    say = EventLog(writer, settings.log_level, process=orders.name)
    server, errors = Warmth(settings, where, say, registry), CallbackErrors(say)
    registry.register(errors)

    def renew(fresh: Fresh) -> None:
        say.level = fresh.settings.log_level
        server.renew(fresh.settings)

    async with AsyncExitStack() as stack:
        stack.callback(writer.close)
        stack.enter_context(bridged(say))
        stack.enter_context(caught(errors))
        signals = stack.enter_context(taking_signals(None))
        await stack.enter_async_context(obeying(orders, channel, signals, say, renew=renew))
        app = metrics_app(registry, lambda: True)
        runner = await open_socket(app, socket_of(orders.host.folder, orders.name))
        stack.push_async_callback(runner.cleanup)
        task = asyncio.create_task(server.run(), name="index process")
        task.add_done_callback(lambda _: signals.stop.set())
        channel.send(Started())
        await signals.stop.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

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

from gateway.app.reload import LoadedConfig
from gateway.app.serving import bridging_library_logs, handling_callback_errors, handling_signals
from gateway.cluster.channel import ChildConfig, ChildStarted, ControlChannel, serve_commands
from gateway.cluster.child import socket_of
from gateway.config.settings import Settings
from gateway.kv_index.lookup_service import CacheLookupService
from gateway.kv_index.metrics import KvIndexMetrics
from gateway.limits.coordinator import LocalQuotaLeases
from gateway.observe.metrics.process import CallbackErrorHandler, HubCollector
from gateway.observe.metrics_listener import metrics_app
from gateway.replica_sync.hub import UpdateHub
from gateway.replica_sync.ipc import IpcConnection
from gateway.replica_sync.ipc_messages import (
    FleetUpdate,
    GapReport,
    Hello,
    HistoryRequest,
    IpcMessage,
    LeaseRequestMessage,
    LookupProgress,
    LookupRequest,
    UpdateBatch,
)
from gateway.replica_sync.redis_bridge import RedisBridge
from gateway.runtime.event_log import EventLog
from gateway.runtime.line_writer import STDOUT, LineWriter
from gateway.runtime.ports import serve_app_on_socket
from gateway.runtime.redis_location import parse_redis_url


class IndexProcessServer:
    """Accepts the connections of workers and dispatches their messages. `run` until cancelled."""

    def __init__(self, settings: Settings, where: Path, log_event: EventLog, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.hub = UpdateHub()
        self.bridge = _bridge(settings, self.hub, log_event)
        self._where = where
        self._log_event = log_event
        self._handlers: dict[type, Callable[..., None]] = {
            Hello: self.hub.take,
            UpdateBatch: self.hub.take,
            GapReport: self.hub.take,
            HistoryRequest: self.hub.take,
            LeaseRequestMessage: LocalQuotaLeases(time.monotonic).take,
        }
        """Handlers by message type; they answer with `connection.send`."""
        self.lookups = CacheLookupService(settings, log_event) if settings.kv_events is not None else None
        if self.lookups is not None:
            self._handlers |= {
                FleetUpdate: self.lookups.take_fleet,
                LookupRequest: self.lookups.take_lookup,
                LookupProgress: self.lookups.take_progress,
            }
            registry.register(KvIndexMetrics(self.lookups))
        registry.register(HubCollector(self.hub, self.bridge))

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
            self._log_event("info", "index_process_listening", socket=str(self._where))
            if self.bridge is not None:
                group.create_task(self.bridge.run(), name="redis")
            if self.lookups is not None:
                group.create_task(self.lookups.run(), name="prefix lookups")
            await loop.create_future()

    def _accept(self) -> IpcConnection:
        return IpcConnection(self._take, began=self.hub.join, ended=self._leave)

    def _leave(self, connection: IpcConnection) -> None:
        self.hub.leave(connection)
        if self.lookups is not None:
            self.lookups.remove_worker(connection)

    def _take(self, connection: IpcConnection, message: IpcMessage) -> None:
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(connection, message)


def _bridge(settings: Settings, hub: UpdateHub, log_event: EventLog) -> RedisBridge | None:
    if settings.redis is None:
        return None
    return RedisBridge(
        parse_redis_url(settings.redis.value),
        hub,
        host=secrets.randbits(63),
        log_event=log_event,
        clock=time.monotonic,
        draw=random.Random().random,  # noqa: S311 - spreads reconnects, keeps no secret
    )


async def run_index_process(orders: ChildConfig, channel: ControlChannel, where: Path) -> None:
    """Run the index process until the supervisor stops it."""
    settings, registry = orders.fresh.settings, CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    writer = LineWriter(STDOUT, lock=orders.host.lock_path("stdout"))
    log_event = EventLog(writer, settings.log_level, process=orders.name)
    server, errors = IndexProcessServer(settings, where, log_event, registry), CallbackErrorHandler(log_event)
    registry.register(errors)

    def renew(fresh: LoadedConfig) -> None:
        log_event.level = fresh.settings.log_level

    async with AsyncExitStack() as stack:
        stack.callback(writer.close)
        stack.enter_context(bridging_library_logs(log_event))
        stack.enter_context(handling_callback_errors(errors))
        signals = stack.enter_context(handling_signals(None))
        await stack.enter_async_context(serve_commands(orders, channel, signals, log_event, renew=renew))
        app = metrics_app(registry, lambda: True)
        runner = await serve_app_on_socket(app, socket_of(orders.host.folder, orders.name))
        stack.push_async_callback(runner.cleanup)
        task = asyncio.create_task(server.run(), name="index process")
        task.add_done_callback(lambda _: signals.stop.set())
        channel.send(ChildStarted())
        await signals.stop.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

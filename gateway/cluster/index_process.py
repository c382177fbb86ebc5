"""The warmth process as a child of the supervisor. What it does stands in `gateway/kv_index/`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from gateway.app.reload import Fresh
from gateway.app.serving import bridged, caught, taking_signals
from gateway.cluster.channel import Channel
from gateway.cluster.child import socket_of
from gateway.cluster.duty import obeying
from gateway.cluster.host_service import Warmth
from gateway.cluster.messages import Orders, Started
from gateway.observe.metrics.process import CallbackErrors
from gateway.observe.metrics_listener import metrics_app
from gateway.runtime.event_log import EventLog
from gateway.runtime.line_writer import STDOUT, LineWriter
from gateway.runtime.ports import open_socket


async def be_warmth(orders: Orders, channel: Channel, where: Path) -> None:
    """Serve the workers until told to stop."""
    settings, registry = orders.fresh.settings, CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    writer = LineWriter(STDOUT, lock=orders.host.lock("stdout"))
    say = EventLog(writer, settings.log_level, process=orders.name)
    warmth, errors = Warmth(settings, where, say, registry), CallbackErrors(say)
    registry.register(errors)

    def renew(fresh: Fresh) -> None:
        say.level = fresh.settings.log_level
        warmth.renew(fresh.settings)

    async with AsyncExitStack() as stack:
        stack.callback(writer.close)
        stack.enter_context(bridged(say))
        stack.enter_context(caught(errors))
        signals = stack.enter_context(taking_signals(None))
        await stack.enter_async_context(obeying(orders, channel, signals, say, renew=renew))
        app = metrics_app(registry, lambda: True)
        runner = await open_socket(app, socket_of(orders.host.folder, orders.name))
        stack.push_async_callback(runner.cleanup)
        task = asyncio.create_task(warmth.run(), name="warmth")
        task.add_done_callback(lambda _: signals.stop.set())
        channel.send(Started())
        await signals.stop.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

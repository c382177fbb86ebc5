"""The life of a running gateway: open the ports, watch the pods, stop in order when told to."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version

from gateway.admin import Admin, admin_app
from gateway.build import Gateway, build, load_policy
from gateway.config.show import show_settings
from gateway.config.values import Settings
from gateway.log import Bridge
from gateway.metrics.port import metrics_app
from gateway.ports import addresses_of, cannot_listen, open_port
from gateway.reload import Reloader
from gateway.tls import renew

BACKLOG = 4096
"""Connections the kernel keeps for us while the loop is busy; it cuts this to its own somaxconn."""


@dataclass(slots=True)
class Signals:
    """What we were told: to stop, and to stop at once. Tasks of reloads are kept until they end."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    reloads: set[asyncio.Task[dict[str, object]]] = field(default_factory=set)

    def take_stop(self) -> None:
        """The first says stop, the second at once."""
        (self.cut if self.stop.is_set() else self.stop).set()


async def serve(settings: Settings, reread: Callable[[], Settings], variables: Mapping[str, str]) -> None:
    """Run a gateway until a signal ends it. Raises `Invalid` and `CannotListen` before it has begun."""
    gateway = build(settings, load_policy(settings, variables))
    reloader = Reloader(gateway, reread, variables)
    async with AsyncExitStack() as stack:
        stack.callback(_close_logs, gateway)
        stack.push_async_callback(gateway.probes.close)
        stack.enter_context(_bridged(gateway))
        server = await _open_traffic(gateway)
        stack.callback(gateway.front.close)
        stack.callback(server.close)
        listening = {"traffic": addresses_of(server.sockets)}
        listening |= await _open_small_ports(gateway, reloader, stack)
        signals = stack.enter_context(_signals(reloader))
        await stack.enter_async_context(_watching(gateway, signals))
        gateway.say("info", "listening", version=version("hearth-gateway"), **listening)
        _warn_of_idle_settings(gateway)
        await signals.stop.wait()
        await _drain(gateway, server, signals)


async def _open_traffic(gateway: Gateway) -> asyncio.Server:
    where, timeouts = gateway.settings.listen, gateway.settings.timeouts
    try:
        return await asyncio.get_running_loop().create_server(
            gateway.front.protocol,
            where.host,
            where.port,
            backlog=BACKLOG,
            ssl=gateway.tls,
            ssl_handshake_timeout=timeouts.header_s if gateway.tls else None,
        )
    except OSError as error:
        raise cannot_listen("listen", where, error) from None


async def _open_small_ports(gateway: Gateway, reloader: Reloader, stack: AsyncExitStack) -> dict[str, list[str]]:
    """The metrics and admin ports, as far as they are wanted. Returns where they listen."""
    settings, opened = gateway.settings, {}
    admin = Admin(
        receipts=gateway.receipts,
        router=gateway.router,
        watcher=gateway.watcher,
        settings=lambda: show_settings(gateway.settings),
        reload=reloader.reload,
        clock=asyncio.get_running_loop().time,
        token=settings.admin_token,
    )
    for name, where, app in (
        ("metrics", settings.metrics, metrics_app(gateway.registry, gateway.is_ready)),
        ("admin", settings.admin, admin_app(admin)),
    ):
        if where is not None:
            runner, opened[name] = await open_port(name, app, where)
            stack.push_async_callback(runner.cleanup)
    return opened


@contextmanager
def _signals(reloader: Reloader) -> Iterator[Signals]:
    """SIGTERM and SIGINT stop, SIGHUP reloads."""
    loop, signals = asyncio.get_running_loop(), Signals()

    def reload() -> None:
        task = loop.create_task(reloader.reload(), name="reload")
        signals.reloads.add(task)
        task.add_done_callback(signals.reloads.discard)

    taken = {signal.SIGTERM: signals.take_stop, signal.SIGINT: signals.take_stop, signal.SIGHUP: reload}
    for number, act in taken.items():
        loop.add_signal_handler(number, act)
    try:
        yield signals
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _watching(gateway: Gateway, signals: Signals) -> AsyncIterator[None]:
    """What runs beside us. Should any of it ever end by itself, we stop: a blind gateway is worse than none."""
    tasks = [asyncio.create_task(gateway.watcher.run(), name="watcher")]
    if gateway.tls is not None:
        renewing = renew(gateway.tls, lambda: gateway.settings.tls, gateway.say)
        tasks.append(asyncio.create_task(renewing, name="renew certificate"))
    for task in tasks:
        task.add_done_callback(lambda _: signals.stop.set())
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _drain(gateway: Gateway, server: asyncio.Server, signals: Signals) -> None:
    """No new connections, then wait for the requests in flight, for as long as allowed or until told again."""
    gateway.life.is_stopping = True
    server.close()
    grace_s = gateway.settings.timeouts.drain_s
    gateway.say("info", "draining", requests=gateway.front.open_requests, grace_s=grace_s)
    draining = asyncio.create_task(gateway.front.drain(grace_s), name="drain")
    cut = asyncio.create_task(signals.cut.wait(), name="cut")
    try:
        await asyncio.wait((draining, cut), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gateway.front.close()
        for task in (draining, cut):
            task.cancel()
        await asyncio.gather(draining, cut, return_exceptions=True)
    for log in gateway.logs.values():
        log.flush()
    gateway.say("info", "stopped")


@contextmanager
def _bridged(gateway: Gateway) -> Iterator[None]:
    """What libraries log comes out as our events while the gateway runs."""
    root, bridge = logging.getLogger(), Bridge(gateway.say)
    root.addHandler(bridge)
    try:
        yield
    finally:
        root.removeHandler(bridge)


def _close_logs(gateway: Gateway) -> None:
    for log in gateway.logs.values():
        log.flush()
        log.writer.close()


def _warn_of_idle_settings(gateway: Gateway) -> None:
    if gateway.settings.redis:
        gateway.say("warning", "redis is set, but this version shares nothing yet: each gateway knows only itself")
    if gateway.settings.trusted_proxies:
        gateway.say("warning", "trusted_proxies is set, but this version believes no header of any proxy")

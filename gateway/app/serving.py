"""Runs a gateway: opens the ports, starts the background tasks, and drains in order on a signal.

`serve` runs a gateway alone in its process; workers of a supervisor use the same functions.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

from aiohttp import web

from gateway.app.build import build
from gateway.app.gateway import Gateway
from gateway.app.reload import Reloader
from gateway.config.fields import Secret
from gateway.config.settings import Settings, show_settings
from gateway.identity.policy import load_policy
from gateway.observe.admin import AdminBackend, admin_app
from gateway.observe.metrics.cascades import show_usage
from gateway.observe.metrics.process import CallbackErrorHandler
from gateway.observe.metrics.tiers import queued_requests_of
from gateway.observe.metrics_listener import metrics_app
from gateway.observe.operators.outcome_totals import OutcomeTotals
from gateway.observe.operators.overview import PageParts
from gateway.runtime.closing import close_listeners
from gateway.runtime.event_log import EventLog, LoggingBridge
from gateway.runtime.ports import addresses_of, listen_error, serve_app
from gateway.runtime.tls import reload_certificates

BACKLOG = 4096
"""Accept backlog; the kernel caps it at somaxconn."""

ReloadFunction = Callable[[], Coroutine[Any, Any, dict[str, object]]]
"""Reloads the gateway; returns the result as JSON values."""


@dataclass(slots=True)
class Signals:
    """Signals received: stop, and cut (stop at once). Holds the tasks of running reloads."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    reloads: set[asyncio.Task[dict[str, object]]] = field(default_factory=set)

    def on_stop(self) -> None:
        """Handle SIGTERM or SIGINT: the first stops, the second cuts."""
        (self.cut if self.stop.is_set() else self.stop).set()


async def serve(settings: Settings, reread: Callable[[], Settings], variables: Mapping[str, str]) -> None:
    """Run a gateway until a signal ends it. Raises `InvalidDocument` and `CannotListen` before it serves."""
    gateway = build(settings, load_policy(settings, variables))
    gateway.registry.register(gateway.reloads)
    reloader = Reloader(gateway, reread, variables)
    gateway.background.append(reloader.watch)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_components(gateway))
        servers = await stack.enter_async_context(serving_traffic(gateway, None))
        listening = {"traffic": [at for server in servers for at in addresses_of(server.sockets)]}
        metrics, admin = metrics_and_admin_apps(gateway, reloader.reload, settings.admin_token)
        for name, where, app in (
            ("metrics", settings.metrics_listen, metrics),
            ("admin", settings.admin_listen, admin),
        ):
            if where is not None:
                runner, listening[name] = await serve_app(name, app, where)
                stack.push_async_callback(runner.cleanup)
        signals = stack.enter_context(handling_signals(reloader.reload))
        await stack.enter_async_context(running_background_tasks(gateway, signals))
        await wait_for_first_probes(gateway, signals)
        for server in servers:
            await server.start_serving()
        listening |= await serve_ext_proc(gateway, stack)
        gateway.log_event("info", "listening", version=version("hearth-gateway"), **listening)
        warn_of_idle_settings(settings, gateway.log_event)
        warn_of_few_descriptors(gateway)
        await signals.stop.wait()
        await drain(gateway, servers, signals)


@asynccontextmanager
async def running_components(gateway: Gateway) -> AsyncIterator[None]:
    """Hold open the logs and the session of the probes, and handle exceptions of the event loop."""
    async with AsyncExitStack() as stack:
        stack.callback(_close_logs, gateway)
        stack.push_async_callback(gateway.probes.close)
        stack.enter_context(bridging_library_logs(gateway.log_event))
        stack.enter_context(handling_callback_errors(gateway.callback_errors))
        yield


@asynccontextmanager
async def serving_traffic(
    gateway: Gateway, shared: Sequence[socket.socket] | None
) -> AsyncIterator[Sequence[asyncio.Server]]:
    """Listen for clients: on sockets that are bound already, or (None) on the configured address, once started."""
    async with AsyncExitStack() as stack:
        servers = [await _listen(gateway, held) for held in ([None] if shared is None else shared)]
        stack.callback(gateway.listener.close)
        for server in servers:
            stack.callback(server.close)
        yield servers


async def serve_ext_proc(gateway: Gateway, stack: AsyncExitStack) -> dict[str, list[str]]:
    """Listen for Envoy, if configured, until the stack is left. Returns the addresses by name."""
    return {} if gateway.ext_proc is None else await gateway.ext_proc.open(stack)


async def _listen(gateway: Gateway, held: socket.socket | None) -> asyncio.Server:
    where = gateway.settings.listen
    at: dict[str, Any] = {"host": where.host, "port": where.port} if held is None else {"sock": held}
    try:
        return await asyncio.get_running_loop().create_server(
            gateway.listener.protocol_factory(gateway.tls), **at, backlog=BACKLOG, start_serving=held is not None
        )
    except OSError as error:
        raise listen_error("listen", where, error) from None


def metrics_and_admin_apps(
    gateway: Gateway, reload: ReloadFunction, token: Secret | None
) -> tuple[web.Application, web.Application]:
    """Return the applications of the metrics and the admin port."""
    admin = AdminBackend(
        receipts=gateway.receipts,
        router=gateway.router,
        watcher=gateway.watcher,
        settings=lambda: show_settings(gateway.settings),
        reload=reload,
        clock=asyncio.get_running_loop().time,
        token=token,
        peer_load=gateway.peer_load.load,
        quotas=gateway.quotas,
        cascades=gateway.cascades,
        cascade_usage=partial(show_usage, gateway.cascade_counters),
        view=_view_of(gateway),
        supply=None if gateway.supply is None else gateway.supply.view,
        doctor=gateway.doctor,
        providers=gateway.providers,
        canary=None if gateway.canary is None else gateway.canary.show,
    )
    return metrics_app(gateway.registry, gateway.is_ready), admin_app(admin)


def _view_of(gateway: Gateway) -> PageParts:
    def counted() -> OutcomeTotals:
        gateway.request_counters.count_fresh()
        return gateway.totals

    return PageParts(
        router=gateway.router,
        watcher=gateway.watcher,
        counted=counted,
        queued=queued_requests_of(gateway.admission_queue),
        open_requests=lambda: gateway.listener.open_requests,
        open_connections=lambda: gateway.listener.open_connections,
        early_rejections=lambda: gateway.request_counters.early,
        replica_sync=lambda: gateway.replica_sync,
        quotas=gateway.quotas,
        clock=asyncio.get_running_loop().time,
        wall_clock=time.time,
        started_s=time.time(),
        doctor=gateway.doctor,
        advice=None if gateway.supply is None else gateway.supply.advice,
    )


@contextmanager
def handling_signals(reload: ReloadFunction | None) -> Iterator[Signals]:
    """Handle SIGTERM and SIGINT (stop) and SIGHUP (reload, if given)."""
    loop, signals = asyncio.get_running_loop(), Signals()

    def take_reload() -> None:
        if reload is not None:
            task = loop.create_task(reload(), name="reload")
            signals.reloads.add(task)
            task.add_done_callback(signals.reloads.discard)

    taken = {signal.SIGTERM: signals.on_stop, signal.SIGINT: signals.on_stop, signal.SIGHUP: take_reload}
    for number, act in taken.items():
        loop.add_signal_handler(number, act)
    try:
        yield signals
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


async def wait_for_first_probes(gateway: Gateway, signals: Signals) -> None:
    """Wait until all pods were probed, within `timeouts.startup_discovery_s`: earlier requests would find no model."""
    look = gateway.watcher.wait_for_first_probes(gateway.settings.timeouts.startup_discovery_s)
    waiting = [asyncio.create_task(wait) for wait in (look, signals.stop.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@asynccontextmanager
async def running_background_tasks(gateway: Gateway, signals: Signals) -> AsyncIterator[None]:
    """Run all background tasks. If one ever ends by itself, the gateway stops: a blind gateway is worse than none."""
    tasks = [asyncio.create_task(gateway.watcher.run(), name="watcher")]
    tasks += [asyncio.create_task(run(), name="background") for run in gateway.background]
    if gateway.tls is not None:
        renewing = reload_certificates(gateway.tls, lambda: gateway.settings.tls, gateway.log_event)
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


async def drain(gateway: Gateway, servers: Sequence[asyncio.Server], signals: Signals) -> None:
    """Drain: become unready, close the listener, then wait for open requests until `drain_s` or a second signal."""
    gateway.listener.dispatcher.begin_drain()
    if gateway.supply is not None:
        gateway.supply.leave()
    if gateway.warmup is not None:
        gateway.warmup.leave()
    await _serve_on(gateway, signals)
    await close_listeners(servers, gateway.listener.protocol_factory(gateway.tls), None)
    grace_s = gateway.settings.timeouts.drain_s
    gateway.log_event("info", "drain_started", requests_in_flight=gateway.listener.open_requests, grace_s=grace_s)
    draining = asyncio.create_task(_empty(gateway, grace_s), name="drain")
    cut = asyncio.create_task(signals.cut.wait(), name="cut")
    try:
        await asyncio.wait((draining, cut), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gateway.listener.close()
        for task in (draining, cut):
            task.cancel()
        await asyncio.gather(draining, cut, return_exceptions=True)
    for log in gateway.logs.values():
        log.flush()
    gateway.log_event("info", "stopped")


async def _empty(gateway: Gateway, grace_s: float) -> None:
    async with asyncio.TaskGroup() as group:
        if gateway.ext_proc is not None:
            group.create_task(gateway.ext_proc.drain(grace_s))
        group.create_task(gateway.listener.drain(grace_s))


async def _serve_on(gateway: Gateway, signals: Signals) -> None:
    """Keep serving for `lame_duck_s`, so that load balancers have time to remove this gateway."""
    lame_duck_s = gateway.settings.timeouts.lame_duck_s
    if not lame_duck_s:
        return
    gateway.log_event("info", "lame_duck_started", lame_duck_s=lame_duck_s)
    with suppress(TimeoutError):
        async with asyncio.timeout(lame_duck_s):
            await signals.cut.wait()


@contextmanager
def handling_callback_errors(errors: CallbackErrorHandler) -> Iterator[None]:
    """Count and log exceptions in callbacks of the event loop."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(errors)
    try:
        yield
    finally:
        loop.set_exception_handler(None)


@contextmanager
def bridging_library_logs(log_event: EventLog) -> Iterator[None]:
    """Write what libraries log to the event log."""
    root, bridge = logging.getLogger(), LoggingBridge(log_event)
    root.addHandler(bridge)
    try:
        yield
    finally:
        root.removeHandler(bridge)


def _close_logs(gateway: Gateway) -> None:
    for log in gateway.logs.values():
        log.flush()
        log.writer.close()
    if gateway.cascades.collector is not None:
        gateway.cascades.collector.close()


def warn_of_few_descriptors(gateway: Gateway) -> None:
    """Log if the limit of file descriptors allows fewer connections than `max_connections`."""
    wanted, most = gateway.settings.limits.max_connections, gateway.listener.max_connections
    if most < wanted:
        gateway.log_event(
            "info",
            "fd_limit_low",
            max_connections=wanted,
            usable_connections=most,
        )


def warn_of_idle_settings(settings: Settings, log_event: EventLog) -> None:
    """Warn of settings without effect, and of a port that is open to every caller."""
    if settings.trusted_proxies and settings.policy is None:
        log_event("warning", "trusted_proxies_unused")
    envoys = settings.extproc
    if envoys is not None and not envoys.authenticates_callers and not envoys.listen.is_loopback:
        log_event(
            "warning",
            "extproc_unauthenticated",
            listen=str(envoys.listen),
            fix="set extproc.tls.client_ca or extproc.token",
        )

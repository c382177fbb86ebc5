"""A worker: a whole gateway that shares its port with others and serves its supervisor on a unix socket."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from aiohttp import web

from gateway.app.build import build
from gateway.app.gateway import Gateway
from gateway.app.reload import LoadedConfig, apply_reload, reopen_logs
from gateway.app.serving import (
    drain,
    handling_signals,
    metrics_and_admin_apps,
    running_background_tasks,
    running_components,
    serve_ext_proc,
    serving_traffic,
    wait_for_first_probes,
)
from gateway.cluster.channel import ApplyEffects, ChildConfig, ChildStarted, ControlChannel, serve_commands
from gateway.cluster.child import socket_of
from gateway.runtime.ports import serve_app_on_socket, share_port


async def run_worker(orders: ChildConfig, channel: ControlChannel) -> None:
    """Run a worker until the supervisor stops it. Raises `InvalidDocument` and `CannotListen` before it has started."""
    gateway = build(_share_of(orders.fresh, orders).settings, orders.fresh.policy, orders.host)
    gateway.watcher.set_drained(orders.drained)
    if gateway.providers is not None and orders.providers_stopped:
        gateway.providers.stop(stopped=True)
    gateway.share_effects = lambda effects: channel.send(ApplyEffects(effects))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_components(gateway))
        signals = stack.enter_context(handling_signals(None))
        await stack.enter_async_context(
            serve_commands(
                orders,
                channel,
                signals,
                gateway.log_event,
                renew=lambda fresh: apply_reload(gateway, _share_of(fresh, orders)),
                reopen_logs=lambda: reopen_logs(gateway),
                apply_effects=gateway.apply_effects,
                keep_drained=lambda command: gateway.watcher.set_drained([command.pod], drained=command.is_drained),
            )
        )
        await stack.enter_async_context(running_background_tasks(gateway, signals))
        runner = await serve_app_on_socket(_private_app(gateway), socket_of(orders.host.folder, orders.name))
        stack.push_async_callback(runner.cleanup)
        await wait_for_first_probes(gateway, signals)
        servers = await stack.enter_async_context(serving_traffic(gateway, share_port("listen", orders.traffic)))
        await serve_ext_proc(gateway, stack)
        channel.send(ChildStarted())
        await signals.stop.wait()
        await drain(gateway, servers, signals)


def _share_of(fresh: LoadedConfig, orders: ChildConfig) -> LoadedConfig:
    """The configuration with this worker's share of the limits of the machine."""
    settings = fresh.settings
    return replace(fresh, settings=replace(settings, limits=settings.limits.per_process(orders.host.processes)))


def _private_app(gateway: Gateway) -> web.Application:
    """Metrics and admin API for the supervisor; in a private folder they need no token."""

    async def reload() -> dict[str, object]:
        return {"reloaded": False, "errors": ["the supervisor reloads"]}

    app, admin = metrics_and_admin_apps(gateway, reload, None)
    app.add_subapp("/admin/", admin)
    return app

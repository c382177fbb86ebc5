"""A worker: a whole gateway that shares its port with others and serves its supervisor on a unix socket."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from aiohttp import web

from gateway.app.build import build
from gateway.app.gateway import Gateway
from gateway.app.reload import Fresh, put_in_force, reopen_logs
from gateway.app.serving import (
    drain,
    furnished,
    looked,
    small_apps,
    taking_envoys,
    taking_signals,
    taking_traffic,
    watching,
)
from gateway.cluster.channel import Channel, Orders, Started, obeying
from gateway.cluster.child import socket_of
from gateway.runtime.ports import open_socket, share_port


async def be_worker(orders: Orders, channel: Channel) -> None:
    """Run a worker until the supervisor stops it. Raises `Invalid` and `CannotListen` before it has started."""
    gateway = build(_share_of(orders.fresh, orders).settings, orders.fresh.policy, orders.host)
    gateway.watcher.keep_drained(orders.drained)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(furnished(gateway))
        signals = stack.enter_context(taking_signals(None))
        await stack.enter_async_context(
            obeying(
                orders,
                channel,
                signals,
                gateway.say,
                renew=lambda fresh: put_in_force(gateway, _share_of(fresh, orders)),
                reopen_logs=lambda: reopen_logs(gateway),
                keep_drained=lambda command: gateway.watcher.keep_drained([command.pod], drained=command.is_drained),
            )
        )
        await stack.enter_async_context(watching(gateway, signals))
        runner = await open_socket(_private_app(gateway), socket_of(orders.host.folder, orders.name))
        stack.push_async_callback(runner.cleanup)
        await looked(gateway, signals)
        servers = await stack.enter_async_context(taking_traffic(gateway, share_port("listen", orders.traffic)))
        await taking_envoys(gateway, stack)
        channel.send(Started())
        await signals.stop.wait()
        await drain(gateway, servers, signals)


def _share_of(fresh: Fresh, orders: Orders) -> Fresh:
    """The configuration with this worker's share of the limits of the machine."""
    settings = fresh.settings
    return replace(fresh, settings=replace(settings, limits=settings.limits.share(orders.host.processes)))


def _private_app(gateway: Gateway) -> web.Application:
    """Metrics and admin API for the supervisor; in a private folder they need no token."""

    async def reload() -> dict[str, object]:
        return {"reloaded": False, "faults": ["the supervisor reloads"]}

    app, admin = small_apps(gateway, reload, None)
    app.add_subapp("/admin/", admin)
    return app

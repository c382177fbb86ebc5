"""Joins a gateway to the warmth process of its host: what it tells others and hears of them, and exact warmth."""

from __future__ import annotations

import asyncio
import random
import secrets

from gateway.cluster.host_client import WarmthClient
from gateway.cluster.ipc_messages import Hello
from gateway.cluster.replica_sync import Sharing
from gateway.gateway import Gateway
from gateway.kv_index.lookup_client import Asking, AskingExposition
from gateway.limits.setup import share_limits
from gateway.observe.metrics.sharing import SharingExposition
from gateway.runtime.host import Host


def join_host(gateway: Gateway, host: Host) -> None:
    """Where there is such a process; else a gateway goes by what it knows itself."""
    if host.warmth is None:
        return
    draw = random.Random().random  # noqa: S311 - spreads reconnects, keeps no secret
    client = WarmthClient(host.warmth, Hello(secrets.randbits(63)), say=gateway.say, draw=draw)
    gateway.warmth = client
    gateway.background.append(client.run)
    _share(gateway, client)
    share_limits(gateway, client)
    _ask(gateway, client)


def _share(gateway: Gateway, client: WarmthClient) -> None:
    """Tell other gateways what we place, and hear what they do."""
    sharing = Sharing(
        gateway.router,
        client,
        say=gateway.say,
        clock=asyncio.get_running_loop().time,
        fleet_known=gateway.watcher.has_looked,
        on_answer=gateway.front.pool.spoke,
    )
    gateway.others.hearing = sharing.hearing
    gateway.background.append(sharing.run)
    gateway.registry.register(SharingExposition(sharing))


def _ask(gateway: Gateway, client: WarmthClient) -> None:
    """Ask what engines hold by their own word, where that is wanted."""
    words = gateway.settings.kv_events
    if words is None:
        return
    asking = gateway.asking = Asking(client, gateway.router, wait_s=words.wait_ms / 1000)
    gateway.front.look_with(asking.look)
    gateway.background.append(asking.run)
    gateway.registry.register(AskingExposition(asking.ends))

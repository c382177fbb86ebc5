"""Connects a gateway to the index process of its host: replica sync, shared limits, and precise prefix lookups."""

from __future__ import annotations

import asyncio
import random
import secrets

from gateway.app.gateway import Gateway
from gateway.kv_index.lookup_client import Asking, AskingExposition
from gateway.limits.lease_keeper import make_keeper
from gateway.observe.metrics.process import SharingExposition
from gateway.replica_sync.host_client import WarmthClient
from gateway.replica_sync.ipc_messages import Hello
from gateway.replica_sync.sync import Sharing
from gateway.runtime.host import Host


def join_host(gateway: Gateway, host: Host) -> None:
    """Connect where the host has an index process; without one a gateway uses its own state alone."""
    if host.warmth is None:
        return
    draw = random.Random().random  # noqa: S311 - spreads reconnects, keeps no secret
    client = WarmthClient(host.warmth, Hello(secrets.randbits(63)), say=gateway.say, draw=draw)
    gateway.warmth = client
    gateway.background.append(client.run)
    _sync_replicas(gateway, client)
    _share_limits(gateway, client)
    _look_up_prefixes(gateway, client)


def _sync_replicas(gateway: Gateway, client: WarmthClient) -> None:
    """Exchange updates with other gateways."""
    sharing = Sharing(
        gateway.router,
        client,
        say=gateway.say,
        clock=asyncio.get_running_loop().time,
        fleet_known=gateway.watcher.has_looked,
        on_answer=gateway.front.pool.spoke,
    )
    gateway.others.hearing = sharing.applier
    gateway.background.append(sharing.run)
    gateway.registry.register(SharingExposition(sharing))


def _share_limits(gateway: Gateway, client: WarmthClient) -> None:
    """Lease limits that other gateways share."""
    quotas = gateway.quotas
    keeper = make_keeper(gateway.settings, client, quotas.accounts, clock=quotas.now_s, say=gateway.say)
    if keeper is not None:
        quotas.leases = keeper
        gateway.background.append(keeper.run)


def _look_up_prefixes(gateway: Gateway, client: WarmthClient) -> None:
    """Look up cached tokens in the precise prefix index, if configured."""
    kv_events = gateway.settings.kv_events
    if kv_events is None:
        return
    asking = gateway.asking = Asking(client, gateway.router, wait_s=kv_events.wait_ms / 1000)
    gateway.front.desk.use_lookup(asking.look)
    gateway.background.append(asking.run)
    gateway.registry.register(AskingExposition(asking.outcomes))

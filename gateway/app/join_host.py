"""Connects a gateway to the index process of its host: replica sync, shared limits, and precise prefix lookups."""

from __future__ import annotations

import asyncio
import random
import secrets

from gateway.app.gateway import Gateway
from gateway.kv_index.lookup_client import CacheLookupClient, LookupMetrics
from gateway.limits.lease_keeper import make_lease_client
from gateway.observe.metrics.process import ReplicaSyncCollector
from gateway.replica_sync.host_client import IndexProcessClient
from gateway.replica_sync.ipc_messages import Hello
from gateway.replica_sync.sync import ReplicaSync
from gateway.runtime.host import HostProcess


def connect_index_process(gateway: Gateway, host: HostProcess) -> None:
    """Connect where the host has an index process; without one a gateway uses its own state alone."""
    if host.kv_index_socket is None:
        return
    draw = random.Random().random  # noqa: S311 - spreads reconnects, keeps no secret
    client = IndexProcessClient(
        host.kv_index_socket, Hello(secrets.randbits(63)), log_event=gateway.log_event, draw=draw
    )
    gateway.index_client = client
    gateway.background.append(client.run)
    _sync_replicas(gateway, client)
    _share_limits(gateway, client)
    _look_up_prefixes(gateway, client)


def _sync_replicas(gateway: Gateway, client: IndexProcessClient) -> None:
    """Exchange updates with other gateways."""
    sharing = ReplicaSync(
        gateway.router,
        client,
        log_event=gateway.log_event,
        clock=asyncio.get_running_loop().time,
        fleet_known=gateway.watcher.has_looked,
        on_answer=gateway.listener.pool.note_engine_response,
    )
    gateway.peer_load.applier = sharing.applier
    gateway.replica_sync = sharing
    gateway.share_admission()
    gateway.background.append(sharing.run)
    gateway.registry.register(ReplicaSyncCollector(sharing))


def _share_limits(gateway: Gateway, client: IndexProcessClient) -> None:
    """Lease limits that other gateways share."""
    quotas = gateway.quotas
    keeper = make_lease_client(
        gateway.settings, client, quotas.accounts, clock=quotas.now_s, log_event=gateway.log_event
    )
    if keeper is not None:
        quotas.leases = keeper
        gateway.background.append(keeper.run)


def _look_up_prefixes(gateway: Gateway, client: IndexProcessClient) -> None:
    """Look up cached tokens in the precise prefix index, if configured."""
    kv_events = gateway.settings.kv_events
    if kv_events is None:
        return
    asking = gateway.cache_lookup = CacheLookupClient(client, gateway.router, wait_s=kv_events.max_wait_s)
    gateway.listener.dispatcher.use_lookup(asking.look_up)
    gateway.background.append(asking.run)
    gateway.registry.register(LookupMetrics(asking.outcomes))

"""Builds a gateway from its settings: the one place where all components are created and connected, as one list."""

from __future__ import annotations

import asyncio
import random
import secrets
import time

from gateway.app.gateway import Gateway, PodKeys
from gateway.app.join_host import join_host
from gateway.app.metrics import GatewayMetrics
from gateway.canary.watch import CanaryWatch
from gateway.cascades.cascade_config import served_ladders
from gateway.cascades.cascades import Ladders
from gateway.config.settings import Settings
from gateway.discovery.file import WatchedFile
from gateway.discovery.source import Source, Static
from gateway.discovery.sources import Means, asked_sources
from gateway.fleet.external_load import Pushed
from gateway.fleet.probe import Prober, probe_session
from gateway.fleet.watcher import Watcher
from gateway.identity.issuer import Issuer
from gateway.identity.keyring import Keyring
from gateway.limits.accounts import make_quotas
from gateway.observe.metrics.process import CallbackErrors
from gateway.observe.receipts import Receipts
from gateway.observe.writers import open_logs
from gateway.pairs.monitoring import UnpairedWatch
from gateway.pairs.pairs import make_pairs
from gateway.pipeline.admission_queue import Room
from gateway.pipeline.attempt import Patience
from gateway.pipeline.pipeline import Passage
from gateway.replica_sync.peer_load import Others
from gateway.roles.balancer import RoleKeeper
from gateway.roles.controller import RolesAtWork
from gateway.roles.lease import HostRoleLease, RoleLease
from gateway.runtime.descriptors import descriptors_allowed
from gateway.runtime.guard import report
from gateway.runtime.host import Host
from gateway.runtime.redis_location import parse_redis_url
from gateway.runtime.tls import listener_tls
from gateway.server.http_server import Front
from routing.canary import Rollout
from routing.decision.router import Router
from routing.prefix_index import WarmIndex
from tenancy.policy import Policy

FROZEN_S = 5.0
"""A stream of a pod that no longer listens is cut after so many seconds without a byte: vLLM that was stopped at once
freezes its requests forever; vLLM that drains goes on sending."""

ALONE = Host()


def build(settings: Settings, policy: Policy | None, host: Host = ALONE) -> Gateway:
    """Build all components of a gateway. Opens files, but no port. Raises `Invalid`."""
    gateway = _assemble(settings, host)
    gateway.go_by(policy)
    _assign_roles(gateway, host)
    _serve_envoy(gateway, host)
    join_host(gateway, host)
    return gateway


def _assemble(settings: Settings, host: Host) -> Gateway:
    clock, draw = asyncio.get_running_loop().time, random.Random().random  # noqa: S311 - breaks ties, keeps no secret
    waits, is_first = settings.timeouts, host.number <= 1  # One worker of a host reports what all of them see.

    tls, prices = listener_tls(settings.tls) if settings.tls else None, dict(settings.model_table)
    receipts = Receipts()
    pod_keys = PodKeys(settings.pod_api_key.value if settings.pod_api_key else None)
    say, logs = open_logs(settings, prices, host)
    router = Router(
        settings.routing.scorers,
        index=WarmIndex(most_blocks_per_engine=settings.routing.most_blocks),
        rollout=Rollout(settings.canaries) if settings.canaries else None,
        keeps_roles=settings.roles is not None,
        report=report,
    )
    metrics = GatewayMetrics(router, prices, say)

    static, pod_file = Static(settings.static_pods), WatchedFile(file, say) if (file := settings.pod_file) else None
    means = Means(say, clock, draw, Pushed(router, clock).take, is_first=is_first)
    sources: list[Source] = [static, *filter(None, [pod_file]), *asked_sources(settings, means)]

    probes = probe_session()  # Nothing may raise from here on: the session would have to be closed.
    issuer = Issuer(probes, say=say, clock=clock)
    keyring = Keyring(None, issuer, time.time)
    prober = Prober(probes, pod_keys)
    watcher = Watcher(router, sources, prober, say=say, clock=clock, draw=draw, models=prices, warns=is_first)

    room = Room(router, clock=clock, draw=draw, no_pod_s=waits.no_pod_s, first_pod_s=waits.first_look_s)
    quotas = make_quotas(router, prices, lambda: room.is_crowded, clock=clock, draw=draw)
    ladders = Ladders(router, served_ladders(prices), draw=draw, clock=clock, say=say, warns=is_first)
    canaries = CanaryWatch(router.rollout or Rollout(()), router.fleet, say, clock)

    observers = [metrics.tallies.witness, receipts.witness, *(log.witness for log in logs.values())]
    background = [issuer.run, canaries.run]
    if settings.canaries:
        observers.insert(1, canaries.witness)
    if is_first:
        background.append(UnpairedWatch(router, say, clock).run)
    passage = Passage(
        router,
        health=watcher.take_end,
        witnesses=observers,
        clock=clock,
        wall_clock=time.time,
        draw=draw,
        patience=Patience(waits.first_byte_s, waits.resume_s, settings.retries, settings.processes),
        reserve=quotas.reserve,
        room=room,
        carry_pair=make_pairs(router, probes, prices, clock=clock, say=say).carry,
    )
    front = Front(
        passage,
        router,
        keyring.identify,
        pod_keys,
        settings.limits,
        settings.timeouts,
        watcher.is_ready,
        ladders=ladders,
        trusted=settings.trusted_proxies,
        cors=settings.cors,
        on_refused=lambda refused: metrics.tallies.count_early(refused.reason),
        descriptors=descriptors_allowed(),
    )
    front.pool.bear(settings.stalls)
    watcher.on_gone(lambda url: front.pool.cut_silent(url, FROZEN_S))

    gateway = Gateway(
        settings=settings,
        say=say,
        logs=logs,
        prices=prices,
        pod_keys=pod_keys,
        keyring=keyring,
        tls=tls,
        router=router,
        receipts=receipts,
        probes=probes,
        static=static,
        pod_file=pod_file,
        watcher=watcher,
        passage=passage,
        room=room,
        quotas=quotas,
        ladders=ladders,
        front=front,
        others=Others(),
        errors=CallbackErrors(say, after=room.reconcile),
        background=background,
    )
    metrics.register(gateway)
    gateway.registry.register(canaries)
    gateway.registry.register(gateway.errors)
    return gateway


def _assign_roles(gateway: Gateway, host: Host) -> None:
    """Have roles follow the traffic, if configured: by a lease in Redis, on the host, or of this gateway alone."""
    settings, clock = gateway.settings, asyncio.get_running_loop().time
    if settings.roles is None:
        return
    lease: RoleLease | None = None
    if settings.redis is not None:
        from gateway.roles.redis_lease import RedisRoleLease  # noqa: PLC0415 - redis-py takes ten megabytes

        lease = in_redis = RedisRoleLease(parse_redis_url(settings.redis.value), secrets.token_hex(8), clock)
        gateway.background.append(in_redis.run)
    elif host.folder is not None:
        lease = HostRoleLease(host.folder, secrets.token_hex(8), time.monotonic)
    controller = RolesAtWork(gateway.router, RoleKeeper(gateway.router, settings.roles), lease, gateway.say, clock)
    gateway.background.append(controller.run)
    gateway.registry.register(controller)


def _serve_envoy(gateway: Gateway, host: Host) -> None:
    """Serve Envoy's ext_proc filter, if configured."""
    config = gateway.settings.extproc
    if config is None:
        return
    from gateway.ext_proc.server import EnvoyShell  # noqa: PLC0415 - protobuf takes six megabytes

    gateway.envoy = EnvoyShell(
        gateway.settings,
        config,
        gateway.front,
        gateway.router,
        gateway.pod_keys,
        is_ready=gateway.is_ready,
        take_end=gateway.watcher.take_end,
        number=host.number,
        say=gateway.say,
    )
    gateway.registry.register(gateway.envoy.exposition)
    gateway.background.extend(gateway.envoy.renewing(gateway.say))

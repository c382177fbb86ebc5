"""Builds a gateway from its settings: the one place where everything meets, and where it reads as a list."""

from __future__ import annotations

import asyncio
import random
import time

from gateway.cascades.cascades import Ladders
from gateway.cascades.setup import served_ladders
from gateway.cluster.peer_load import Others
from gateway.config.values import Settings
from gateway.discovery.file import WatchedFile
from gateway.discovery.source import Source
from gateway.discovery.sources import Means, asked_sources
from gateway.discovery.static import Static
from gateway.fleet.probe import Prober, probe_session
from gateway.fleet.pushed import Pushed
from gateway.fleet.watcher import Watcher
from gateway.gateway import Gateway, Life, PodKeys
from gateway.http.listener import Front
from gateway.identity.issuer import Issuer
from gateway.identity.keyring import Keyring
from gateway.kv_index.setup import join_host
from gateway.limits.setup import make_quotas
from gateway.observe.metrics.callback_errors import CallbackErrors
from gateway.observe.metrics.setup import Counts
from gateway.observe.receipts import Receipts
from gateway.observe.writers import open_logs
from gateway.pairs.setup import make_pairs
from gateway.pairs.unpaired_watch import UnpairedWatch
from gateway.pipeline.admission_queue import Room
from gateway.pipeline.attempt_limits import Patience
from gateway.pipeline.pipeline import Passage
from gateway.roles.making import keep_roles, make_canaries
from gateway.runtime.descriptors import descriptors_allowed
from gateway.runtime.guard import report
from gateway.runtime.host import Host
from gateway.runtime.tls import listener_tls
from routing.canary import Rollout
from routing.decision.router import Router
from routing.prefix_index import WarmIndex
from tenancy.policy import Policy

FROZEN_S = 5.0
"""A stream of a pod that no longer listens is cut after so long without a byte: vLLM that was told to stop at once
freezes what runs, for good; told to drain it goes on sending."""

ALONE = Host()


def build(settings: Settings, policy: Policy | None, host: Host = ALONE) -> Gateway:
    """Everything that a gateway is made of. Opens files, but no port. Raises `Invalid`."""
    gateway = _put_together(settings, host)
    gateway.go_by(policy)
    keep_roles(gateway, host)
    _serve_envoy(gateway, host)
    join_host(gateway, host)
    return gateway


def _put_together(settings: Settings, host: Host) -> Gateway:
    clock, draw = asyncio.get_running_loop().time, random.Random().random  # noqa: S311 - breaks ties, keeps no secret
    tls, prices = listener_tls(settings.tls) if settings.tls else None, dict(settings.model_table)
    pod_keys = PodKeys(settings.pod_api_key.value if settings.pod_api_key else None)
    life, receipts, others = Life(), Receipts(), Others()
    say, logs = open_logs(settings, prices, host)
    router = Router(
        settings.routing.scorers,
        index=WarmIndex(most_blocks_per_engine=settings.routing.most_blocks),
        rollout=Rollout(settings.canaries) if settings.canaries else None,
        keeps_roles=settings.roles is not None,
        report=report,
    )
    counts, errors = Counts(router, prices, say), CallbackErrors(say)
    static, pod_file = Static(settings.static_pods), WatchedFile(file, say) if (file := settings.pod_file) else None
    means = Means(say, clock, draw, Pushed(router, clock).take, is_first=host.number <= 1)
    sources: list[Source] = [static, *filter(None, [pod_file]), *asked_sources(settings, means)]
    probes = probe_session()  # Nothing is refused from here on: it would have to be closed.
    issuer = Issuer(probes, say=say, clock=clock)
    keyring = Keyring(None, issuer, time.time)
    warns = host.number <= 1  # One worker of a host reports what all of them see.
    prober = Prober(probes, pod_keys)
    watcher = Watcher(router, sources, prober, say=say, clock=clock, draw=draw, models=prices, warns=warns)
    waits = settings.timeouts
    room = Room(router, clock=clock, draw=draw, no_pod_s=waits.no_pod_s, first_pod_s=waits.first_look_s)
    quotas = make_quotas(router, prices, room, clock=clock, draw=draw)
    ladders = Ladders(router, served_ladders(prices), draw=draw, clock=clock, say=say, warns=warns)
    canaries = make_canaries(router, say, clock)
    passage = Passage(
        router,
        health=watcher.take_end,
        witnesses=[
            *counts.witnesses,
            *([canaries.witness] if settings.canaries else ()),
            receipts.witness,
            *(log.witness for log in logs.values()),
        ],
        clock=clock,
        wall_clock=time.time,
        draw=draw,
        patience=_patience(settings),
        reserve=quotas.reserve,
        room=room,
        pairs=make_pairs(router, probes, prices, clock=clock, say=say),
    )
    front = Front(
        passage,
        router,
        keyring.identify,
        pod_keys,
        settings.limits,
        settings.timeouts,
        lambda: not life.is_stopping and watcher.is_ready(),
        ladders=ladders,
        trusted=settings.trusted_proxies,
        cors=settings.cors,
        on_refused=lambda refused: counts.tallies.count_early(refused.reason),
        descriptors=descriptors_allowed(),
    )
    parts = (tls, router, receipts, probes, static, pod_file, watcher, passage, room, quotas, ladders)
    gateway = Gateway(settings, life, say, logs, prices, pod_keys, keyring, *parts, front, others, errors)
    errors.after = room.reconcile
    gateway.background += [issuer.run, canaries.run]
    if warns:
        gateway.background.append(UnpairedWatch(router, say, clock).run)
    front.pool.bear(settings.stalls)
    watcher.on_gone(lambda url: front.cut_silent(url, FROZEN_S))
    counts.show(gateway)
    gateway.registry.register(canaries)
    gateway.registry.register(errors)
    return gateway


def _patience(settings: Settings) -> Patience:
    timeouts = settings.timeouts
    return Patience(timeouts.first_byte_s, timeouts.resume_s, settings.retries, settings.processes)


def _serve_envoy(gateway: Gateway, host: Host) -> None:
    """The shell behind Envoy, where it is wanted."""
    words = gateway.settings.extproc
    if words is None:
        return
    from gateway.ext_proc.setup import EnvoyShell  # noqa: PLC0415 - protobuf takes six megabytes

    gateway.envoy = EnvoyShell(
        gateway.settings,
        words,
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

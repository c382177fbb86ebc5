"""Builds a gateway from its settings: the one place where all components are created and connected, as one list."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.app.diagnosis import diagnose_fleet
from gateway.app.gateway import Gateway
from gateway.app.join_host import connect_index_process
from gateway.app.metrics import GatewayMetrics
from gateway.cascades.cascade_config import configured_cascades
from gateway.cascades.cascades import Cascades
from gateway.config.settings import Settings
from gateway.discovery.file import PodFileSource
from gateway.discovery.kubernetes_objectives import InferenceRules
from gateway.discovery.source import PodSource, StaticSource
from gateway.discovery.sources import SourceContext, remote_sources
from gateway.fleet.external_load import PushedLoad
from gateway.fleet.probe import Prober, probe_session
from gateway.fleet.watcher import FleetWatcher
from gateway.identity.issuer import TokenIssuer
from gateway.identity.keyring import Keyring
from gateway.limits.accounts import make_quota_enforcer
from gateway.observe.metrics.process import CallbackErrorHandler
from gateway.observe.receipts import ReceiptStore
from gateway.observe.writers import open_logs
from gateway.pairs.monitoring import UnpairedPrefillMonitor
from gateway.pairs.pairs import make_pairs
from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.attempt import AttemptLimits
from gateway.pipeline.pipeline import RequestPipeline
from gateway.relay.http_transport import PodKeys
from gateway.replica_sync.peer_load import PeerLoad
from gateway.roles.balancer import RoleAssigner
from gateway.roles.controller import RoleController
from gateway.roles.lease import HostRoleLease, RoleLease
from gateway.runtime.descriptors import descriptors_allowed
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import report_exception
from gateway.runtime.host import HostProcess
from gateway.runtime.redis_location import parse_redis_url
from gateway.runtime.tls import server_context
from gateway.server.http_server import HttpServer
from routing.decision.router import Router
from routing.pairing.roles import RoleGate
from routing.prefix_index import PrefixIndex
from tenancy.policy import Policy

if TYPE_CHECKING:
    from gateway.key_api.key_store import KeyStore
    from gateway.tracing.tracing import Tracing

FROZEN_STREAM_TIMEOUT_S = 5.0
"""A stream of a pod that no longer listens is cut after so many seconds without a byte: vLLM that was stopped at once
freezes its requests forever; vLLM that drains goes on sending."""

SINGLE_PROCESS = HostProcess()


def build(settings: Settings, policy: Policy | None, host: HostProcess = SINGLE_PROCESS) -> Gateway:
    """Build all components of a gateway. Opens files, but no port. Raises `InvalidDocument`."""
    gateway = _assemble(settings, host)
    gateway.apply_policy(policy)
    _assign_roles(gateway, host)
    if host.number <= 1:
        diagnose_fleet(gateway)
    _share_cascade_samples(gateway)
    _use_providers(gateway)
    _serve_envoy(gateway, host)
    _serve_key_api(gateway, host)
    connect_index_process(gateway, host)
    _try_canary(gateway, host)
    if settings.supply is not None and settings.supply.is_on:
        from gateway.app.join_supply import decide_supply  # noqa: PLC0415 - off in most gateways

        decide_supply(gateway, settings.supply, is_first=host.number <= 1)
    if settings.supply is not None and settings.supply.warms_pods:
        from gateway.app.join_warmup import warm_new_pods  # noqa: PLC0415 - off in most gateways

        warm_new_pods(gateway, settings.supply)
    return gateway


def _try_canary(gateway: Gateway, host: HostProcess) -> None:
    """Put pods on trial, if any are configured to be."""
    for terms in gateway.settings.canaries:
        from gateway.app.join_canary import try_canary  # noqa: PLC0415 - off in most gateways

        try_canary(gateway, terms, host)


def _use_providers(gateway: Gateway) -> None:
    """Let requests be sent to endpoints outside the fleet, where any is configured."""
    if not gateway.settings.providers.endpoints:
        return
    from gateway.app.join_providers import use_providers  # noqa: PLC0415 - off in most gateways

    use_providers(gateway)


def _share_cascade_samples(gateway: Gateway) -> None:
    """Share shadow samples of cascades through Redis, if both are configured."""
    settings = gateway.settings
    if settings.redis is None or not any(entry.cascade for entry in gateway.model_entries.values()):
        return
    from gateway.cascades.shared_samples import SharedSamples  # noqa: PLC0415 - redis-py takes ten megabytes

    sampler = gateway.cascades.shadow_sampler
    shared = SharedSamples(parse_redis_url(settings.redis.value), lambda: sampler.active_ids, sampler.apply_sample)
    sampler.publish = shared.publish
    gateway.background.append(shared.run)


def _assemble(settings: Settings, host: HostProcess) -> Gateway:
    clock, draw = asyncio.get_running_loop().time, random.Random().random  # noqa: S311 - breaks ties, keeps no secret
    waits, is_first = settings.timeouts, host.number <= 1  # One worker of a host reports what all of them see.

    tls, prices = server_context(settings.tls) if settings.tls else None, dict(settings.model_table)
    receipts = ReceiptStore()
    pod_keys = PodKeys(settings.pod_api_key.value if settings.pod_api_key else None)
    log_event, logs = open_logs(settings, prices, host)
    router = Router(
        settings.routing.scorers,
        index=PrefixIndex(max_blocks_per_engine=settings.routing.max_blocks_per_engine),
        default_gate=RoleGate(settings.roles) if settings.roles else None,
        report=report_exception,
    )
    has_admin = settings.admin_listen is not None  # Without it no receipts and no totals of the page are kept.
    metrics = GatewayMetrics(router, prices, log_event, has_page=has_admin)

    static, pod_file = (
        StaticSource(settings.configured_pods),
        PodFileSource(file, log_event) if (file := settings.pod_file) else None,
    )
    rules = _make_rules(settings, log_event, draw, warns=is_first)
    means = SourceContext(log_event, clock, draw, PushedLoad(router, clock).apply, is_first, rules)
    sources: list[PodSource] = [static, *filter(None, [pod_file]), *remote_sources(settings, means)]

    probes = probe_session()  # Nothing may raise from here on: the session would have to be closed.
    issuer = TokenIssuer(probes, log_event=log_event, clock=clock)
    keyring = Keyring(None, issuer, time.time)
    prober = Prober(probes, pod_keys)
    watcher = FleetWatcher(
        router, sources, prober, log_event=log_event, clock=clock, draw=draw, models=prices, warns=is_first
    )

    room = _queue_type(settings)(
        router, clock=clock, draw=draw, no_pod_s=waits.scale_from_zero_s, first_pod_s=waits.startup_discovery_s
    )
    quotas = make_quota_enforcer(router, prices, room.has_waiters, clock=clock, draw=draw)
    cascades = Cascades(
        router, configured_cascades(prices), draw=draw, clock=clock, log_event=log_event, warns=is_first
    )

    tracing = _make_tracing(settings, log_event) if settings.tracing else None
    observers = [metrics.tallies.on_outcome, *(log.on_outcome for log in logs.values())]
    if has_admin:
        observers.insert(1, receipts.on_outcome)
    background = [issuer.run]
    unpaired = UnpairedPrefillMonitor(router, log_event, clock) if is_first else None
    if unpaired is not None:
        background.append(unpaired.run)
    if tracing is not None:
        observers.append(tracing.tracer.on_outcome)
        background.append(tracing.run)
    pipeline = RequestPipeline(
        router,
        health=watcher.on_attempt_end,
        observers=observers,
        clock=clock,
        wall_clock=time.time,
        draw=draw,
        limits=AttemptLimits(waits.first_byte_s, waits.resume_s, settings.retries, settings.processes),
        reserve=quotas.reserve,
        queue=room,
        run_pair=make_pairs(router, probes, prices, clock=clock, log_event=log_event).run_attempt,
    )
    front = HttpServer(
        pipeline,
        router,
        keyring.identify,
        pod_keys,
        settings.limits,
        settings.timeouts,
        watcher.is_ready,
        cascades=cascades,
        trusted=settings.trusted_proxies,
        cors=settings.cors,
        on_rejected=lambda rejected_count: metrics.tallies.count_rejection(rejected_count.reason),
        descriptors=descriptors_allowed(),
    )
    front.pool.set_stall_bounds(settings.stall_detection)
    watcher.set_unreachable_listener(lambda url: front.pool.fail_silent(url, FROZEN_STREAM_TIMEOUT_S))

    gateway = Gateway(
        settings=settings,
        log_event=log_event,
        logs=logs,
        model_entries=prices,
        pod_keys=pod_keys,
        keyring=keyring,
        tls=tls,
        router=router,
        receipts=receipts,
        probes=probes,
        static=static,
        pod_file=pod_file,
        watcher=watcher,
        pipeline=pipeline,
        admission_queue=room,
        quotas=quotas,
        cascades=cascades,
        listener=front,
        peer_load=PeerLoad(),
        totals=metrics.totals,
        request_counters=metrics.tallies,
        cascade_counters=metrics.cascades,
        callback_errors=CallbackErrorHandler(log_event, after=room.reconcile),
        background=background,
    )
    metrics.register(gateway, unpaired)
    _apply_rules(rules, gateway)
    gateway.registry.register(gateway.callback_errors)
    if tracing is not None:
        gateway.tracing = tracing
        front.dispatcher.trace_with(tracing.tracer.begin)
        gateway.registry.register(tracing.exporter)
    return gateway


def _queue_type(settings: Settings) -> type[AdmissionQueue]:
    """Return the plain queue, or the one that counts placements where desired engines are computed."""
    if settings.supply is None or not settings.supply.is_on:
        return AdmissionQueue
    from gateway.scaling.demand import MeteredAdmissionQueue  # noqa: PLC0415 - off in most gateways

    return MeteredAdmissionQueue


def _make_rules(
    settings: Settings, log_event: EventLog, draw: Callable[[], float], *, warns: bool
) -> InferenceRules | None:
    """Return where Kubernetes' objectives and rewrites are kept, None if no source follows them."""
    if not any(place.objectives for place in settings.sources.kubernetes):
        return None
    return InferenceRules(log_event, draw, warns=warns)


def _apply_rules(rules: InferenceRules | None, gateway: Gateway) -> None:
    """Let requests use objectives and rewrites, if any source follows them."""
    if rules is not None:
        gateway.keyring.use_objectives(rules.priority_of)
        gateway.listener.dispatcher.rewrite_models_with(rules.rewrite, rules.rewrite_targets)


def _make_tracing(settings: Settings, log_event: EventLog) -> Tracing:
    from gateway.tracing.tracing import make_tracing  # noqa: PLC0415 - an extra, and megabytes of messages

    assert settings.tracing is not None  # noqa: S101 - the caller has looked
    return make_tracing(settings.tracing, random.Random().getrandbits, log_event)  # noqa: S311 - ids, no secrets


def _assign_roles(gateway: Gateway, host: HostProcess) -> None:
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
    controller = RoleController(
        gateway.router, RoleAssigner(gateway.router, settings.roles), lease, gateway.log_event, clock
    )
    gateway.background.append(controller.run)
    gateway.registry.register(controller)


def _serve_key_api(gateway: Gateway, host: HostProcess) -> None:
    """Mirror the keys in Redis and serve the key API, if configured, in one process of the host."""
    config, mirror_dir = gateway.settings.key_api, gateway.settings.key_store
    if host.number > 1:
        return
    store: KeyStore | None = None
    if mirror_dir is not None and gateway.settings.redis is not None:
        from gateway.identity.redis_keys import KeyMirror  # noqa: PLC0415 - redis-py takes ten megabytes
        from gateway.key_api.redis_key_store import RedisKeyStore  # noqa: PLC0415 - as above

        place = parse_redis_url(gateway.settings.redis.value)
        store = RedisKeyStore(place, mirror_dir)
        gateway.background.append(KeyMirror(place, mirror_dir, gateway.log_event).run)
    if config is None:
        return
    from gateway.key_api.service import KeyApiService  # noqa: PLC0415 - off in most gateways

    key_api = KeyApiService(
        config,
        gateway.probes,
        policy=lambda: gateway.keyring.policy,
        log_event=gateway.log_event,
        clock=asyncio.get_running_loop().time,
        wall_clock=time.time,
        store=store,
    )
    gateway.background.append(key_api.run)


def _serve_envoy(gateway: Gateway, host: HostProcess) -> None:
    """Serve Envoy's ext_proc filter, if configured."""
    config = gateway.settings.extproc
    if config is None:
        return
    from gateway.ext_proc.server import ExtProcServer  # noqa: PLC0415 - protobuf takes six megabytes

    gateway.ext_proc = ExtProcServer(
        gateway.settings,
        config,
        gateway.listener,
        gateway.router,
        gateway.pod_keys,
        is_ready=gateway.is_ready,
        take_end=gateway.watcher.on_attempt_end,
        number=host.number,
        log_event=gateway.log_event,
        provider_models=lambda: frozenset() if gateway.providers is None else gateway.providers.models,
    )
    gateway.registry.register(gateway.ext_proc.exposition)
    gateway.background.extend(gateway.ext_proc.renewal_tasks(gateway.log_event))

"""Connects the diagnosis of the fleet to a gateway: its facts, its metric, its admin API and what findings change."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

from gateway.config.doctor import DoctorMode
from gateway.diagnosis.baseline_store import BaselineStore
from gateway.diagnosis.collector import FactCollector, wanted_features
from gateway.diagnosis.doctor import Doctor
from gateway.diagnosis.draining import KEY, FindingDrains
from gateway.diagnosis.effects import EffectsPublisher, FindingEffects
from gateway.diagnosis.monitoring import FindingCollector
from gateway.runtime.redis_location import parse_redis_url
from tenancy.policy import Policy

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway
    from gateway.roles.redis_lease import RedisRoleLease


def diagnose_fleet(gateway: Gateway) -> None:
    """Have a gateway diagnose its fleet, unless the configuration turns this off."""
    settings, loop = gateway.settings, asyncio.get_running_loop()
    if settings.doctor.mode is DoctorMode.OFF:
        return
    counters = gateway.request_counters
    collector = FactCollector(
        gateway.router,
        gateway.watcher,
        clock=loop.time,
        wall_clock=time.time,
        count_fresh=counters.count_fresh,
        wanted=lambda: wanted_features(
            gateway.router,
            follows_kv_events=settings.kv_events is not None,
            has_priorities=gateway.keyring.policy is not None and len(gateway.keyring.policy.tiers) > 1,
        ),
        single_services=frozenset(settings.doctor.single_services),
    )
    if settings.redis is not None:
        from gateway.diagnosis.redis_latency import RedisLatency  # noqa: PLC0415 - redis-py takes ten megabytes

        latency = RedisLatency(parse_redis_url(settings.redis.value), collector.note_redis, loop.time)
        gateway.background.append(latency.run)
    counters.observe_batches(collector.requests.on_outcome)
    gateway.watcher.set_page_listener(collector.take_page)
    doctor = gateway.doctor = Doctor(
        collector,
        mode=settings.doctor.mode,
        baselines=BaselineStore(settings.doctor.baseline, gateway.log_event, loop.time),
        log_event=gateway.log_event,
        wall_clock=time.time,
        clock=loop.time,
    )
    drains = _finding_drains(gateway) if settings.doctor.mode is DoctorMode.ACT else None

    def publish(effects: FindingEffects) -> None:
        gateway.apply_effects(effects)
        gateway.share_effects(effects)

    effects = EffectsPublisher(drains, publish, loop.time)
    doctor.listeners.append(effects.apply)
    gateway.background.append(doctor.run)
    gateway.registry.register(FindingCollector(doctor, (lambda: ()) if drains is None else drains.drained))


def _finding_drains(gateway: Gateway) -> FindingDrains:
    """Drains for findings; all gateways of a Redis together, where there is one."""
    settings, clock = gateway.settings, asyncio.get_running_loop().time
    lease: RedisRoleLease | None = None
    if settings.redis is not None:
        from gateway.roles.redis_lease import RedisRoleLease  # noqa: PLC0415 - redis-py takes ten megabytes

        lease = RedisRoleLease(parse_redis_url(settings.redis.value), secrets.token_hex(8), clock, key=KEY)
        gateway.background.append(lease.run)
    drains = FindingDrains(
        frozenset(settings.doctor.drain_findings),
        gateway.log_event,
        clock=clock,
        lease=lease,
        residencies=lambda: residencies(gateway.keyring.policy),
    )
    if lease is not None:
        gateway.background.append(drains.run)
    return drains


def residencies(policy: Policy | None) -> frozenset[frozenset[str]]:
    """Return the sets of regions that tenants' requests are bound to; empty without a policy."""
    tenants = () if policy is None else policy.tenants.values()
    return frozenset(tenant.regions for tenant in tenants if tenant.regions is not None)

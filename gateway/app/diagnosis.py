"""Connects the diagnosis of the fleet to a gateway: its facts, its metric, its admin API and what findings change."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gateway.config.doctor import DoctorMode
from gateway.diagnosis.baseline_store import BaselineStore
from gateway.diagnosis.collector import FactCollector, wanted_features
from gateway.diagnosis.doctor import Doctor
from gateway.diagnosis.draining import FindingDrains
from gateway.diagnosis.effects import EffectsPublisher, FindingEffects
from gateway.diagnosis.monitoring import FindingCollector
from gateway.runtime.redis_location import parse_redis_url

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway


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
    drains = FindingDrains(frozenset(settings.doctor.drain_findings), gateway.log_event)

    def publish(effects: FindingEffects) -> None:
        gateway.apply_effects(effects)
        gateway.share_effects(effects)

    effects = EffectsPublisher(drains if settings.doctor.mode is DoctorMode.ACT else None, publish)
    doctor.listeners.append(effects.apply)
    gateway.background.append(doctor.run)
    gateway.registry.register(FindingCollector(doctor, drains.drained))

"""Connects a canary to a gateway: its outcomes, the shared verdict, comparisons of answers, metrics, the admin port."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path

from gateway.app.gateway import Gateway
from gateway.canary.controller import CanaryController
from gateway.canary.quality import QualitySampler
from gateway.canary.state_store import CanaryStore, FileStore, MemoryStore
from gateway.config.rollout import CanaryConfig
from gateway.diagnosis.server_facts import started_server
from gateway.runtime.host import HostProcess
from gateway.runtime.redis_location import parse_redis_url
from routing.canary.change import StartedServer
from routing.canary.rollout import Rollout
from routing.server_settings import NO_SETTINGS

STATE_FILE = "canary.json"
"""In the run folder of a host whose workers have neither Redis nor a configured file."""


def try_canary(gateway: Gateway, terms: CanaryConfig, host: HostProcess) -> None:
    """Put pods on trial."""
    router, clock = gateway.router, asyncio.get_running_loop().time
    rollout = router.rollout = Rollout(terms)
    if terms.revision is not None and terms.pairs_with_revision is not None:
        router.fleet.revision_aliases = {terms.revision: terms.pairs_with_revision}

    def servers() -> Mapping[str, StartedServer]:
        reports = gateway.watcher.census.servers()
        return {
            pod.url: started_server(reports[pod.url].settings if pod.url in reports else NO_SETTINGS, pod.facts)
            for pod in router.fleet.pods
        }

    def has_tenants() -> bool:
        policy = gateway.keyring.policy
        return policy is not None and len(policy.tenants) > 1

    controller = gateway.canary = CanaryController(
        rollout,
        router.fleet,
        _store(gateway, terms.state_file, host),
        servers=servers,
        log_event=gateway.log_event,
        clock=clock,
        wall_clock=time.time,
        has_tenants=has_tenants,
        logs_verdicts=host.number <= 1,
    )
    draw = random.Random().random  # noqa: S311 - chooses samples
    sampler = QualitySampler(controller, router, draw=draw, clock=clock)
    gateway.pipeline.observe(controller.on_outcome)
    gateway.pipeline.observe(sampler.on_outcome)
    gateway.listener.dispatcher.compare_answers(sampler.reserve)
    gateway.background += (controller.run, sampler.run)
    gateway.registry.register(controller)


def _store(gateway: Gateway, file: Path | None, host: HostProcess) -> CanaryStore:
    """Return where the verdict is kept: in Redis, in the configured file, or for as long as this host's workers run."""
    settings = gateway.settings
    if settings.redis is not None:
        from gateway.canary.redis_store import RedisStore  # noqa: PLC0415 - redis-py takes ten megabytes

        store = RedisStore(parse_redis_url(settings.redis.value))
        gateway.background.append(store.run)
        return store
    if file is not None:
        return FileStore(file)
    return MemoryStore() if host.folder is None else FileStore(host.folder / STATE_FILE)

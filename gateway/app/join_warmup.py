"""Connects replays to new pods to a gateway: the prompts of its requests, its watcher, its peers, its metrics."""

from __future__ import annotations

import asyncio

from gateway.app.gateway import Gateway
from gateway.config.supply import SupplyConfig
from gateway.replica_sync.sync import ReplicaSync
from gateway.warmup.controller import WarmupController
from gateway.warmup.metrics import WarmupCollector
from gateway.warmup.prompt_store import PromptStore
from gateway.warmup.replay import ReplaySender
from routing.replica_state import SupplyUpdate
from supply.policy import ControlMode


def warm_new_pods(gateway: Gateway, config: SupplyConfig) -> None:
    """Have hot prefixes replayed to new pods, or show what would be."""
    policy, clock = config.policy, asyncio.get_running_loop().time
    prompts = PromptStore(
        max_bytes=policy.prewarm_keep_bytes,
        max_age_s=policy.prewarm_keep_s,
        keeps_text=policy.prewarm is ControlMode.ACT,
        clock=clock,
    )
    controller = gateway.warmup = WarmupController(
        policy,
        gateway.router,
        prompts,
        ReplaySender(gateway.probes, gateway.pod_keys, gateway.router.fleet).send,
        end_warmup=gateway.watcher.end_warmup,
        pools=lambda: {entry.name: entry for entry in gateway.settings.pools},
        wait_share=gateway.admission_queue.max_wait_share,
        clock=clock,
        log_event=gateway.log_event,
    )
    gateway.watcher.warm_new_pods(controller.should_warm)
    gateway.listener.dispatcher.keep_prompts(prompts.observe)
    if gateway.replica_sync is not None:
        _share(controller, gateway.replica_sync)
    gateway.background.append(controller.run)
    gateway.registry.register(WarmupCollector(controller))


def _share(controller: WarmupController, sync: ReplicaSync) -> None:
    controller.share(lambda payload: sync.publish(SupplyUpdate(payload)), lambda: sync.replica_id)
    sync.applier.supply_listeners += (controller.take,)

"""Connects supply decisions to a gateway: counts, exchange with peers, metrics, waits for a first pod, KEDA's port."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from gateway.app.gateway import Gateway
from gateway.config.supply import SupplyConfig
from gateway.pipeline.start_queue import StartQueue
from gateway.scaling.actions import ActionAdviser, load_actuators
from gateway.scaling.controller import SupplyController
from gateway.scaling.demand import DemandMeter, MeteredAdmissionQueue
from gateway.scaling.metrics import SupplyCollector
from gateway.scaling.service import ExternalScalerPort
from supply.actions import SeenFault, propose_actions


def decide_supply(gateway: Gateway, config: SupplyConfig, *, is_first: bool) -> None:
    """Decide how many engines there should be. `is_first`: this process has the listener of its host.

    Raises `InvalidDocument` for an invalid certificate of that listener.
    """
    clock, room = asyncio.get_running_loop().time, cast("MeteredAdmissionQueue", gateway.admission_queue)
    meter = room.meter = DemandMeter(gateway.router, clock=clock)
    watcher, settings = gateway.watcher, gateway.settings

    controller = gateway.supply = SupplyController(
        config,
        gateway.router,
        room,
        gateway.quotas,
        pools=lambda: {entry.name: entry for entry in gateway.settings.pools},
        tiers=lambda: room.admission.tiers if room.admission is not None else {},
        clock=clock,
        wall_clock=time.time,
        is_settled=lambda: watcher.has_looked.is_set() and gateway.router.fleet.is_complete,
        log_event=gateway.log_event,
    )
    gateway.pipeline.observe(meter.on_outcome)
    room.starts = StartQueue(
        gateway.router.fleet,
        clock=clock,
        covers=controller.covers,
        remaining_s=controller.remaining_s,
        on_needed=controller.needed,
        max_wait_s=settings.timeouts.scale_from_zero_s,
    )
    if gateway.replica_sync is not None:
        controller.share(gateway.replica_sync)
    gateway.background.append(controller.run)
    controller.actions = ActionAdviser(
        lambda: propose_actions(controller.decision.pools, _seen_faults(gateway)),
        load_actuators(gateway.log_event),
        gateway.log_event,
    )
    gateway.background.append(controller.actions.run)
    scaler = None
    if config.listen is not None and is_first:
        port = ExternalScalerPort(config, config.listen, controller, gateway.log_event)
        scaler = port.scaler
        gateway.background.append(port.run)
    gateway.registry.register(SupplyCollector(controller, scaler))


def _seen_faults(gateway: Gateway) -> list[SeenFault]:
    """Return the findings of diagnosis, where it is on."""
    if gateway.doctor is None:
        return []
    return [SeenFault(each.recipe, each.pool, each.pods) for each in gateway.doctor.diagnosis.findings]

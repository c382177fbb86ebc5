"""Joins endpoints outside the fleet to a gateway: their standing, the gate, the route of the transport, metrics."""

from __future__ import annotations

import asyncio

from gateway.app.gateway import Gateway
from gateway.observe.metrics.providers import ProviderCollector
from gateway.pipeline.attempt import AttemptStatus
from gateway.providers.gate import ProviderGate
from gateway.providers.link import LinkProbe
from gateway.providers.link_watch import LinkWatch
from gateway.providers.monitor import ProviderMonitor
from gateway.providers.sender import ProviderSender


def use_providers(gateway: Gateway) -> None:
    """Let requests be sent to the configured endpoints, by the grants of their tenants."""
    probe, pool = LinkProbe(), gateway.listener.pool
    monitor = ProviderMonitor(
        gateway.router, clock=asyncio.get_running_loop().time, log_event=gateway.log_event, probe=probe
    )
    gate = ProviderGate(monitor, gateway.quotas, gateway.settings.processes)
    watch = LinkWatch(monitor, pool, probe)
    gateway.listener.dispatcher.transports.use_providers(ProviderSender(gate, pool, watch))
    gateway.providers = monitor
    gateway.cascades.limit_providers(gate.has_room)
    fleet_health = gateway.watcher.on_attempt_end

    def health(url: str, end: AttemptStatus) -> bool:
        return monitor.on_attempt_end(url, end) if url in monitor else fleet_health(url, end)

    gateway.pipeline.report_health_to(health)
    gateway.pipeline.observe_first(gate.on_outcome)
    gateway.background += [monitor.run, watch.run]
    gateway.registry.register(ProviderCollector(monitor, gate))
    monitor.apply(gateway.settings.providers)

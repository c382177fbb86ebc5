"""Metrics of endpoints outside the fleet: what was sent, denied and spent there, and how they are doing."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.providers.gate import ProviderGate
from gateway.providers.monitor import Hold, ProviderMonitor

LABELS = ("endpoint", "provider", "region")


class ProviderCollector(Collector):
    """Shows the endpoints of one process."""

    def __init__(self, monitor: ProviderMonitor, gate: ProviderGate) -> None:
        self._monitor = monitor
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        sent = CounterMetricFamily(
            "hearth_provider_requests", "Requests that were sent to a provider outside the fleet.", labels=LABELS
        )
        spent = CounterMetricFamily(
            "hearth_provider_cost", "Money spent at a provider, by the prices of model_list.", labels=LABELS
        )
        open_now = GaugeMetricFamily(
            "hearth_provider_requests_in_flight", "Requests in flight at a provider outside the fleet.", labels=LABELS
        )
        usable = GaugeMetricFamily(
            "hearth_provider_usable", "1 while requests may be sent to an endpoint, else 0.", labels=LABELS
        )
        for each in self._monitor:
            labels = (each.config.name, each.config.provider, each.config.region)
            sent.add_metric(labels, each.sent_count)
            spent.add_metric(labels, each.spent)
            open_now.add_metric(labels, each.open_requests)
            usable.add_metric(labels, each.hold is Hold.NONE and not self._monitor.is_stopped)
        denied = CounterMetricFamily(
            "hearth_provider_denied",
            "Attempts that the gate kept within the fleet: not allowed, or over a limit.",
            labels=("endpoint", "reason"),
        )
        for key, count in self._gate.denied.items():
            denied.add_metric(key, count)
        yield from (sent, spent, open_now, usable, denied)

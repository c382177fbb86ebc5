"""What the shell behind Envoy shows of itself, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.ext_proc.callers import CallerCheck
from gateway.ext_proc.listener import Port
from gateway.ext_proc.shared import Office


class Exposition(Collector):
    """Gauges read when somebody asks."""

    def __init__(self, port: Port, office: Office, callers: CallerCheck) -> None:
        self._port = port
        self._office = office
        self._callers = callers

    def collect(self) -> Iterator[Metric]:
        shown = {
            "hearth_extproc_connections": ("Connections of Envoys.", len(self._port.connections)),
            "hearth_extproc_streams": ("Streams open on them.", self._port.open_streams),
            "hearth_extproc_requests": ("Requests under way behind Envoy.", self._office.crowd.now),
            "hearth_extproc_access_logs": ("Envoys that write their access log to us.", self._office.log.streams),
        }
        for name, (words, value) in shown.items():
            yield GaugeMetricFamily(name, words, value)
        rejected = CounterMetricFamily(
            "hearth_extproc_unauthenticated",
            "Callers rejected for want of a certificate (handshakes) or a token (requests).",
            labels=("by",),
        )
        for by, count in self._callers.rejected.items():
            rejected.add_metric((by,), count)
        yield rejected

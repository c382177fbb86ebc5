"""What the shell behind Envoy shows of itself, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.extproc.office import Office
from gateway.extproc.port import Port


class Exposition(Collector):
    """Gauges read when somebody asks."""

    def __init__(self, port: Port, office: Office) -> None:
        self._port = port
        self._office = office

    def collect(self) -> Iterator[GaugeMetricFamily]:
        shown = {
            "hearth_extproc_connections": ("Connections of Envoys.", len(self._port.connections)),
            "hearth_extproc_streams": ("Streams open on them.", self._port.open_streams),
            "hearth_extproc_requests": ("Requests under way behind Envoy.", self._office.crowd.now),
            "hearth_extproc_access_logs": ("Envoys that write their access log to us.", self._office.log.streams),
        }
        for name, (words, value) in shown.items():
            yield GaugeMetricFamily(name, words, value)

"""Shows to Prometheus what passes through the warmth process: between workers, and to and from Redis."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.replica_sync.hub import Hub
from gateway.replica_sync.redis_bridge import RedisBridge

Family = CounterMetricFamily | GaugeMetricFamily


class ExchangeExposition(Collector):
    """The warmth process's figures."""

    def __init__(self, hub: Hub, bridge: RedisBridge | None) -> None:
        self._hub = hub
        self._bridge = bridge

    def collect(self) -> Iterator[Family]:
        """All families of this moment."""
        hub, bridge = self._hub, self._bridge
        yield GaugeMetricFamily("hearth_exchange_workers", "Workers that are connected.", hub.workers)
        yield GaugeMetricFamily("hearth_exchange_past_bytes", "News kept for who comes next.", hub.past_bytes)
        dropped = CounterMetricFamily("hearth_exchange_dropped", "What nobody took in time.", labels=("to",))
        dropped.add_metric(("worker",), hub.dropped_frames)
        if bridge is not None:
            dropped.add_metric(("redis",), bridge.dropped)
        yield dropped
        if bridge is None:
            return
        yield GaugeMetricFamily(
            "hearth_redis_connected", "1 where Redis takes and gives our news.", float(bridge.is_connected)
        )
        yield CounterMetricFamily("hearth_redis_written", "Entries written to the stream.", bridge.written)
        yield CounterMetricFamily("hearth_redis_read", "Entries read from the stream, our own included.", bridge.read)
        yield CounterMetricFamily("hearth_redis_strange", "Entries that were none of ours.", bridge.strange)
        staleness_s = bridge.staleness_s()
        if staleness_s is not None:
            words = "How old news are when they are read: our own, from writing to reading back."
            yield GaugeMetricFamily("hearth_redis_staleness_seconds", words, staleness_s)

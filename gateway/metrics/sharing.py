"""Shows to Prometheus how news are exchanged: in a worker what it says and hears, in the warmth process what passes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.warmth.hub import Hub
from gateway.warmth.redis_bridge import RedisBridge
from gateway.warmth.sharing import Sharing

Family = CounterMetricFamily | GaugeMetricFamily


class SharingExposition(Collector):
    """A worker's figures."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing

    def collect(self) -> Iterator[Family]:
        """All families of this moment."""
        sharing = self._sharing
        hearing = sharing.hearing
        yield CounterMetricFamily("hearth_news_sent", "Words told to other gateways.", sharing.sent)
        yield CounterMetricFamily("hearth_news_heard", "Words heard from other gateways.", hearing.heard)
        yield CounterMetricFamily("hearth_news_recalled", "Words of the past that warmed us.", sharing.recalled)
        lost = CounterMetricFamily("hearth_news_lost", "News that did not come through, by why.", labels=("why",))
        for why, count in (
            ("unsent", sharing.unsent),
            ("unheard", sharing.unheard),
            ("unreadable", sharing.unreadable),
            ("strange", hearing.strange),
            ("gap", hearing.gaps),
        ):
            lost.add_metric((why,), count)
        yield lost
        yield GaugeMetricFamily("hearth_news_origins", "Other gateways heard of late.", hearing.origins)
        yield GaugeMetricFamily(
            "hearth_warmth_connected", "1 where the warmth process is there.", float(sharing.is_connected)
        )


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

"""Shows to Prometheus what a worker tells other gateways, and hears from them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.replica_sync.sync import Sharing

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

"""Prometheus metrics of the precise prefix index: followed engines, and how well their caches are predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.kv_index.event_feed import EventFeed
from gateway.kv_index.lookup_client import counter_by_label
from gateway.kv_index.lookup_service import CacheLookupService
from gateway.runtime.metric_families import ENGINE_LABELS, engine_labels
from routing.precise.cache_mirror import EngineCacheMirror

Family = CounterMetricFamily | GaugeMetricFamily

FEED_COUNTERS: tuple[tuple[str, str, Callable[[EventFeed], float]], ...] = (
    ("hearth_kv_event_batches", "Batches of KV events applied.", lambda feed: feed.count.batches),
    ("hearth_kv_events", "KV events applied.", lambda feed: feed.count.events),
    ("hearth_kv_event_gaps", "Batches that did not follow the one before.", lambda feed: feed.count.gaps),
    ("hearth_kv_event_gaps_unrepaired", "Gaps that no replay could repair.", lambda feed: feed.count.unhealed),
    ("hearth_kv_event_restarts", "Times that an engine restarted its numbering.", lambda feed: feed.count.restarts),
    (
        "hearth_kv_events_invalid",
        "Undecodable messages, and events of unknown kinds.",
        lambda feed: feed.count.malformed + feed.unread,
    ),
)

ENGINE_COUNTERS: tuple[tuple[str, str, Callable[[EngineCacheMirror], float]], ...] = (
    ("hearth_kv_blocks_orphaned", "Blocks received before their parents.", lambda one: one.count.orphaned),
    (
        "hearth_kv_blocks_dropped",
        "Blocks dropped: their parent is unknown, or a bound of the index is reached.",
        lambda one: one.count.dropped,
    ),
)


class KvIndexMetrics(Collector):
    """The metrics of one lookup service."""

    def __init__(self, lookups: CacheLookupService) -> None:
        self._lookups = lookups

    def collect(self) -> Iterator[Family]:
        """All metric families."""
        feeds, engines = self._lookups.subscriptions.feeds, self._lookups.index.engines
        for name, words, feed_count in FEED_COUNTERS:
            counter = CounterMetricFamily(name, words, labels=ENGINE_LABELS)
            for engine, feed in feeds.items():
                counter.add_metric(engine_labels(engine), feed_count(feed))
            yield counter
        for name, words, engine_count in ENGINE_COUNTERS:
            counter = CounterMetricFamily(name, words, labels=ENGINE_LABELS)
            for engine, followed in engines.items():
                counter.add_metric(engine_labels(engine), engine_count(followed))
            yield counter
        yield from self._gauges(feeds, engines)
        yield counter_by_label(
            "hearth_prefix_lookup_skipped", "Prompts that could not be looked up, by cause.", self._lookups.failed
        )

    def _gauges(self, feeds: Mapping[str, EventFeed], engines: Mapping[str, EngineCacheMirror]) -> Iterator[Family]:
        exact = GaugeMetricFamily(
            "hearth_engine_kv_events_active",
            "1 where KV events decide, 0 where the approximate index does.",
            labels=ENGINE_LABELS,
        )
        error = GaugeMetricFamily(
            "hearth_engine_prefix_prediction_error_ratio",
            "Recent share of cached tokens that events predicted wrongly.",
            labels=ENGINE_LABELS,
        )
        blocks = GaugeMetricFamily(
            "hearth_engine_kv_blocks", "Blocks the engine is known to hold.", labels=ENGINE_LABELS
        )
        for engine, feed in feeds.items():
            exact.add_metric(engine_labels(engine), float(feed.reliability.is_reliable))
            error.add_metric(engine_labels(engine), feed.reliability.error)
            blocks.add_metric(engine_labels(engine), len(engines[engine]) if engine in engines else 0)
        yield from (exact, error, blocks)
        yield GaugeMetricFamily(
            "hearth_kv_index_blocks", "Distinct blocks in the precise index.", value=len(self._lookups.index)
        )

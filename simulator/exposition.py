"""A simulated pod's /metrics page: vLLM 0.32's names and labels, for all that a gateway may read there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from simulator.books import HISTOGRAMS
from simulator.options import Options
from simulator.rank import Rank
from simulator.transfer.transfers import Transfers

_LABELS = ("engine", "model_name")

_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
_REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page tells of. `rejected` requests were refused at the door; `adapters` are in use now."""

    options: Options
    ranks: Sequence[Rank]
    rejected: int
    adapters: Sequence[str]
    transfers: Transfers | None = None


def render_metrics(subject: Subject) -> bytes:
    """Render the current metrics page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(subject))
    return generate_latest(registry)


class _Page(Collector):
    """One scrape."""

    def __init__(self, subject: Subject) -> None:
        self._options = subject.options
        self._ranks = subject.ranks
        self._rejected = subject.rejected
        self._adapters_in_use = subject.adapters
        self._transfers = subject.transfers

    def collect(self) -> Iterable[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._labelled_counters()
        yield from self._histograms()
        yield self._cache_config()
        if self._options.adapters:
            yield self._adapters()
        if self._transfers is not None:
            yield from self._transferred(self._transfers)

    def _transferred(self, transfers: Transfers) -> Iterable[Metric]:
        stages = GaugeMetricFamily("vllm:num_requests_kv_fetch_by_stage", "fetching", labels=(*_LABELS, "stage"))
        for rank, each in enumerate(self._ranks):
            stages.add_metric(self._labels(rank, "waiting_to_start"), 0)
            stages.add_metric(self._labels(rank, "in_progress"), each.engine.statistics().fetching)
            stages.add_metric(self._labels(rank, "completed_waiting"), 0)
        yield stages
        if not transfers.wiring.connector.startswith("Nixl"):
            return
        counts = transfers.side_channel.counts
        for name, value in (
            ("nixl_num_kv_expired_reqs", counts.expired),
            ("nixl_num_notifications_after_expiry", counts.after_expiry),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", name, labels=_LABELS)
            counter.add_metric(self._labels(0), value)
            yield counter
        for name, total in (
            ("nixl_xfer_time_seconds", counts.transfer_s),
            ("nixl_bytes_transferred", counts.bytes_moved),
        ):
            family = HistogramMetricFamily(f"vllm:{name}", name, labels=_LABELS)
            family.add_metric(self._labels(0), [("+Inf", counts.transfers)], total)
            yield family

    def _labels(self, rank: int, *more: str) -> tuple[str, ...]:
        return (str(rank), self._options.models[0], *more)

    def _gauges(self) -> Iterable[Metric]:
        books = [rank.engine.statistics() for rank in self._ranks]
        for name, values in (
            ("num_requests_running", [each.running for each in books]),
            ("num_requests_waiting", [each.waiting for each in books]),
            ("kv_cache_usage_perc", [each.kv_usage for each in books]),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", name, labels=_LABELS)
            for rank, value in enumerate(values):
                gauge.add_metric(self._labels(rank), value)
            yield gauge
        waiting = GaugeMetricFamily("vllm:num_requests_waiting_by_reason", "waiting", labels=(*_LABELS, "reason"))
        asleep = GaugeMetricFamily("vllm:engine_sleep_state", "asleep", labels=(*_LABELS, "sleep_state"))
        for rank, each in enumerate(books):
            waiting.add_metric(self._labels(rank, "capacity"), each.waiting - each.fetching)
            waiting.add_metric(self._labels(rank, "deferred"), each.fetching)
            for state in ("awake", "weights_offloaded", "discard_all"):
                asleep.add_metric(self._labels(rank, state), float(state == "awake"))
        yield from (waiting, asleep)

    def _counters(self) -> Iterable[Metric]:
        books = [rank.engine.statistics() for rank in self._ranks]
        for name, values in (
            ("num_preemptions", [each.preemptions for each in books]),
            ("prefix_cache_queries", [each.prefix_query_tokens for each in books]),
            ("prefix_cache_hits", [each.prefix_hit_tokens for each in books]),
            ("external_prefix_cache_queries", [each.external_tokens for each in books]),
            ("external_prefix_cache_hits", [each.external_tokens for each in books]),
            ("prompt_tokens", [each.prompt_tokens for each in books]),
            ("prompt_tokens_cached", [each.prefix_hit_tokens for each in books]),
            ("generation_tokens", [each.generation_tokens for each in books]),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", name, labels=_LABELS)
            for rank, value in enumerate(values):
                counter.add_metric(self._labels(rank), value)
            yield counter

    def _labelled_counters(self) -> Iterable[Metric]:
        sources = CounterMetricFamily("vllm:prompt_tokens_by_source", "by source", labels=(*_LABELS, "source"))
        cached = CounterMetricFamily("vllm:prompt_tokens_cached_by_source", "by source", labels=(*_LABELS, "source"))
        success = CounterMetricFamily("vllm:request_success", "finished", labels=(*_LABELS, "finished_reason"))
        rejected = CounterMetricFamily("vllm:admission_rejections", "refused", labels=(*_LABELS, "reason"))
        for rank, each in enumerate(self._ranks):
            books = each.engine.statistics()
            hits, external = books.prefix_hit_tokens, books.external_tokens
            computed = max(books.prompt_tokens - hits - external, 0)
            for source, value in zip(_SOURCES, (computed, hits, external), strict=True):
                sources.add_metric(self._labels(rank, source), value)
            found = {"device": hits, "p2p": books.fetched_tokens, "host": books.host_hit_tokens}
            for source in _CACHE_SOURCES:
                cached.add_metric(self._labels(rank, source), found.get(source, 0))
            for reason, value in each.books.finished.items():
                success.add_metric(self._labels(rank, reason), value)
            for reason in _REJECTIONS:
                is_counted = rank == 0 and reason == "max_num_queued_reqs"
                rejected.add_metric(self._labels(rank, reason), self._rejected if is_counted else 0)
        yield from (sources, cached, success, rejected)

    def _histograms(self) -> Iterable[Metric]:
        for name, limits in HISTOGRAMS.items():
            family = HistogramMetricFamily(f"vllm:{name}", name, labels=_LABELS)
            for rank, each in enumerate(self._ranks):
                histogram = each.books.histograms[name]
                edges = [*(str(limit) for limit in limits), "+Inf"]
                buckets = list(zip(edges, accumulate(histogram.counts), strict=True))
                family.add_metric(self._labels(rank), buckets, histogram.total)
            yield family

    def _cache_config(self) -> Metric:
        profile = self._options.profile
        capacity = profile.kv_blocks * profile.block_size
        config = {
            "block_size": str(profile.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(profile.caches_prefixes),
            "hash_block_size": str(profile.block_size),
            "kv_cache_max_concurrency": str(capacity / self._options.window_tokens),
            "kv_cache_size_tokens": str(capacity),
            "num_gpu_blocks": str(profile.kv_blocks),
            "prefix_caching_hash_algo": "sha256",
        }
        gauge = GaugeMetricFamily("vllm:cache_config_info", "The cache's settings", labels=("engine", *config))
        for rank in range(len(self._ranks)):
            gauge.add_metric((str(rank), *config.values()), 1.0)
        return gauge

    def _adapters(self) -> Metric:
        labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        gauge = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use", labels=labels)
        gauge.add_metric((str(len(self._options.adapters)), ",".join(self._adapters_in_use), ""), time.time())
        return gauge

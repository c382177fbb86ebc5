"""A simulated pod's /metrics page: vLLM 0.32's names and labels, for all that a gateway may read there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from simulator.books import HISTOGRAMS, Books
from simulator.engine import Engine
from simulator.histogram import Histogram
from simulator.options import Options
from simulator.transfer.side_channel import Counts

_LABELS = ("engine", "model_name")

_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
_REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")


class RankShown(Protocol):
    """One engine of a page."""

    @property
    def engine(self) -> Engine: ...
    @property
    def books(self) -> Books: ...


@dataclass(frozen=True, slots=True)
class TransfersShown:
    """What a pod with a connector counts."""

    connector: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page shows. `rejected` requests were rejected by the pod's own limit; `adapters` are in use now."""

    options: Options
    ranks: Sequence[RankShown]
    rejected: int
    adapters: Sequence[str]
    transfers: TransfersShown | None = None


def render_metrics(subject: Subject) -> bytes:
    """Render the current metrics page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(subject))
    return generate_latest(registry)


def render_samples(subject: Subject) -> bytes:
    """Render the samples of the page alone, without help and types: a third of the time, for long replays."""
    lines = []
    for metric in _Page(subject).collect():
        for sample in metric.samples:
            labels = ",".join([f'{name}="{value}"' for name, value in sample.labels.items()])
            lines.append(f"{sample.name}{{{labels}}} {sample.value}\n")
    return "".join(lines).encode()


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
        if self._options.profile.speculative_tokens:
            yield from self._speculation()
        if self._options.profile.host_kv_tokens:
            yield from self._offloading()
        yield self._cache_config()
        if self._options.adapters:
            yield self._adapters()
        if self._transfers is not None:
            yield from self._transferred(self._transfers)

    def _speculation(self) -> Iterable[Metric]:
        books = [rank.books.steps for rank in self._ranks]
        for name, values in (
            ("drafts", [each.drafts for each in books]),
            ("draft_tokens", [each.draft_tokens for each in books]),
            ("accepted_tokens", [each.accepted_tokens for each in books]),
        ):
            yield self._counter(f"spec_decode_num_{name}", values)

    def _offloading(self) -> Iterable[Metric]:
        yield self._counter("kv_offload_load_time", [rank.engine.host_load_s for rank in self._ranks])

    def _counter(self, name: str, values: Iterable[float]) -> Metric:
        counter = CounterMetricFamily(f"vllm:{name}", name, labels=_LABELS)
        for rank, value in enumerate(values):
            counter.add_metric(self._labels(rank), value)
        return counter

    def _transferred(self, transfers: TransfersShown) -> Iterable[Metric]:
        stages = GaugeMetricFamily("vllm:num_requests_kv_fetch_by_stage", "fetching", labels=(*_LABELS, "stage"))
        counts = transfers.counts
        for rank, each in enumerate(self._ranks):
            queued = counts.queued if rank == 0 else 0
            fetching = each.engine.statistics().fetching
            stages.add_metric(self._labels(rank, "waiting_to_start"), min(queued, fetching))
            stages.add_metric(self._labels(rank, "in_progress"), max(fetching - queued, 0))
            stages.add_metric(self._labels(rank, "completed_waiting"), 0)
        yield stages
        if not transfers.connector.startswith("Nixl"):
            return
        for name, value in (
            ("nixl_num_kv_expired_reqs", counts.expired),
            ("nixl_num_notifications_after_expiry", counts.after_expiry),
            ("nixl_num_failed_transfers", counts.failed),
        ):
            yield self._counter(name, [value])
        for name, total in (
            ("nixl_xfer_time_seconds", counts.transfer_s),
            ("nixl_bytes_transferred", counts.bytes_moved),
            ("nixl_post_time_seconds", counts.post_s),
            ("nixl_num_descriptors", float(counts.descriptors)),
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
            ("external_prefix_cache_queries", [each.store_query_tokens + each.fetched_tokens for each in books]),
            ("external_prefix_cache_hits", [each.external_tokens for each in books]),
            ("prompt_tokens", [each.prompt_tokens for each in books]),
            ("prompt_tokens_cached", [each.prefix_hit_tokens for each in books]),
            ("generation_tokens", [each.generation_tokens for each in books]),
        ):
            yield self._counter(name, values)

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
        for name in HISTOGRAMS:
            yield self._histogram(name, [rank.books.histograms[name] for rank in self._ranks])
        yield self._histogram("inter_token_latency_seconds", [rank.books.steps.gaps for rank in self._ranks])
        yield self._histogram("iteration_tokens_total", [rank.books.steps.tokens for rank in self._ranks])

    def _histogram(self, name: str, histograms: Iterable[Histogram]) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", name, labels=_LABELS)
        for rank, each in enumerate(histograms):
            edges = [*(str(limit) for limit in each.limits), "+Inf"]
            family.add_metric(self._labels(rank), list(zip(edges, accumulate(each.counts), strict=True)), each.total)
        return family

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

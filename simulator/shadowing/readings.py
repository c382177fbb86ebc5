"""What vLLM's metrics say of a stretch of time: growth of counters and histograms between two readings of all pods."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

TTFT = "time_to_first_token_seconds"
QUEUE = "request_queue_time_seconds"
PREFILL = "request_prefill_time_seconds"
PACE = "request_time_per_output_token_seconds"

Buckets = tuple[tuple[float, float], ...]
"""Upper bounds in seconds, the last infinite, each with how many observations are at most so long."""

Samples = Mapping[tuple[str, str], float]
"""Values by name and `le` label, summed over engines; the cache's settings are under their own names."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the metrics of all pods say of the recorded time; zeros, None and no buckets where they say nothing."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    hit_ratio: float | None = None
    ttft_p50_s: float | None = None
    """Within a bucket it is interpolated."""
    prefill_tokens_per_s: float | None = None
    step_s: float | None = None
    kv_capacity_tokens: int | None = None
    block_size: int | None = None
    ttft_s: float | None = None
    """Mean, as those below."""
    queue_s: float | None = None
    prefill_s: float | None = None
    ttft: Buckets = ()
    queue: Buckets = ()
    prefill: Buckets = ()
    pace: Buckets = ()
    """Of seconds per token, a mean of each request."""


def read_samples(pages: Iterable[str]) -> Samples:
    """Return the samples of vLLM's metrics, summed over pages."""
    found: dict[tuple[str, str], float] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            if not family.name.startswith("vllm:"):
                continue
            for sample in family.samples:
                key = sample.name.removeprefix("vllm:"), sample.labels.get("le", "")
                found[key] = found.get(key, 0.0) + sample.value
                if sample.name == "vllm:cache_config_info":
                    for word in ("num_gpu_blocks", "block_size"):
                        with suppress(KeyError, ValueError):
                            found[word, ""] = float(sample.labels[word])
    return found


def growth_of(before: Mapping[str, str], after: Mapping[str, str]) -> Seen:
    """Return what happened between two sets of pages by pod; a pod that is in one of them only does not count."""
    both = [pod for pod in after if pod in before]
    return difference(read_samples(before[pod] for pod in both), read_samples(after[pod] for pod in both))


def difference(before: Samples, after: Samples) -> Seen:
    """Return what happened between two readings."""

    def grew(name: str, le: str = "") -> float:
        return after.get((name, le), 0.0) - before.get((name, le), 0.0)

    def mean(name: str) -> float | None:
        count = grew(f"{name}_count")
        return grew(f"{name}_sum") / count if count > 0 else None

    queries, hits = grew("prefix_cache_queries_total"), grew("prefix_cache_hits_total")
    prefill_s = grew(f"{PREFILL}_sum")
    blocks, size = after.get(("num_gpu_blocks", "")), after.get(("block_size", ""))
    ttft = _growth(TTFT, before, after)
    return Seen(
        requests=grew("request_success_total"),
        prompt_tokens=grew("prompt_tokens_total"),
        output_tokens=grew("generation_tokens_total"),
        hit_ratio=hits / queries if queries > 0 else None,
        ttft_p50_s=median_of(ttft),
        prefill_tokens_per_s=(queries - hits) / prefill_s if prefill_s > 0 and queries > hits else None,
        step_s=mean("inter_token_latency_seconds"),
        kv_capacity_tokens=round(blocks * size) if blocks and size else None,
        block_size=round(size) if size else None,
        ttft_s=mean(TTFT),
        queue_s=mean(QUEUE),
        prefill_s=mean(PREFILL),
        ttft=ttft,
        queue=_growth(QUEUE, before, after),
        prefill=_growth(PREFILL, before, after),
        pace=_growth(PACE, before, after),
    )


def _growth(name: str, before: Samples, after: Samples) -> Buckets:
    """Return a histogram's growth; nothing where it did not grow."""
    bounds = sorted((float(le), le) for found, le in after if found == f"{name}_bucket")
    grown = tuple(
        (bound_s, after[f"{name}_bucket", le] - before.get((f"{name}_bucket", le), 0.0)) for bound_s, le in bounds
    )
    return grown if grown and grown[-1][1] > 0 else ()


def in_buckets(values: Sequence[float], like: Buckets) -> Buckets:
    """Return values counted in the buckets of another histogram."""
    ordered = sorted(values)
    # A value equal to a bound is in its bucket.
    return tuple((bound, float(bisect_left(ordered, math.nextafter(bound, math.inf)))) for bound, _ in like)


def median_of(buckets: Buckets) -> float | None:
    """Return the median, linear within its bucket; the last finite bound where it is beyond; None without values."""
    if not buckets or buckets[-1][1] <= 0:
        return None
    half, low_s, low = buckets[-1][1] / 2, 0.0, 0.0
    for bound_s, count in buckets:
        if count >= half:
            return low_s if math.isinf(bound_s) else low_s + (bound_s - low_s) * (half - low) / max(count - low, 1.0)
        low_s, low = bound_s, count
    return None

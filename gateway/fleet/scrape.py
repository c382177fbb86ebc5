"""What a vLLM pod's /metrics page says that routing and operators want: some lines out of sixty kilobytes.

Found by one search over the bytes, never by parsing the page: hundreds of pods are read on the relay's own loop. Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

COUNTERS = (
    *("num_preemptions_total", "generation_tokens_total"),
    *("request_queue_time_seconds_sum", "request_queue_time_seconds_count"),
    *("request_prefill_time_seconds_sum", "request_prefill_time_seconds_count"),
    *("request_decode_time_seconds_sum", "request_decode_time_seconds_count"),
    *("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"),
    *("nixl_xfer_time_seconds_sum", "nixl_xfer_time_seconds_count"),
    *("nixl_post_time_seconds_sum", "nixl_post_time_seconds_count"),
    *("nixl_bytes_transferred_sum", "nixl_num_failed_transfers_total", "nixl_num_kv_expired_reqs_total"),
    *("estimated_flops_per_gpu_total", "estimated_read_bytes_per_gpu_total", "estimated_write_bytes_per_gpu_total"),
)
"""Samples that are passed on to operators, without the prefix `vllm:`."""

PROMPT_TOKENS_BY_SOURCE = "prompt_tokens_by_source_total"
"""Passed on by its label `source`, as `NAME SOURCE`."""

_SAMPLE = re.compile(
    # The line's end before it is part of the pattern: a literal first byte lets the search skip from line to line.
    rb"\n(vllm:(?:num_requests_(?:running|waiting)|kv_cache_usage_perc|prompt_tokens_total|cache_config_info"
    rb"|external_prefix_cache_(?:queries|hits)_total|" + "|".join((*COUNTERS, PROMPT_TOKENS_BY_SOURCE)).encode() + rb")"
    rb"|process_start_time_seconds)(\{.*\})? +(\S+)"
)

MAX_ENGINES = 256
"""Engines that are read of a page, the first ones: each becomes an engine of the fleet."""

MAX_VALUE = 1e30
"""Above any counter, and far enough below infinity that no sum of samples reaches it."""

MAX_SOURCES = 8
"""Sources of prompt tokens that are kept of an engine: vLLM names three."""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One engine (data-parallel rank) as its page tells it; None where it does not."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """Share of its KV cache that running requests use, 0 to 1."""
    kv_capacity_tokens: int | None = None
    block_tokens: int | None = None
    prompt_tokens: float | None = None
    """Counter of prompt tokens since the engine started; what falls has restarted."""
    store_asked: float = 0.0
    """Counter of tokens asked of a KV store behind the engine, where it has one. The next: those found there."""
    store_found: float = 0.0
    counters: Mapping[str, float] = field(default_factory=dict)
    """`COUNTERS` and `PROMPT_TOKENS_BY_SOURCE`, as far as the page has them."""


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """A whole page. `started_s`: Unix time at which the pod's process began, where it says so."""

    engines: dict[int, EngineReading] = field(default_factory=dict)
    started_s: float | None = None

    def reading_of(self, rank: int | None) -> EngineReading | None:
        """Return the reading of an engine; `rank` is None where its pod is one engine."""
        return next(iter(self.engines.values()), None) if rank is None else self.engines.get(rank)


def read_page(page: bytes) -> MetricsPage:
    """Read a page. What is missing or odd in it is left out.

    Engines that serve under several names have several samples of one metric: they are summed.
    """
    sums: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    capacities: dict[int, tuple[int | None, int | None]] = {}
    started_s = None
    for sample in _SAMPLE.finditer(b"\n" + page):
        name, labels, text = sample.groups(b"")
        value, rank = _number(text), _integer(_label(labels, b"engine") or b"0")
        if value is None or rank is None:
            continue
        if name == b"process_start_time_seconds":
            started_s = value
            continue
        if rank not in sums and len(sums) >= MAX_ENGINES:
            continue
        held = sums[rank]
        if name == b"vllm:cache_config_info":
            capacities[rank] = _capacity(labels)
        elif name == b"vllm:kv_cache_usage_perc":
            held["kv_cache_usage_perc"] = min(1.0, max(0.0, value))
        else:
            held[_key(name, labels, held)] += value
    ranks = sorted(sums)
    return MetricsPage({rank: _reading(sums[rank], *capacities.get(rank, (None, None))) for rank in ranks}, started_s)


def _key(name: bytes, labels: bytes, held: Mapping[str, float]) -> str:
    """Return the name of a sample without its prefix, with its source where it has one."""
    key = name.decode("ascii").removeprefix("vllm:")
    if key != PROMPT_TOKENS_BY_SOURCE:
        return key
    source = (_label(labels, b"source") or b"unknown").decode("ascii", "replace")
    known = sum(each.startswith(PROMPT_TOKENS_BY_SOURCE) for each in held)
    return f"{key} {source}" if f"{key} {source}" in held or known < MAX_SOURCES else f"{key} other"


def _reading(sums: Mapping[str, float], tokens: int | None, block: int | None) -> EngineReading:
    return EngineReading(
        running=sums.get("num_requests_running"),
        waiting=sums.get("num_requests_waiting"),
        kv_usage=sums.get("kv_cache_usage_perc"),
        kv_capacity_tokens=tokens,
        block_tokens=block,
        prompt_tokens=sums.get("prompt_tokens_total"),
        store_asked=sums.get("external_prefix_cache_queries_total", 0.0),
        store_found=sums.get("external_prefix_cache_hits_total", 0.0),
        counters={name: value for name, value in sums.items() if _is_passed_on(name)},
    )


def _is_passed_on(name: str) -> bool:
    return name in _COUNTERS or name.startswith(PROMPT_TOKENS_BY_SOURCE)


_COUNTERS = frozenset(COUNTERS)


def _capacity(labels: bytes) -> tuple[int | None, int | None]:
    """Return the tokens that a KV cache holds, and those of one of its blocks."""
    block = _integer(_label(labels, b"block_size"))
    tokens = _integer(_label(labels, b"kv_cache_size_tokens"))
    blocks = _integer(_label(labels, b"num_gpu_blocks"))
    if tokens is None and blocks and block:
        tokens = blocks * block
    return tokens, block


def _label(labels: bytes, name: bytes) -> bytes | None:
    match = re.search(rb'[{,]%s="([^"\\]*)"' % name, labels)
    return match[1] if match else None


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_VALUE else None  # Also false for NaN.


def _integer(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None

"""What a vLLM pod's /metrics page says that routing wants: a handful of lines out of sixty kilobytes.

Found by one search over the bytes, never by parsing the page: hundreds of pods are read on the relay's own loop. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import isfinite

_SAMPLE = re.compile(
    # The line's end before it is part of the pattern: a literal first byte lets the search skip from line to line.
    rb"\n(vllm:(?:num_requests_(?:running|waiting)|kv_cache_usage_perc|prompt_tokens_total|cache_config_info"
    rb"|external_prefix_cache_(?:queries|hits)_total)"
    rb"|process_start_time_seconds)(\{.*\})? +(\S+)"
)


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


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """A whole page. `started_s`: Unix time at which the pod's process began, where it says so."""

    engines: dict[int, EngineReading] = field(default_factory=dict)
    started_s: float | None = None


def read_page(page: bytes) -> MetricsPage:
    """Read a page. What is missing or odd in it is left out."""
    engines: dict[int, EngineReading] = {}
    started_s = None
    for sample in _SAMPLE.finditer(b"\n" + page):
        name, labels, text = sample.groups(b"")
        value, rank = _number(text), _integer(_label(labels, b"engine") or b"0")
        if value is None or rank is None:
            continue
        if name == b"process_start_time_seconds":
            started_s = value
        else:
            engines[rank] = _taken(engines.get(rank, EngineReading()), name, value, labels)
    return MetricsPage(dict(sorted(engines.items())), started_s)


def _taken(engine: EngineReading, name: bytes, value: float, labels: bytes) -> EngineReading:
    """A reading with one more sample in it. Engines that serve under several names have several samples: summed."""
    match name:
        case b"vllm:num_requests_running":
            return replace(engine, running=(engine.running or 0.0) + value)
        case b"vllm:num_requests_waiting":
            return replace(engine, waiting=(engine.waiting or 0.0) + value)
        case b"vllm:kv_cache_usage_perc":
            return replace(engine, kv_usage=min(1.0, max(0.0, value)))
        case b"vllm:prompt_tokens_total":
            return replace(engine, prompt_tokens=(engine.prompt_tokens or 0.0) + value)
        case b"vllm:external_prefix_cache_queries_total":
            return replace(engine, store_asked=engine.store_asked + value)
        case b"vllm:external_prefix_cache_hits_total":
            return replace(engine, store_found=engine.store_found + value)
        case _:
            return _with_capacity(engine, labels)


def _with_capacity(engine: EngineReading, labels: bytes) -> EngineReading:
    block = _integer(_label(labels, b"block_size"))
    tokens = _integer(_label(labels, b"kv_cache_size_tokens"))
    blocks = _integer(_label(labels, b"num_gpu_blocks"))
    if tokens is None and blocks and block:
        tokens = blocks * block
    return replace(engine, kv_capacity_tokens=tokens, block_tokens=block)


def _label(labels: bytes, name: bytes) -> bytes | None:
    match = re.search(rb'[{,]%s="([^"\\]*)"' % name, labels)
    return match[1] if match else None


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _integer(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None

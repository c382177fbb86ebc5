"""What a vLLM pod's /metrics page says that routing wants: a handful of lines out of sixty kilobytes.

Found by searching bytes, never by parsing the page: hundreds of pods are read on the relay's own loop. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isfinite

NAMES = (
    b"vllm:num_requests_running",
    b"vllm:num_requests_waiting",
    b"vllm:kv_cache_usage_perc",
    b"vllm:prompt_tokens_total",
    b"vllm:cache_config_info",
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


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page. `started_s`: Unix time at which the pod's process began, where it says so."""

    engines: dict[int, EngineReading] = field(default_factory=dict)
    started_s: float | None = None


def read_page(page: bytes) -> Page:
    """Read a page. What is missing or odd in it is left out."""
    engines: dict[int, EngineReading] = {}
    for name in NAMES:
        for rank, value, labels in _samples(page, name):
            engines[rank] = _taken(engines.get(rank, EngineReading()), name, value, labels)
    starts = [value for _, value, _ in _samples(page, b"process_start_time_seconds")]
    return Page(dict(sorted(engines.items())), starts[0] if starts else None)


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
        case _:
            return _with_capacity(engine, labels)


def _with_capacity(engine: EngineReading, labels: bytes) -> EngineReading:
    block = _whole(_label(labels, b"block_size"))
    tokens = _whole(_label(labels, b"kv_cache_size_tokens"))
    blocks = _whole(_label(labels, b"num_gpu_blocks"))
    if tokens is None and blocks and block:
        tokens = blocks * block
    return replace(engine, kv_capacity_tokens=tokens, block_tokens=block)


def _samples(page: bytes, name: bytes) -> Iterator[tuple[int, float, bytes]]:
    """(engine, value, labels) of every sample of a metric; those of one metric stand in consecutive lines."""
    for opening in (b"{", b" "):
        at = 0 if page.startswith(name + opening) else page.find(b"\n" + name + opening) + 1
        while page.startswith(name + opening, at):
            end = page.find(b"\n", at)
            line = page[at : end if end >= 0 else len(page)]
            labels, _, rest = line[len(name) :].rpartition(b"}")
            value = _number(rest.split()[0] if rest.split() else b"")
            rank = _whole(_label(labels, b"engine") or b"0")
            if value is not None and rank is not None:
                yield rank, value, labels
            if end < 0:
                break
            at = end + 1


def _label(labels: bytes, name: bytes) -> bytes | None:
    match = re.search(rb'[{,]%s="([^"\\]*)"' % name, labels)
    return match[1] if match else None


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _whole(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None

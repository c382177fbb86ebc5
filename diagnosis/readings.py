"""Engines' metrics pages as windows: text in, growth of counters and readings of gauges out. Pure.

A page is searched for the samples that diagnosis reads, and for no others. Samples of one engine under several model
names are summed. What is missing on a page is missing in the window.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any

from diagnosis.distribution import Distribution, from_cumulative
from diagnosis.facts import EngineFlags, EngineWindow, GaugeReadings, SpeculationWindow, TransferWindow
from routing.pod_record import EngineLoad

WINDOW_S = 30.0
"""Length of the windows that recipes are made for."""

KEPT_S = 1.5 * WINDOW_S
"""Age at which a reading is dropped: a thousand pods take some 30 kB a reading."""

MAX_READINGS = 64
"""Pages that are kept of one pod."""

MAX_ENGINES = 256
"""Engines of one page that are read."""

MAX_BUCKETS = 64
"""Buckets of one histogram that are read."""

MAX_PAGE_BYTES = 2 << 20
"""Of a page that is read: an engine takes some 60 kB."""

MAX_POSITIONS = 64
"""Positions of drafted tokens that are read."""

MAX_VALUE = 1e18
"""Of a sample; larger ones are left out, so that no sum overflows."""

GAUGES: Mapping[str, str] = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "waiting_for_capacity": "num_requests_waiting_by_reason capacity",
    "waiting_deferred": "num_requests_waiting_by_reason deferred",
    "kv_usage": "kv_cache_usage_perc",
    "fetches_queued": "num_requests_kv_fetch_by_stage waiting_to_start",
    "fetches_running": "num_requests_kv_fetch_by_stage in_progress",
    "fetches_done": "num_requests_kv_fetch_by_stage completed_waiting",
    "expert_balance": "hearth_expert_balance",
}
"""Fields of `EngineWindow`, and the samples that they are read from, with the label that tells them apart."""

COUNTERS: Mapping[str, tuple[str, ...]] = {
    "finished": ("request_success stop", "request_success length", "request_success repetition"),
    "aborted": ("request_success abort",),
    "failed": ("request_success error",),
    "rejected": ("admission_rejections max_num_queued_reqs", "admission_rejections max_num_queued_tokens"),
    "preemptions": ("num_preemptions",),
    "prompt_tokens": ("prompt_tokens",),
    "computed_tokens": ("prompt_tokens_by_source local_compute",),
    "cached_tokens": ("prompt_tokens_by_source local_cache_hit",),
    "fetched_tokens": ("prompt_tokens_by_source external_kv_transfer",),
    "generation_tokens": ("generation_tokens",),
    "cache_queries": ("prefix_cache_queries",),
    "cache_hits": ("prefix_cache_hits",),
    "store_queries": ("external_prefix_cache_queries",),
    "store_hits": ("external_prefix_cache_hits",),
    "store_load_s": ("kv_offload_load_time",),
    "store_load_bytes": ("kv_offload_load_bytes",),
    "server_cpu_s": ("process_cpu_seconds",),
}
"""The same for counters, without `_total`; several samples are summed."""

HISTOGRAMS: Mapping[str, str] = {
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "decode": "request_decode_time_seconds",
    "first_token": "time_to_first_token_seconds",
    "token_gap": "inter_token_latency_seconds",
    "prompt_lengths": "request_prompt_tokens",
    "answer_lengths": "request_generation_tokens",
    "iteration_tokens": "iteration_tokens_total",
}

SPECULATION: Mapping[str, str] = {
    "drafts": "spec_decode_num_drafts",
    "draft_tokens": "spec_decode_num_draft_tokens",
    "accepted_tokens": "spec_decode_num_accepted_tokens",
}
ACCEPTED_BY_POSITION = "spec_decode_num_accepted_tokens_per_pos"

TRANSFER_SUMS: Mapping[str, str] = {
    "seconds": "nixl_xfer_time_seconds",
    "bytes": "nixl_bytes_transferred",
    "post_s": "nixl_post_time_seconds",
    "descriptors": "nixl_num_descriptors",
}
FAILED_HANDSHAKES = "failed_handshakes"
"""No metric of vLLM has it; the plugin does."""

TRANSFER_COUNTERS: Mapping[str, str] = {
    "failed": "nixl_num_failed_transfers",
    "failed_handshakes": FAILED_HANDSHAKES,
    "expired": "nixl_num_kv_expired_reqs",
    "after_expiry": "nixl_num_notifications_after_expiry",
}

PLUGIN_COUNTERS: Mapping[str, str] = {
    "preemptions": "num_preemptions",
    "prefix_queries": "prefix_cache_queries",
    "prefix_hits": "prefix_cache_hits",
    "drafts": "spec_decode_num_drafts",
    "draft_tokens": "spec_decode_num_draft_tokens",
    "accepted_tokens": "spec_decode_num_accepted_tokens",
    "failed_transfers": "nixl_num_failed_transfers",
    "failed_handshakes": FAILED_HANDSHAKES,
    "expired_requests": "nixl_num_kv_expired_reqs",
    "late_notifications": "nixl_num_notifications_after_expiry",
}
"""Counters of the plugin (`routing/pod_record.py`), and the samples that they stand for."""

PLUGIN_SUMS: Mapping[str, str] = {
    "transfer_s": "nixl_xfer_time_seconds",
    "transfer_bytes": "nixl_bytes_transferred",
    "transfer_post_s": "nixl_post_time_seconds",
    "transfer_descriptors": "nixl_num_descriptors",
}
"""The same for sums over `transfers`."""

ALWAYS_COUNTED = ("preemptions", "prefix_queries", "prefix_hits")
"""Of every engine; the plugin leaves out those that are 0. Others may be missing because the engine has none of it."""

CACHE_CONFIG = "cache_config_info"

_QUALIFIERS = ("reason", "stage", "source", "finished_reason", "position")
"""Labels that tell samples of one metric apart."""

_SCALARS = frozenset(
    (
        *(name.partition(" ")[0] for name in GAUGES.values()),
        *(name.partition(" ")[0] for names in COUNTERS.values() for name in names),
        *SPECULATION.values(),
        *TRANSFER_COUNTERS.values(),
        ACCEPTED_BY_POSITION,
    )
)
_SAMPLES = frozenset(
    (
        *GAUGES.values(),
        *(name for names in COUNTERS.values() for name in names),
        *SPECULATION.values(),
        *TRANSFER_COUNTERS.values(),
        *(f"{ACCEPTED_BY_POSITION} {position}" for position in range(MAX_POSITIONS)),
    )
)
"""Scalars with the label that tells them apart: those of other labels are not kept."""
_BUCKETED = frozenset((*HISTOGRAMS.values(), *TRANSFER_SUMS.values()))

_SAMPLE = re.compile(
    rb"\n(?:vllm:)?((?:"
    + "|".join(sorted((*_SCALARS, *_BUCKETED, CACHE_CONFIG), key=len, reverse=True)).encode()
    + rb")(?:_total|_bucket|_sum|_count)?)(\{[^\n]*\})? ([^ \n]+)"
)
# A name begins behind what is no part of one: a long text without `=` is searched once, not once from each place.
_LABEL = re.compile(rb'(?<![a-z_])([a-z_]+)="([^"\\\n]*)"')
_SHORT_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")

_CONFIG_LABELS = (
    *("num_gpu_blocks", "block_size", "kv_cache_size_tokens", "hash_block_size", "prefix_caching_hash_algo"),
    *("enable_prefix_caching", "cache_dtype"),
)


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """One engine on one page: sums since it started, and gauges."""

    scalars: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Distribution] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    """Labels of `cache_config_info` that diagnosis reads."""


def read_counts(page: bytes) -> dict[int, EngineCounts]:
    """Read a page into the counts of its engines by rank. Samples that cannot be read are left out.

    A page of more than `MAX_PAGE_BYTES` has none.
    """
    if len(page) > MAX_PAGE_BYTES:
        return {}
    scalars: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    parts: defaultdict[int, defaultdict[str, _Parts]] = defaultdict(lambda: defaultdict(_Parts))
    configs: dict[int, dict[str, str]] = {}
    for sample in _SAMPLE.finditer(b"\n" + page):
        name, text, number = sample.groups(b"")
        labels = dict(_LABEL.findall(text))
        value, rank = _number(number), _integer(labels.get(b"engine", b"0"))
        if value is None or rank is None or rank >= MAX_ENGINES:
            continue
        key, _, kind = _split(name.decode())
        if key == CACHE_CONFIG:
            configs[rank] = {
                name: labels.get(name.encode(), b"")[:64].decode("ascii", "replace") for name in _CONFIG_LABELS
            }
        elif key in _BUCKETED and kind:
            parts[rank][key].add(kind, labels.get(b"le", b""), value)
        elif key in _SCALARS and (sample_name := _qualified(key, labels)) in _SAMPLES:
            scalars[rank][sample_name] += value
    return {
        rank: EngineCounts(
            scalars=dict(scalars[rank]),
            histograms={name: held.distribution() for name, held in parts[rank].items()},
            config=configs.get(rank, {}),
        )
        for rank in sorted({*scalars, *parts, *configs})
    }


def _split(name: str) -> tuple[str, str, str]:
    for kind in ("_bucket", "_sum", "_count"):
        if name.endswith(kind) and name.removesuffix(kind) in _BUCKETED:
            return name.removesuffix(kind), "_", kind
    return (name if name in _SCALARS or name in _BUCKETED else name.removesuffix("_total")), "", ""


def _qualified(key: str, labels: Mapping[bytes, bytes]) -> str:
    for label in _QUALIFIERS:
        if (held := labels.get(label.encode())) is not None:
            return f"{key} {held.decode('ascii', 'replace')}"
    return key


class _Parts:
    """The samples of one histogram."""

    __slots__ = ("_buckets", "_count", "_total")

    def __init__(self) -> None:
        self._buckets: defaultdict[float, float] = defaultdict(float)
        self._total = 0.0
        self._count = 0.0

    def add(self, kind: str, limit: bytes, value: float) -> None:
        if kind == "_sum":
            self._total += value
        elif kind == "_count":
            self._count += value
        elif (edge := _number(limit)) is not None and (edge in self._buckets or len(self._buckets) < MAX_BUCKETS):
            self._buckets[edge] += value

    def distribution(self) -> Distribution:
        return from_cumulative(self._buckets.items(), self._total, self._count)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= MAX_VALUE else None


def _integer(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) < 10 else None


def load_counts(load: EngineLoad) -> EngineCounts:
    """Return what an engine's plugin reports as counts of a page: for pods whose page is not read, or lacks it."""
    held = load.counters
    scalars = {PLUGIN_COUNTERS[name]: value for name, value in held.items() if name in PLUGIN_COUNTERS}
    if held:
        scalars = {PLUGIN_COUNTERS[name]: 0.0 for name in ALWAYS_COUNTED} | scalars
    scalars |= {
        "num_requests_running": float(load.running),
        "num_requests_waiting": float(load.waiting),
        "kv_cache_usage_perc": load.kv_usage,
    }
    scalars |= {f"num_requests_kv_fetch_by_stage {stage}": float(count) for stage, count in load.fetching.items()}
    count = held.get("transfers", 0.0)
    sums = {sample: from_cumulative((), held[name], count) for name, sample in PLUGIN_SUMS.items() if name in held}
    return EngineCounts(scalars, sums)


class PodHistory:
    """The last readings of one pod, at most `MAX_READINGS`; made into windows on demand."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, Mapping[int, EngineCounts]]] = deque(maxlen=MAX_READINGS)

    def add(self, at_s: float, counts: Mapping[int, EngineCounts]) -> None:
        """Add a reading. One from before the last one drops those behind it."""
        if self._readings and at_s < self._readings[-1][0]:  # The clock was set back.
            self._readings.clear()
        while self._readings and self._readings[0][0] < at_s - KEPT_S:
            self._readings.popleft()
        self._readings.append((at_s, counts))

    def windows(self, length_s: float = WINDOW_S) -> tuple[EngineWindow, ...]:
        """Return the window of each engine on the last page: the readings of its last `length_s` seconds."""
        if not self._readings:
            return ()
        last_s, last = self._readings[-1]
        recent = [reading for reading in self._readings if reading[0] >= last_s - length_s]
        return tuple(
            engine_window(rank, [(at_s, counts[rank]) for at_s, counts in recent if rank in counts]) for rank in last
        )

    def flags(self) -> EngineFlags | None:
        """Return the labels of the last page's `cache_config_info`; None without one."""
        if not self._readings:
            return None
        at_s, counts = self._readings[-1]
        config = next((each.config for each in counts.values() if each.config), None)
        return None if config is None else flags_of_config(config, at_s)


def engine_window(rank: int, readings: Sequence[tuple[float, EngineCounts]]) -> EngineWindow:
    """Make a window of one engine's readings, at least one, in order of time.

    Counters grow from the first reading after the last restart to the last one; a single reading has no growth.
    """
    start, is_restarted = _last_start(readings)
    kept = readings[start:]
    (start_s, first), (end_s, final) = kept[0], kept[-1]
    window = EngineWindow(rank=rank, start_s=start_s, end_s=end_s, is_restarted=is_restarted)
    gauges: dict[str, Any] = {name: _gauge(sample, kept) for name, sample in GAUGES.items()}
    if len(kept) == 1:
        return replace(window, **gauges)
    grown = _Growth(first, final)
    speculation, transfers = grown.speculation(), grown.transfers()
    counted: dict[str, Any] = {name: grown.sum_of(samples) for name, samples in COUNTERS.items()}
    timed: dict[str, Any] = {name: grown.distribution(sample) for name, sample in HISTOGRAMS.items()}
    queried = [final.scalars[name] for name in COUNTERS["store_queries"] if name in final.scalars]
    return replace(
        window,
        **gauges,
        **counted,
        **timed,
        generated_since_start=final.scalars.get("generation_tokens"),
        store_queries_since_start=sum(queried) if queried else None,
        speculation=speculation,
        transfers=transfers,
    )


MAX_APART_S = 10.0
"""Between the ends of two windows that are joined."""

GROWING = ("prompt_tokens", "generation_tokens", "prefix_cache_queries")
"""Counters that fall only where an engine was started again."""


def _last_start(readings: Sequence[tuple[float, EngineCounts]]) -> tuple[int, bool]:
    start = 0
    for index in range(1, len(readings)):
        before, after = readings[index - 1][1].scalars, readings[index][1].scalars
        if any(after.get(name, inf) < before.get(name, 0.0) for name in GROWING):
            start = index
    return start, start > 0


def _gauge(sample: str, readings: Iterable[tuple[float, EngineCounts]]) -> GaugeReadings | None:
    values = [counts.scalars[sample] for _, counts in readings if sample in counts.scalars]
    if not values:
        return None
    return GaugeReadings(sum(values) / len(values), min(values), max(values), values[-1])


@dataclass(frozen=True, slots=True)
class _Growth:
    """From one reading to a later one."""

    first: EngineCounts
    final: EngineCounts

    def of(self, sample: str) -> float | None:
        """Return the growth of a counter, 0 or more; None where the later page lacks it."""
        end = self.final.scalars.get(sample)
        return None if end is None else max(end - self.first.scalars.get(sample, 0.0), 0.0)

    def sum_of(self, samples: Iterable[str]) -> float | None:
        known = [value for sample in samples if (value := self.of(sample)) is not None]
        return sum(known) if known else None

    def distribution(self, sample: str) -> Distribution | None:
        end = self.final.histograms.get(sample)
        if end is None:
            return None
        begin = self.first.histograms.get(sample)
        return end if begin is None else end.minus(begin)

    def speculation(self) -> SpeculationWindow | None:
        values = {name: self.of(sample) for name, sample in SPECULATION.items()}
        if all(value is None for value in values.values()):
            return None
        places = [name for name in self.final.scalars if name.startswith(f"{ACCEPTED_BY_POSITION} ")]
        by_place = {int(name.rpartition(" ")[2]): self.of(name) or 0.0 for name in places}
        return SpeculationWindow(**values, accepted_by_position=tuple(by_place[place] for place in sorted(by_place)))

    def transfers(self) -> TransferWindow | None:
        held = {name: self.distribution(sample) for name, sample in TRANSFER_SUMS.items()}
        counters = {name: self.of(sample) for name, sample in TRANSFER_COUNTERS.items()}
        known = next((each for each in held.values() if each is not None), None)
        if known is None and all(value is None for value in counters.values()):
            return None
        sums = {name: None if each is None else each.total for name, each in held.items()}
        return TransferWindow(count=None if known is None else known.count, **sums, **counters)


def joined_windows(preferred: Sequence[EngineWindow], other: Sequence[EngineWindow]) -> tuple[EngineWindow, ...]:
    """Return the windows of `preferred` with what they lack taken from `other`, by rank, of about the same time.

    All of `other` where there are none, or where these ended long before.
    """
    if not preferred or (other and other[0].end_s - preferred[0].end_s > WINDOW_S):
        return tuple(other)
    by_rank = {window.rank: window for window in other}
    return tuple(
        _completed(window, held)
        if (held := by_rank.get(window.rank)) is not None and window.end_s - held.end_s <= MAX_APART_S
        else window
        for window in preferred
    )


def _completed(window: EngineWindow, other: EngineWindow) -> EngineWindow:
    missing: dict[str, Any] = {
        one.name: getattr(other, one.name) for one in fields(EngineWindow) if getattr(window, one.name) is None
    }
    if window.transfers is not None and other.transfers is not None:
        held = other.transfers
        lacking: dict[str, Any] = {
            one.name: getattr(held, one.name)
            for one in fields(TransferWindow)
            if getattr(window.transfers, one.name) is None
        }
        missing["transfers"] = replace(window.transfers, **lacking)
    return replace(window, **missing)


def flags_of_config(config: Mapping[str, str], read_at_s: float) -> EngineFlags:
    """Return the flags that the labels of `cache_config_info` tell. Labels that cannot be read are left out."""
    blocks, size = _count_of(config, "num_gpu_blocks"), _count_of(config, "block_size")
    capacity = _count_of(config, "kv_cache_size_tokens")
    return EngineFlags(
        read_at_s=read_at_s,
        block_size=size,
        hash_block_size=_count_of(config, "hash_block_size"),
        hash_algorithm=_text_of(config, "prefix_caching_hash_algo"),
        prefix_caching={"True": True, "False": False}.get(config.get("enable_prefix_caching", "")),
        kv_dtype=_text_of(config, "cache_dtype"),
        kv_blocks=blocks,
        kv_capacity_tokens=capacity if capacity is not None or not blocks or not size else blocks * size,
    )


def _count_of(config: Mapping[str, str], name: str) -> int | None:
    return _integer(config.get(name, "").encode())


def _text_of(config: Mapping[str, str], name: str) -> str | None:
    held = config.get(name, "")
    return held if held != "None" and _SHORT_TEXT.fullmatch(held) else None


def joined_flags(preferred: EngineFlags | None, other: EngineFlags | None) -> EngineFlags | None:
    """Return `preferred` with what it lacks taken from `other`; None where both are missing."""
    if preferred is None or other is None:
        return preferred or other
    missing = {
        one.name: getattr(other, one.name) for one in fields(EngineFlags) if getattr(preferred, one.name) is None
    }
    return replace(preferred, **missing)

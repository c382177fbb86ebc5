"""A stat logger plugin for vLLM: reports the load, the counters and the settings of an engine to the agent on its node.

Runs inside vLLM's API server and must not slow it down: it sends one non-blocking UDP datagram to loopback, at most one
per 20 ms unless the engine becomes idle or busy, and `record` never raises. Imports only what vLLM itself needs. Does
nothing unless the variable `HEARTH_AGENT_LOAD_LISTEN` holds the agent's UDP address (HOST:PORT).

Counters are sums since the start: a lost datagram loses nothing. Settings are those in force, with all defaults that
vLLM has filled in; only the attributes of `SETTINGS` are read, none of which holds a key, a path or a URL.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from vllm.v1.metrics.loggers import StatLoggerBase

VARIABLE = "HEARTH_AGENT_LOAD_LISTEN"

MIN_INTERVAL_S = 0.02
"""Minimum between two datagrams: some steps take a millisecond."""

MAX_TEXT_CHARS = 64
"""Of a setting's value."""

SETTINGS_INTERVAL_S = 10.0
"""Between two datagrams of settings, which an agent that starts later needs as well."""

SETTINGS = (
    *(
        (f"{name.replace('_', '-')}", ("scheduler_config", name))
        for name in (
            *("max_num_batched_tokens", "max_num_scheduled_tokens", "max_num_seqs", "max_num_active_seqs"),
            *("max_num_queued_reqs", "max_num_queued_tokens", "long_prefill_token_threshold", "watermark"),
            *("enable_chunked_prefill", "async_scheduling", "prefill_schedule_interval", "scheduler_reserve_full_isl"),
        )
    ),
    ("scheduling-policy", ("scheduler_config", "policy")),
    *(
        (f"{name.replace('_', '-')}", ("cache_config", name))
        for name in (
            *("block_size", "prefix_match_unit", "gpu_memory_utilization", "enable_prefix_caching"),
            *("prefix_caching_hash_algo", "kv_offloading_size", "num_gpu_blocks_override"),
        )
    ),
    ("kv-cache-dtype", ("cache_config", "cache_dtype")),
    *(
        (f"{name.replace('_', '-')}", ("parallel_config", name))
        for name in (
            *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "data_parallel_external_lb"),
            *("decode_context_parallel_size", "prefill_context_parallel_size", "enable_expert_parallel"),
            *("enable_eplb", "all2all_backend", "expert_placement_strategy", "data_parallel_hybrid_lb", "enable_dbo"),
        )
    ),
    ("eplb-config.num_redundant_experts", ("parallel_config", "eplb_config", "num_redundant_experts")),
    ("attention-backend", ("attention_config", "backend")),
    *((name.replace("_", "-"), ("model_config", name)) for name in ("max_model_len", "dtype", "quantization")),
    ("speculative-config.method", ("speculative_config", "method")),
    ("speculative-config.num_speculative_tokens", ("speculative_config", "num_speculative_tokens")),
    ("kv-transfer-config.kv_connector", ("kv_transfer_config", "kv_connector")),
    ("kv-transfer-config.kv_role", ("kv_transfer_config", "kv_role")),
    ("kv-transfer-config.kv_load_failure_policy", ("kv_transfer_config", "kv_load_failure_policy")),
    ("kv-events-config.enable_kv_cache_events", ("kv_events_config", "enable_kv_cache_events")),
)
"""Options of `vllm serve` that are reported, and where vLLM's configuration holds them."""

TRANSFER_LISTS = {
    "transfer_duration": ("transfers", "transfer_s"),
    "post_duration": (None, "transfer_post_s"),
    "bytes_transferred": (None, "transfer_bytes"),
    "num_descriptors": (None, "transfer_descriptors"),
    "num_failed_transfers": (None, "failed_transfers"),
    "num_failed_handshakes": (None, "failed_handshakes"),
    "num_failed_notifications": (None, "failed_notifications"),
    "num_kv_expired_reqs": (None, "expired_requests"),
    "num_notifications_after_expiry": (None, "late_notifications"),
}
"""Lists of a connector's statistics: the counters that their length and their sum are added to."""


class AgentStatLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM is installed in another environment
    """One per engine, created by vLLM."""

    def __init__(self, vllm_config: object, engine_index: int = 0) -> None:
        self._config = vllm_config
        self._rank = engine_index
        self._port = served_port(sys.argv[1:])
        self._socket = _open(os.environ.get(VARIABLE, ""))
        self._sent_s = 0.0
        self._sent: tuple[int, int] | None = None
        self._settings_due_s = 0.0
        self._counters: dict[str, float] = {}

    def record(
        self,
        scheduler_stats: object,
        iteration_stats: object,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Report the stats of one step. They are not a stable interface, so each field may be missing."""
        if self._socket is None:
            return
        with suppress(Exception):  # the engine must not be affected
            self._count(scheduler_stats, iteration_stats)
        if scheduler_stats is None:
            return
        with suppress(Exception):
            self._send(scheduler_stats)

    def log_engine_initialized(self) -> None:
        """Report the settings."""
        with suppress(Exception):
            self._send_settings(time.monotonic())

    def _send(self, stats: object) -> None:
        running, waiting = getattr(stats, "num_running_reqs", 0), getattr(stats, "num_waiting_reqs", 0)
        now_s = time.monotonic()
        is_turn = self._sent is None or (not running, not waiting) != (not self._sent[0], not self._sent[1])
        if self._socket is None or not (is_turn or now_s - self._sent_s >= MIN_INTERVAL_S):
            return
        self._sent_s, self._sent = now_s, (running, waiting)
        usage = min(1.0, max(0.0, float(getattr(stats, "kv_cache_usage", 0.0))))
        report: dict[str, object] = {
            "port": self._port,
            "rank": self._rank,
            "running": running,
            "waiting": waiting,
            "kv_usage": usage,
        }
        if self._counters:
            report["counters"] = self._counters
        if fetching := getattr(stats, "num_kv_fetch_reqs_by_stage", None):
            report["fetching"] = fetching
        self._socket.send(json.dumps(report).encode())
        if now_s >= self._settings_due_s:
            self._send_settings(now_s)

    def _send_settings(self, now_s: float) -> None:
        self._settings_due_s = now_s + SETTINGS_INTERVAL_S
        if self._socket is not None and (settings := settings_of(self._config)):
            self._socket.send(json.dumps({"port": self._port, "rank": self._rank, "settings": settings}).encode())

    def _count(self, scheduler: object, iteration: object) -> None:
        self._add("preemptions", getattr(iteration, "num_preempted_reqs", 0))
        if (cache := getattr(scheduler, "prefix_cache_stats", None)) is not None:
            self._add("prefix_queries", getattr(cache, "queries", 0))
            self._add("prefix_hits", getattr(cache, "hits", 0))
        if (drafts := getattr(scheduler, "spec_decoding_stats", None)) is not None:
            self._add("drafts", getattr(drafts, "num_drafts", 0))
            self._add("draft_tokens", getattr(drafts, "num_draft_tokens", 0))
            self._add("accepted_tokens", getattr(drafts, "num_accepted_tokens", 0))
        if moved := getattr(scheduler, "kv_connector_stats", None):
            self._count_transfers(moved)

    def _count_transfers(self, moved: Mapping[str, object]) -> None:
        """Add a connector's statistics of one step; a connector of several has a mapping of each."""
        for name, held in moved.items():
            if isinstance(held, Mapping):
                self._count_transfers(held)
            elif name in TRANSFER_LISTS and isinstance(held, Sequence):
                of_length, of_sum = TRANSFER_LISTS[name]
                if of_length is not None:
                    self._add(of_length, len(held))
                self._add(of_sum, sum(held))

    def _add(self, name: str, value: float) -> None:
        # Numbers of other libraries, and what is no number, could not be sent as JSON.
        if value and math.isfinite(value):
            self._counters[name] = round(self._counters.get(name, 0.0) + float(value), 6)


def settings_of(config: object) -> dict[str, str]:
    """Return the settings in force, by option of `vllm serve`; what this version of vLLM does not have is left out."""
    found = {}
    for option, path in SETTINGS:
        value: object = config
        for name in path:
            value = getattr(value, name, None)
        if value is None:
            continue
        if isinstance(value, bool):
            found[option] = str(value).lower()
        elif isinstance(value, int | float):
            found[option] = str(value)
        else:
            # An enumeration's name, and the last part of `torch.bfloat16`.
            found[option] = str(getattr(value, "name", value)).rpartition(".")[2]
    return {option: text for option, text in found.items() if len(text) <= MAX_TEXT_CHARS}


def served_port(words: Sequence[str]) -> int:
    """Return the port of `vllm serve ... --port N`; 8000 without that option."""
    for at, word in enumerate(words):
        value = word.removeprefix("--port=") if word.startswith("--port=") else ""
        if word == "--port" and at + 1 < len(words):
            value = words[at + 1]
        if value.isdecimal():
            return int(value)
    return 8000


def _open(where: str) -> socket.socket | None:
    """Return a connected non-blocking UDP socket, or None if no agent is configured."""
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal():
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    opened.setblocking(False)
    opened.connect((host.strip("[]"), int(port)))
    return opened

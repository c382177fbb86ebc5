"""Configuration keys of earlier versions: the fault for each names the new key, and the unit where that changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_MS_TO_S = ", a number of seconds: divide by 1000"
_US_TO_S = ", a number of seconds: divide by 1000000"

RENAMED_KEYS: Mapping[str, str | None] = {
    "metrics": "metrics_listen",
    "admin": "admin_listen",
    "discovery.dns.longest_s": "discovery.dns.max_interval_s",
    "discovery.redis": "discovery.agent_registry",
    "discovery.redis.keep_s": "discovery.agent_registry.stale_ttl_s",
    "model_list.ladder": "model_list.cascade.models",
    "model_list.calibration": "model_list.cascade.calibration",
    "model_list.uncalibrated": "model_list.cascade.uncalibrated",
    "model_list.hold_back": "model_list.cascade.holdback",
    "model_list.hold_back.max_added_ttft_ms": "model_list.cascade.holdback.max_added_ttft_s",
    "model_list.hold_back.whole_streams": "model_list.cascade.holdback.complete_streams",
    "model_list.hold_back.at_time": "model_list.cascade.holdback.on_timeout",
    "model_list.hold_back.hedge": None,
    "model_list.judge_whole": "model_list.cascade.check_unary",
    "model_list.shadow_fraction": "model_list.cascade.shadow.share",
    "model_list.shadow": "model_list.cascade.shadow",
    "model_list.shadow.tokens_per_hour": "model_list.cascade.shadow.max_tokens_per_hour",
    "model_list.shadow.harmless": "model_list.cascade.shadow.max_mismatch_share",
    "routing.scorers.prefill": "routing.scorers.prefill_time",
    "routing.scorers.interference.weight": "routing.scorers.interference.decode_weight",
    "routing.scorers.interference.sharing": "routing.scorers.interference.batch_weight",
    "routing.scorers.interference.crowding": "routing.scorers.interference.queue_weight",
    "routing.scorers.interference.displacing": "routing.scorers.interference.eviction_weight",
    "routing.scorers.interference.most_s": "routing.scorers.interference.max_eviction_s",
    "routing.scorers.copies": "routing.scorers.hot_prefix_replication",
    "routing.scorers.copies.worth": "routing.scorers.hot_prefix_replication.weight",
    "routing.scorers.kv_room": "routing.scorers.kv_headroom",
    "routing.scorers.session": "routing.scorers.session_affinity",
    "routing.scorers.session.stay_s": "routing.scorers.session_affinity.tie_break_s",
    "routing.scorers.session.stored_s": "routing.scorers.session_affinity.stored_response_s",
    "routing.scorers.lora": "routing.scorers.lora_affinity",
    "routing.scorers.slow_start.each_s": "routing.scorers.slow_start.per_request_s",
    "routing.scorers.suited": "routing.scorers.prompt_length",
    "routing.scorers.suited.short_s": "routing.scorers.prompt_length.max_short_s",
    "routing.scorers.suited.stalling": "routing.scorers.prompt_length.overrun_weight",
    "routing.scorers.suited.waiting_s": "routing.scorers.prompt_length.short_penalty_s",
    "routing.scorers.duty": "routing.scorers.decode_role",
    "routing.scorers.duty.decode_s": "routing.scorers.decode_role.penalty_s",
    "routing.scorers.stall": "routing.scorers.prefill_stall",
    "routing.scorers.stall.felt_s": "routing.scorers.prefill_stall.ttft_equivalent_s",
    "routing.scorers.stall.coarse": "routing.scorers.prefill_stall.min_prefill_ratio",
    "routing.scorers.turn": "routing.scorers.round_robin",
    "routing.most_blocks": "routing.max_blocks_per_engine",
    "kv_events.wait_ms": "kv_events.max_wait_s",
    "kv_events.most_blocks": "kv_events.max_blocks_per_engine",
    "kv_events.load_us_per_token": "kv_events.load_s_per_token",
    "roles.memory_s": None,
    "roles.peak_s": None,
    "roles.ahead_s": None,
    "roles.min_stay_s": "roles.min_role_s",
    "roles.gain": "roles.min_improvement",
    "roles.busy": None,
    "roles.prefill_busy": None,
    "roles.moved_per_minute": "roles.max_changes_per_minute_ratio",
    "roles.least_prefill": "roles.min_prefill_engines",
    "roles.least_decode": "roles.min_decode_engines",
    "roles.switch": None,
    "canaries.share": "canaries.traffic_share",
    "canaries.ttft_gate": "canaries.max_ttft_ratio",
    "canaries.tpot_gate": "canaries.max_tpot_ratio",
    "canaries.error": "canaries.false_revert_rate",
    "canaries.false_rollback_rate": "canaries.false_revert_rate",
    "canaries.least": "canaries.min_comparisons",
    "extproc.health": "extproc.health_listen",
    "extproc.shares_port": "extproc.reuse_port",
    "extproc.endpoints": "extproc.max_endpoints",
    "extproc.queue_s": "extproc.max_queue_s",
    "extproc.sample": "extproc.sample_share",
    "limits.max_bodies_bytes": "limits.max_total_body_bytes",
    "limits.max_pipelined": "limits.max_pipelined_requests",
    "limits.kept_answer_bytes": "limits.max_recorded_response_bytes",
    "limits.kept_body_bytes": "limits.max_replay_body_bytes",
    "limits.kept_bodies_bytes": "limits.max_total_replay_body_bytes",
    "retries.attempts": "retries.max_attempts",
    "retries.cuts": "retries.max_resumes",
    "retries.share": "retries.budget_ratio",
    "retries.saved": "retries.budget_burst",
    "retries.hedge": None,
    "retries.hedge_after": None,
    "retries.hedge_least_s": None,
    "stalls": "stall_detection",
    "stalls.times": "stall_detection.factor",
    "stalls.least_s": "stall_detection.engine_min_s",
    "stalls.least_alone_s": "stall_detection.stream_min_s",
    "stalls.held_s": "stall_detection.buffered_output_grace_s",
    "stalls.first_s": "stall_detection.initial_s",
    "stalls.half_s": "stall_detection.half_life_s",
    "timeouts.header_s": "timeouts.request_header_s",
    "timeouts.body_s": "timeouts.request_body_s",
    "timeouts.idle_s": "timeouts.downstream_idle_s",
    "timeouts.connect_s": "timeouts.upstream_connect_s",
    "timeouts.no_pod_s": "timeouts.scale_from_zero_s",
    "timeouts.stall_s": "timeouts.upstream_read_s",
    "timeouts.client_stall_s": "timeouts.downstream_write_s",
    "timeouts.pod_idle_s": "timeouts.upstream_idle_s",
    "timeouts.first_look_s": "timeouts.startup_discovery_s",
}
"""Path of an old key, without indices of lists, to that of the new one; None: removed."""

CHANGED_UNITS: Mapping[str, str] = {
    "model_list.hold_back.max_added_ttft_ms": _MS_TO_S,
    "kv_events.wait_ms": _MS_TO_S,
    "kv_events.load_us_per_token": _US_TO_S,
}
"""Path of an old key to what its value becomes; a section's unit is that of its keys."""

_INDEX = re.compile(r"\[\d+\]")


def _fault_texts() -> Iterator[tuple[str, str]]:
    """Yield path and fault of each old key, as it was and within its section's new name."""
    for old, new in RENAMED_KEYS.items():
        parent, _, key = old.rpartition(".")
        for section in dict.fromkeys((parent, RENAMED_KEYS.get(parent) or parent)):
            path = f"{section}.{key}" if section else key
            if new is None:
                yield path, "removed: delete this key"
            elif path != new:
                yield path, f"renamed to `{new.removeprefix(f'{section}.')}`{CHANGED_UNITS.get(old, '')}"


_FAULTS: Mapping[str, str] = dict(_fault_texts())


def fault_of_renamed(path: str) -> str | None:
    """Return the fault of a key of an earlier version at `path`, None for all other paths."""
    return _FAULTS.get(_INDEX.sub("", path))

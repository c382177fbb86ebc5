"""The event codes of the log, each with the message that people read, and the form of timestamps.

docs/logs.md lists cause and action of each code.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

EVENTS: Mapping[str, str] = {
    # the process
    "listening": "all ports are open",
    "stopped": "the process has stopped",
    "drain_started": "draining: no new requests are accepted",
    "lame_duck_started": "readiness is withdrawn; requests are still accepted",
    "reload_succeeded": "configuration reloaded",
    "reload_failed": "configuration is invalid; the previous one stays in effect",
    "reload_incomplete": "configuration reloaded, but not by all processes",
    "certificate_reloaded": "TLS certificate reloaded",
    "certificate_reload_failed": "TLS certificate is invalid; the previous one stays in effect",
    "fd_limit_low": "file descriptor limit is below limits.max_connections",
    "trusted_proxies_unused": "trusted_proxies has no effect without a policy",
    "extproc_unauthenticated": "the ext-proc port accepts every caller, and its responses contain the pods' API key",
    "extproc_caller_rejected": "ext-proc caller rejected",
    "callback_failed": "exception in a background task; the task continues",
    "library_log": "logged by a library",
    "log_write_failed": "log lines cannot be written and are dropped",
    "log_write_recovered": "log lines are written again",
    "external_scaler_listening": "the external scaler for KEDA is listening",
    "pod_warmed": "hot prefixes were replayed to a new pod, which takes load now",
    "warmup_advised": "a new pod would have been warmed with prewarm: act",
    "desired_engines_changed": "the desired engines of a pool have changed",
    "supply_state_invalid": "a state of supply decisions cannot be read and is ignored",
    "supply_state_write_failed": "the state of supply decisions cannot be written",
    "key_api_listening": "the key API is listening",
    "key_store_lost": "keys in Redis cannot be read; those of the mirror stay in force",
    "key_store_connected": "keys in Redis are read again",
    "key_store_empty": "Redis has no keys, or has lost them; those of the mirror stay in force",
    "key_store_invalid_keys": "keys in Redis are invalid, and left out of the mirror",
    "key_audit_failed": "a line of the key API's audit log could not be written",
    "trace_export_failed": "spans cannot be exported; they are queued, and dropped beyond the queue",
    "trace_export_recovered": "spans are exported again",
    "request_completed": "request completed",
    "providers_stopped": "nothing is sent to providers outside the fleet any more",
    "providers_resumed": "requests may be sent to providers outside the fleet again",
    "provider_held": "a provider endpoint is not used for a while",
    "provider_released": "a provider endpoint is used again",
    # processes of one gateway
    "process_started": "process started",
    "process_exited": "process exited; it is started again",
    "process_hung": "process does not respond; it is killed",
    "supervisor_lost": "the supervisor has exited; this worker drains",
    "index_process_listening": "index process is listening",
    "index_process_unavailable": "index process is unavailable; this worker routes by its own state",
    # discovery
    "source_failed": "a pod source failed; its last list stays in effect",
    "source_empty": "a pod source lists no pods",
    "dns_lookup_failed": "DNS lookup failed; the last list of pods stays in effect",
    "dns_lookup_recovered": "DNS lookup succeeds again",
    "pod_file_invalid": "pod file is invalid; the last valid list stays in effect",
    "kubernetes_watch_failed": "Kubernetes API request failed; the last known objects stay in effect",
    "kubernetes_watch_recovered": "Kubernetes API responds again",
    "kubernetes_object_invalid": "a Kubernetes object is invalid and is ignored",
    "kubernetes_object_conflict": "two Kubernetes objects disagree; the oldest is used",
    "agent_registry_unavailable": "agent registry is unavailable; the last list of pods stays in effect",
    "agent_registry_recovered": "agent registry is available again",
    "agent_registry_full": "agent registry holds more agents than are followed",
    "agent_record_invalid": "an agent's record is invalid and is ignored",
    # pods
    "pod_state_changed": "pod changed state",
    "pod_removed": "pod removed: no source lists it",
    "pod_restarted": "pod restarted; its cache is assumed to be empty",
    "pod_never_healthy": "pod has not been healthy since it was found",
    "pod_unusable": "pod is healthy but does not list its models",
    "pod_watch_failed": "probing a pod failed unexpectedly; it is retried",
    "breaker_opened": "circuit breaker opened",
    "engine_hung": "engine hangs; the health endpoint may still return 200",
    "engine_hang_ended": "engine generates tokens again",
    "role_changed": "role of an engine changed",
    "prefill_pod_unpaired": "prefill pod is in no pair",
    "connector_load_failed": "a KV connector could not be loaded",
    "actuator_failed": "an actuator could not be loaded, or raised",
    # predictions of cached tokens
    "prefix_prediction_drift": "cached tokens differ from the prediction",
    "kv_events_subscribed": "subscribed to KV events",
    "kv_events_subscribe_failed": "cannot subscribe to KV events",
    "kv_event_replay_failed": "cannot request missed KV events",
    "kv_events_lost": "KV events were lost; the approximate index is used",
    "kv_events_failed": "KV events could not be applied; the approximate index is used",
    "kv_events_recovered": "KV events are complete again",
    "kv_events_unreliable": "KV events do not match reported cached tokens; the approximate index is used",
    "kv_events_reliable": "KV events match reported cached tokens again",
    "engine_cache_reset": "engine restarted its KV events: its cache is empty",
    "tokenizer_mismatch": "engine counts prompts differently than its /tokenize; the approximate index is used",
    # several gateways
    "replica_sync_unavailable": "Redis is unavailable; this host routes by its own state",
    "replica_sync_recovered": "Redis is available again",
    "replica_timed_out": "a replica stopped sending updates; its requests are no longer counted",
    "replica_history_replayed": "history of other replicas replayed",
    "limit_coordinator_unavailable": "limit coordinator is unavailable; limits use this gateway's last quota leases",
    "quota_recovery_started": "quota leases are limited to an even share until all replicas have reported",
    # policy and identity
    "policy_reloaded": "policy reloaded",
    "policy_reload_failed": "policy is invalid; the previous one stays in effect",
    "jwks_loaded": "signing keys of the token issuer loaded",
    "jwks_fetch_failed": "signing keys of the token issuer could not be fetched",
    # diagnosis
    "diagnosis_started": "the fleet is diagnosed by this process",
    "finding_raised": "diagnosis has found what slows or fails requests",
    "finding_cleared": "the evidence of a finding is gone",
    "finding_pod_drained": "pod drained for a finding",
    "finding_pod_undrained": "pod receives requests again: its finding is gone or its drain is no longer allowed",
    "finding_effects_expired": "diagnosis has ended: pods drained for findings receive requests again",
    "baseline_failed": "baseline cannot be read or written",
    # canaries and cascades
    "canary_started": "canary started",
    "canary_promoted": "canary promoted: its pods serve like all others",
    "canary_reverted": "canary reverted: its pods serve no requests",
    "canary_held": "canary undecided or not begun",
    "canary_limits_kept": "canary is judged by the limits with which its trial began",
    "canary_rejected": "canary may not be on trial as it is",
    "canary_state_unavailable": "shared state of canaries cannot be read or changed; the last verdict holds",
    "cascade_uncalibrated": "cascade has no calibration",
    "cascade_without_guarantee": "calibration supports no quality guarantee",
    "cascade_calibration_unusable": "calibration cannot be applied",
    "cascade_model_rejects_all": "no answer of a cascade's model is accepted",
    "cascade_model_recovered": "answers of a cascade's model are accepted again",
    "cascade_guarantee_withdrawn": "quality guarantee withdrawn",
    "cascade_drift_suspected": "shadow samples make a loss of quality likely",
    "cascade_drift_reference_learned": "reference of shadow samples learned",
    # the node agent
    "agent_started": "agent started",
    "agent_stopped": "agent stopped",
    "agent_record_not_written": "agent record is invalid and was not written",
    "gpus_detected": "GPU detection finished",
    "heartbeat_failed": "Redis is unavailable; the agent's record will expire",
    "heartbeat_recovered": "Redis is available again",
    "load_listener_failed": "cannot listen for pushed loads",
    "server_found": "engine server found",
    "server_removed": "engine server removed",
    "server_facts_dropped": "invalid facts of a server are left out",
}
"""Code to message. A plug-in may log codes of its own: they are their own message."""


def format_timestamp(at_s: float) -> str:
    """Format a Unix time in seconds as RFC 3339 in UTC, with milliseconds."""
    second, thousandths = divmod(int(at_s * 1e6 + 0.5) // 1000, 1000)
    return f"{_second(second)}.{_THOUSANDTHS[thousandths]}Z"


_THOUSANDTHS = tuple(f"{each:03d}" for each in range(1000))


@lru_cache(maxsize=8)
def _second(at_s: int) -> str:
    """Cached, because thousands of lines share it and formatting a date takes longer than the rest of a line."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")

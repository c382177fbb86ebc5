"""How a vLLM server was started, as far as that may leave its node: options, environment and digests by allow-list.

An option or variable that is not listed here is never published, and neither is a listed one whose value does not have
the form of its kind: so no key, path or URL gets into a record, a page or a support bundle. Writers and readers both
apply `permitted_settings`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

_COUNT: Final = re.compile(r"-?\d{1,15}")
_NUMBER: Final = re.compile(r"-?\d{1,12}(\.\d{1,12})?(e-?\d{1,2})?")
_FLAG: Final = re.compile(r"true|false")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_NAMES: Final = re.compile(r"[a-z][a-z0-9_]{0,15}(,[a-z][a-z0-9_]{0,15}){0,15}")
"""A list of transports, such as `rc,cuda_copy,tcp`."""
_DEVICES: Final = re.compile(r"[\^=]?[a-z][a-z0-9_]{0,15}(:\d{1,3})?(,[a-z][a-z0-9_]{0,15}(:\d{1,3})?){0,15}")
"""A list of network devices with ports, such as `mlx5_0:1,mlx5_1:1`."""
_SIZE: Final = re.compile(r"\d{1,15}[kmgKMG]?[bB]?|inf|auto")
_SWITCH: Final = re.compile(r"[01yYnN]|on|off|true|false|yes|no|try")
_DIGEST: Final = re.compile(r"[0-9a-f]{8,64}")

OPTION_FORMS: Final[Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(
        (
            *("max-num-batched-tokens", "max-num-scheduled-tokens", "max-num-seqs", "max-num-active-seqs"),
            *("max-num-queued-reqs", "max-num-queued-tokens", "max-model-len", "long-prefill-token-threshold"),
            *("block-size", "prefix-match-unit", "num-gpu-blocks-override", "kv-cache-memory-bytes"),
            *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "data-parallel-size-local"),
            *("decode-context-parallel-size", "prefill-context-parallel-size", "api-server-count"),
            *("prefill-schedule-interval", "max-loras", "max-lora-rank", "stream-interval"),
            *("speculative-config.num_speculative_tokens", "speculative-config.draft_tensor_parallel_size"),
            *("eplb-config.num_redundant_experts", "eplb-config.window_size", "eplb-config.step_interval"),
        ),
        _COUNT,
    ),
    **dict.fromkeys(("gpu-memory-utilization", "watermark", "kv-offloading-size", "cpu-offload-gb"), _NUMBER),
    **dict.fromkeys(
        (
            *("enable-chunked-prefill", "enable-prefix-caching", "enable-expert-parallel", "enable-eplb"),
            *("enable-lora", "enable-dbo", "enforce-eager", "async-scheduling", "enable-prompt-tokens-details"),
            *("enable-mfu-metrics", "kv-cache-metrics", "scheduler-reserve-full-isl", "enable-auto-tool-choice"),
            *("long-prefill-token-threshold-adaptive", "disable-hybrid-kv-cache-manager", "enable-force-include-usage"),
            *("data-parallel-external-lb", "data-parallel-hybrid-lb", "disable-log-stats", "enable-sleep-mode"),
            *("kv-events-config.enable_kv_cache_events", "eplb-config.use_async", "eplb-config.log_balancedness"),
            *("enable-server-load-tracking", "has-config-file"),
        ),
        _FLAG,
    ),
    **dict.fromkeys(
        (
            *("attention-backend", "kv-cache-dtype", "dtype", "quantization", "scheduling-policy", "moe-backend"),
            *("prefix-caching-hash-algo", "all2all-backend", "expert-placement-strategy", "kv-offloading-backend"),
            *("mamba-cache-mode", "mamba-cache-dtype", "mamba-ssm-cache-dtype", "data-parallel-backend"),
            *("distributed-executor-backend", "per-request-spec-decode-metrics", "performance-mode"),
            *("speculative-config.method", "kv-transfer-config.kv_connector", "kv-transfer-config.kv_role"),
            *("kv-transfer-config.kv_load_failure_policy", "kv-transfer-config.kv_buffer_device"),
            *("tool-call-parser", "reasoning-parser"),
        ),
        _NAME,
    ),
}
"""Options of `vllm serve` without dashes, and the form of their values; `a.b` is key `b` of the JSON option `a`."""

FLAG_OPTIONS: Final = frozenset(name for name, form in OPTION_FORMS.items() if form is _FLAG)
"""Those without a value on the command line, or with `no-` before their name."""

VARIABLE_FORMS: Final[Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(("UCX_TLS", "NIXL_PLUGINS"), _NAMES),
    **dict.fromkeys(("UCX_NET_DEVICES", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), _DEVICES),
    **dict.fromkeys(("UCX_RNDV_THRESH", "UCX_ZCOPY_THRESH", "NCCL_BUFFSIZE"), _SIZE),
    **dict.fromkeys(
        (
            *("UCX_MAX_EAGER_RAILS", "UCX_MAX_RNDV_RAILS", "UCX_IB_GID_INDEX", "UCX_IB_TRAFFIC_CLASS", "UCX_IB_SL"),
            *("NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IB_QPS_PER_CONNECTION"),
            *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_CROSS_NIC", "OMP_NUM_THREADS"),
        ),
        _COUNT,
    ),
    **dict.fromkeys(
        (
            *("UCX_IB_GPU_DIRECT_RDMA", "UCX_MEMTYPE_CACHE", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
            *("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE", "VLLM_SERVER_DEV_MODE"),
        ),
        _SWITCH,
    ),
    **dict.fromkeys(
        (
            *("UCX_LOG_LEVEL", "UCX_PROTO_ENABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_NET_GDR_LEVEL"),
            *("NCCL_P2P_LEVEL", "VLLM_ATTENTION_BACKEND", "VLLM_KV_CACHE_LAYOUT", "VLLM_ALL2ALL_BACKEND"),
        ),
        _NAME,
    ),
}
"""Variables of a server's environment that are published, and the form of their values."""

HASH_SEED_VARIABLE = "PYTHONHASHSEED"
"""Published as a digest only: equal seeds have equal digests, and a seed cannot be read from one."""

NO_SEED = "none"
"""In place of a digest where the variable is not set."""


class ServerSettings(Struct, frozen=True, omit_defaults=True):
    """How one server was started; empty where nothing is known."""

    options: dict[str, str] = {}
    """By name in `OPTION_FORMS`; flags are `true` or `false`."""
    environment: dict[str, str] = {}
    """By name in `VARIABLE_FORMS`."""
    hash_seed: str | None = None
    """Digest of `PYTHONHASHSEED`, `NO_SEED` without one; None where the environment could not be read."""
    model_digest: str | None = None
    """Of the model's `config.json`: the first 16 hex digits of its SHA-256."""
    model_revision: str | None = None
    """Commit of the model's snapshot, the first 12 hex digits."""
    tokenizer_digest: str | None = None
    """Of the tokenizer's file, as `model_digest`; the next: of the chat template. None where it was not found."""
    template_digest: str | None = None


NO_SETTINGS = ServerSettings()


def permitted_settings(settings: ServerSettings) -> ServerSettings:
    """Return the settings without everything that is not listed or does not have the form of its kind."""
    seed = settings.hash_seed
    return ServerSettings(
        options=permitted(settings.options.items(), OPTION_FORMS),
        environment=permitted(settings.environment.items(), VARIABLE_FORMS),
        hash_seed=seed if seed == NO_SEED else _digest_or_none(seed),
        model_digest=_digest_or_none(settings.model_digest),
        model_revision=_digest_or_none(settings.model_revision),
        tokenizer_digest=_digest_or_none(settings.tokenizer_digest),
        template_digest=_digest_or_none(settings.template_digest),
    )


def permitted(given: Iterable[tuple[str, str]], forms: Mapping[str, re.Pattern[str]]) -> dict[str, str]:
    """Return the pairs whose name is in `forms` and whose value has its form; the last of a name counts."""
    return {name: value for name, value in given if (form := forms.get(name)) is not None and form.fullmatch(value)}


def _digest_or_none(value: str | None) -> str | None:
    return value if value is not None and _DIGEST.fullmatch(value) else None

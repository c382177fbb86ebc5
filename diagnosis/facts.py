"""What is known about a fleet at one time: one typed record, every value optional.

None means missing. Values that are read together stand in one group, and the group has the time at which it was read:
`end_s` of a window, `read_at_s` of declared facts. A reader that has none of a group leaves the group None. All times
are Unix seconds; counters are given as their growth over a window. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnosis.distribution import Distribution
from diagnosis.request_times import RequestTimes, TrafficKey
from routing.facts import Role

COURSE_STEP_S = 5.0
"""Of `GatewayView.first_token_course`."""

MAX_WINDOW_AGE_S = 45.0
"""Age at which a window's figures count as missing."""

MIN_WINDOW_S = 9.0
"""Length of a window below which it counts as missing."""


def is_recent(start_s: float, end_s: float, now_s: float) -> bool:
    """Return whether a window is young and long enough to judge by."""
    return now_s - end_s <= MAX_WINDOW_AGE_S and end_s - start_s >= MIN_WINDOW_S


PRIORITY, CACHED_TOKENS, KV_EVENTS, PREFIX_CACHING = "priority", "cached_tokens", "kv_events", "prefix_caching"
"""Names of features in `FleetFacts.wanted_features`: what the gateway is configured to use of its engines."""


@dataclass(frozen=True, slots=True)
class GaugeReadings:
    """A gauge over a window: mean, extremes and the last value read."""

    mean: float
    low: float
    peak: float
    last: float


@dataclass(frozen=True, slots=True)
class SpeculationWindow:
    """Speculative decoding over a window: counters of `vllm:spec_decode_*`."""

    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_by_position: tuple[float, ...] = ()

    @property
    def acceptance(self) -> float | None:
        """Return accepted tokens by drafted ones, 0 to 1; None without drafts."""
        if not self.draft_tokens or self.accepted_tokens is None:
            return None
        return self.accepted_tokens / self.draft_tokens


@dataclass(frozen=True, slots=True)
class TransferWindow:
    """Transfers of KV from other engines over a window: counters of `vllm:nixl_*` and their like."""

    count: float | None = None
    bytes: float | None = None
    seconds: float | None = None
    """Sum over transfers, from their post to their end."""
    post_s: float | None = None
    descriptors: float | None = None
    failed: float | None = None
    failed_handshakes: float | None = None
    """With engines whose KV was to be read: no transfer began. Only the plugin counts them."""
    expired: float | None = None
    """Requests whose KV was kept for another engine until its lease ended."""
    after_expiry: float | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """Return the bandwidth achieved by one transfer, bytes/s; None without transfers."""
        return self.bytes / self.seconds if self.bytes and self.seconds else None


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """One engine (data-parallel rank) over a window: gauges, and the growth of counters and histograms."""

    rank: int
    start_s: float
    end_s: float
    is_restarted: bool = False
    """Counters fell within the window: their growth is missing."""

    running: GaugeReadings | None = None
    waiting: GaugeReadings | None = None
    waiting_for_capacity: GaugeReadings | None = None
    waiting_deferred: GaugeReadings | None = None
    kv_usage: GaugeReadings | None = None
    """0 to 1."""
    fetches_queued: GaugeReadings | None = None
    """`num_requests_kv_fetch_by_stage`: waiting_to_start. The next two: in_progress, completed_waiting."""
    fetches_running: GaugeReadings | None = None
    fetches_done: GaugeReadings | None = None
    expert_balance: GaugeReadings | None = None
    """Mean by maximum load over expert ranks: 1 is even."""

    finished: float | None = None
    """Requests that ended by themselves."""
    aborted: float | None = None
    failed: float | None = None
    rejected: float | None = None
    """By the engine's own limits on its queue."""
    preemptions: float | None = None
    prompt_tokens: float | None = None
    computed_tokens: float | None = None
    """Prompt tokens by source: computed here, found in the engine's cache, brought by a connector."""
    cached_tokens: float | None = None
    fetched_tokens: float | None = None
    generation_tokens: float | None = None
    generated_since_start: float | None = None
    """The same of the engine, not of the window: an engine that makes vectors never generates any."""
    cache_queries: float | None = None
    """Prompt tokens looked up in the engine's prefix cache; the next: found."""
    cache_hits: float | None = None
    store_queries: float | None = None
    """The same of a store or connector behind it."""
    store_hits: float | None = None
    store_queries_since_start: float | None = None
    """Of the engine, not of the window: a store that is new has nothing to find."""
    store_load_s: float | None = None
    """Seconds of loads from a store or host memory (`kv_offload_load_time`)."""
    store_load_bytes: float | None = None

    server_cpu_s: float | None = None
    """CPU seconds of the process that serves the metrics page, the API server; only of the first rank."""

    queue: Distribution | None = None
    """Seconds of requests: in the engine's queue, prefill, decode, until the first token, between tokens."""
    prefill: Distribution | None = None
    decode: Distribution | None = None
    first_token: Distribution | None = None
    token_gap: Distribution | None = None
    prompt_lengths: Distribution | None = None
    """Tokens of finished requests."""
    answer_lengths: Distribution | None = None
    iteration_tokens: Distribution | None = None
    """Tokens of a step, prefill and decode together."""
    speculation: SpeculationWindow | None = None
    transfers: TransferWindow | None = None

    @property
    def length_s(self) -> float:
        """Return the window's length, seconds."""
        return max(self.end_s - self.start_s, 0.0)


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """What the engine was started with: its command line, its `cache_config_info` and what it logs."""

    read_at_s: float
    chunked_prefill: bool | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int | None = None
    max_model_len: int | None = None
    speculative_method: str | None = None
    """None: unknown; empty: no speculation."""
    speculative_tokens: int | None = None
    expert_parallel: bool | None = None
    eplb: bool | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    dcp: int | None = None
    pcp: int | None = None
    api_servers: int | None = None
    attention_backend: str | None = None
    kv_dtype: str | None = None
    block_size: int | None = None
    hash_block_size: int | None = None
    hash_algorithm: str | None = None
    prefix_caching: bool | None = None
    kv_blocks: int | None = None
    kv_capacity_tokens: int | None = None
    connector: str | None = None
    kv_role: str | None = None
    kv_load_failure_policy: str | None = None
    offloading_gib: float | None = None
    scheduling_policy: str | None = None
    prompt_tokens_details: bool | None = None
    kv_events: bool | None = None
    max_num_queued_reqs: int | None = None
    enforce_eager: bool | None = None


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """What runs in the pod."""

    read_at_s: float
    version: str | None = None
    build: str | None = None
    image_digest: str | None = None
    model_config_digest: str | None = None
    """Of the model's config.json."""
    template_digest: str | None = None
    """Of its chat template."""
    revision: str | None = None
    """Of the model, as loaded."""
    rollout: str | None = None
    """Revision of the rollout, as discovery reports it: pods of two rollouts may differ on purpose."""
    tokenizer_digest: str | None = None
    """Of the tokenizer's file."""


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """The engine's environment, by allow-list."""

    read_at_s: float
    values: Mapping[str, str] = field(default_factory=dict)
    """Variables that may be shown and are set, such as `UCX_TLS`."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of variables that may only be compared, such as `PYTHONHASHSEED`; one that is not set has a value of its own."""


@dataclass(frozen=True, slots=True)
class NicPort:
    """One port of a network card."""

    name: str
    state: str | None = None
    """As the kernel has it, in lower case: `active`, `down`, `init`, `armed`."""
    gbit_s: float | None = None


@dataclass(frozen=True, slots=True)
class HardwareFacts:
    """GPUs and network cards, as the node agent last checked them."""

    read_at_s: float
    host: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    ports: tuple[NicPort, ...] = ()

    @property
    def port_bytes_per_s(self) -> float | None:
        """Return the nominal bandwidth of the fastest port, bytes/s; None where no rate is known.

        A transfer takes one port, or two, however many the host has.
        """
        rates = [port.gbit_s for port in self.ports if port.gbit_s]
        return max(rates) * 1e9 / 8 if rates else None


@dataclass(frozen=True, slots=True)
class GatewayView:
    """What the gateway itself measured of one pod's requests over a window."""

    start_s: float
    end_s: float
    requests: float | None = None
    """Sent to the pod within the window."""
    errors: float | None = None
    constrained: float | None = None
    """Of `requests`, those with tools or a schema, whose output a grammar restricts."""
    salted: float | None = None
    """Of `requests`, those with a cache salt (`cache_isolation`); the next: at least how many different ones."""
    salts: float | None = None
    predicted_cached_tokens: float | None = None
    """Sum over ended requests; the next two likewise."""
    actual_cached_tokens: float | None = None
    prompt_tokens: float | None = None
    first_token: Distribution | None = None
    """Seconds from sending to the first byte."""
    first_token_course: tuple[tuple[float, float], ...] | None = None
    """The same by time: Unix time of each step of `COURSE_STEP_S` in which first bytes came, and their median."""
    token_gap: Distribution | None = None
    """Seconds for each token behind the first, one value a request."""
    constrained_token_gap: Distribution | None = None
    """The same of constrained requests alone."""
    handover: Distribution | None = None
    """Of a pod that prefills for others: seconds from its answer to the first token, one value a request."""
    pairs: float | None = None
    """Attempts within the window for which it was chosen as one half of a pair."""
    lost_pairs: float | None = None
    """Of `pairs`, those whose KV did not reach the decoding pod: it failed to load it, or it did not come in time."""


@dataclass(frozen=True, slots=True)
class PodObservation:
    """One pod. `address` is its URL."""

    address: str
    pool: str = ""
    model: str = ""
    role: Role = Role.EITHER
    region: str | None = None
    """None where unknown: then it serves no request that is bound to regions."""
    is_ready: bool = True
    ready_since_s: float | None = None
    engines: tuple[EngineWindow, ...] = ()
    """By rank; empty where nothing was read."""
    requests: GatewayView | None = None
    flags: EngineFlags | None = None
    build: BuildFacts | None = None
    environment: EnvironmentFacts | None = None
    hardware: HardwareFacts | None = None
    metadata_service: str | None = None
    """Address of what its connector needs beside its peers: Mooncake master or bootstrap, etcd, an LMCache proxy."""


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """One gateway process over a window."""

    start_s: float
    end_s: float
    name: str = ""
    cpu: float | None = None
    """Share of one core, 0 to 1."""
    loop_lag: Distribution | None = None
    """Seconds by which timers of its event loop were late."""
    requests: float | None = None
    redis: Distribution | None = None
    """Seconds of commands to Redis, pings included; None where no Redis is used."""


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Everything that diagnosis reads. Facts of other gateways on the same Redis may be added to the same record."""

    at_s: float
    pods: tuple[PodObservation, ...] = ()
    gateways: tuple[GatewayLoad, ...] = ()
    clock_offsets_s: Mapping[str, float] = field(default_factory=dict)
    """Of hosts or pods, against this gateway: positive where theirs is ahead. `clocks_read_at_s` is their time."""
    clocks_read_at_s: float | None = None
    times: Mapping[TrafficKey, RequestTimes] = field(default_factory=dict)
    """Where the time of ended requests went, by kind of traffic."""
    wanted_features: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By pool: features that the gateway is configured to use there (`PRIORITY` and its like)."""
    single_services: frozenset[str] = frozenset()
    """Those of `PodObservation.metadata_service` behind which one process stands, as configured or found."""

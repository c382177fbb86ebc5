"""The record of an agent's pods in Redis: one value and its JSON form, written by `hearth agent`, read by gateways.

It is in `routing` beside `facts.py`, whose facts it carries, because the agent and `gateway.discovery` are separate
programs that share this format and nothing else.

A key per agent (`key`) holds a JSON record and expires after the record's `ttl_s`. Each beat writes the whole record,
so an emptied Redis is complete again one beat later. The same record is published on a channel (`channel`) for speed
only; the key is authoritative. An agent that leaves deletes its key and publishes a record without pods. Load figures
are published on the channel alone. Pure: no socket, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from routing.facts import FACT_NAMES, NO_FACTS, InvalidFacts, PodFacts, read_facts
from routing.server_settings import NO_SETTINGS, ServerSettings, permitted_settings

VERSION = 1
"""Of the record format. A reader ignores keys that it does not know and rejects another version."""

MAX_RECORD_BYTES = 64 << 10
"""Bytes. A pod takes some six hundred, and about as many again with its settings."""

MAX_PODS = 64
"""Beside one agent; a node has a dozen GPUs."""

MAX_GPUS = 16

MAX_RDMA_PORTS = 64

MAX_TTL_S = 3600.0

MAX_RANK = 4095

Count = Annotated[int, Meta(ge=0, le=1 << 31)]
ByteCount = Annotated[int, Meta(ge=0, le=1 << 62)]
"""Bounds of what is read from Redis: a larger number would fail in arithmetic that all pods share."""

_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Part of a Redis key: no brackets, stars or colons."""


class InvalidRecord(ValueError):  # noqa: N818 - it carries a verdict on what was read
    """What is wrong with a record, or with one to be written."""


class RegistrationState(StrEnum):
    """Whether a pod wants requests."""

    SERVING = "serving"
    DRAINING = "draining"
    """It finishes what it has and takes nothing new."""


class EngineLoad(Struct, frozen=True, omit_defaults=True):
    """What an engine itself said of one of its steps."""

    rank: Annotated[int, Meta(ge=0, le=MAX_RANK)] = 0
    running: Count = 0
    waiting: Count = 0
    kv_usage: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of its KV cache that requests use, 0 to 1."""
    age_s: Annotated[float, Meta(ge=0, le=MAX_TTL_S)] = 0.0
    """How old this was when the record was written."""
    counters: dict[str, float] = {}
    """Sums since the engine started, by name in `ENGINE_COUNTERS`; times are in seconds."""
    fetching: dict[str, int] = {}
    """Requests that wait for KV of another engine, by stage in `FETCH_STAGES`."""


ENGINE_COUNTERS = frozenset(
    (
        *("preemptions", "prefix_queries", "prefix_hits", "drafts", "draft_tokens", "accepted_tokens"),
        *("transfers", "transfer_s", "transfer_post_s", "transfer_bytes", "transfer_descriptors"),
        *("failed_transfers", "failed_handshakes", "failed_notifications", "expired_requests", "late_notifications"),
    )
)
"""Counters of an engine that are published. What the plugin of a later version adds is dropped."""

MAX_FETCHING = 1_000_000
"""Requests of one stage; a larger count is an error of its sender."""

FETCH_STAGES = frozenset(("waiting_to_start", "in_progress", "completed_waiting"))


def known_counters(given: Mapping[str, float]) -> dict[str, float]:
    """Return the counters that are published and are numbers of at least 0."""
    return {
        name: value for name, value in given.items() if name in ENGINE_COUNTERS and isfinite(value) and value >= 0.0
    }


def known_stages(given: Mapping[str, int]) -> dict[str, int]:
    """Return the stages that are published, with counts of at least 0. JSON has no bound for a count."""
    return {name: count for name, count in given.items() if name in FETCH_STAGES and 0 <= count <= MAX_FETCHING}


class GpuReading(Struct, frozen=True, omit_defaults=True):
    """One GPU at one moment."""

    utilization: float | None = None
    """Part of the last moments in which it was in use, 0 to 1; None where the device does not report it."""
    memory_used_bytes: ByteCount = 0
    memory_total_bytes: ByteCount = 0
    power_w: float | None = None


class RdmaPort(Struct, frozen=True):
    """One port of an RDMA device, as the kernel names them."""

    device: str
    port: int
    is_up: bool


class NodeReading(Struct, frozen=True, omit_defaults=True):
    """What an agent reads of its node while it runs."""

    gpus: tuple[GpuReading, ...] = ()
    """By index."""
    rdma_ports: tuple[RdmaPort, ...] = ()


NO_READING = NodeReading()


@dataclass(frozen=True, slots=True)
class RegisteredPod:
    """One pod of an agent."""

    url: str
    facts: PodFacts = NO_FACTS
    state: RegistrationState = RegistrationState.SERVING
    takes_priority: bool = False
    """Its engine was started with `--scheduling-policy priority`."""
    loads: tuple[EngineLoad, ...] = ()
    settings: ServerSettings = NO_SETTINGS
    """How its server was started."""


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """All that one agent says; each record replaces its last."""

    agent: str
    beat: int
    """Counts up from the agent's start: of two records the one with the higher beat is the later."""
    ttl_s: float
    """Seconds after which the agent's pods are removed if no further record arrives."""
    pods: tuple[RegisteredPod, ...] = ()
    life: int = 0
    """Drawn at the agent's start: the beat counter restarts with each value."""
    node: NodeReading = NO_READING


def record_key(prefix: str, agent: str) -> str:
    """Where an agent's record stands."""
    return f"{prefix}hearth:agent:{agent}"


def record_keys_pattern(prefix: str) -> str:
    """Matches the keys of all agents, as SCAN wants it."""
    return re.sub(r"([*?\[\]^\\])", r"\\\1", prefix) + "hearth:agent:*"


def record_channel(prefix: str) -> str:
    """Where records are published."""
    return f"{prefix}hearth:agents"


def is_agent_name(name: str) -> bool:
    """Whether an agent may be called so: letters, digits, `.`, `_` and `-`, 128 at most."""
    return _AGENT.fullmatch(name) is not None


def parse_pod_url(text: str) -> str:
    """Return `SCHEME://HOST:PORT`, the one form that identifies a pod. Raises ValueError."""
    shown = f": `{text}`"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"is not a URL{shown}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or any(char <= " " for char in text):
        raise ValueError(f"must be a URL beginning with http:// or https://{shown}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"a pod is a scheme, a host and a port, without a path{shown}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a pod's key belongs into pod_api_key, not into its URL")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


class _Pod(Struct, frozen=True, omit_defaults=True):
    url: str
    facts: dict[str, Any] = {}
    state: RegistrationState = RegistrationState.SERVING
    takes_priority: bool = False
    load: list[EngineLoad] = []
    settings: ServerSettings | UnsetType = UNSET
    """Older readers ignore it, as they do the counters of a load."""


class _Record(Struct, frozen=True):
    v: int
    agent: str
    beat: int
    ttl_s: float
    pods: list[_Pod]
    life: int = 0
    node: NodeReading | UnsetType = UNSET


class _Version(Struct, frozen=True):
    v: int


def write_record(record: AgentRecord) -> bytes:
    """The record as JSON, without settings and then without counters where it would become too long. Raises
    `InvalidRecord` where no reader would take it.
    """
    written = _encoded(record)
    for shorten in (_without_settings, _without_counters):
        if len(written) > MAX_RECORD_BYTES:
            record = replace(record, pods=tuple(map(shorten, record.pods)))
            written = _encoded(record)
    if len(written) > MAX_RECORD_BYTES or len(record.pods) > MAX_PODS:
        raise InvalidRecord(f"more than {MAX_PODS} pods or {MAX_RECORD_BYTES} bytes")
    return written


def _without_settings(pod: RegisteredPod) -> RegisteredPod:
    return replace(pod, settings=NO_SETTINGS)


def _without_counters(pod: RegisteredPod) -> RegisteredPod:
    bare = (msgspec.structs.replace(load, counters={}, fetching={}) for load in pod.loads)
    return replace(pod, loads=tuple(bare))


def _encoded(record: AgentRecord) -> bytes:
    pods = [
        _Pod(
            pod.url,
            pod.facts.to_mapping(),
            pod.state,
            pod.takes_priority,
            list(pod.loads),
            UNSET if pod.settings == NO_SETTINGS else pod.settings,
        )
        for pod in record.pods
    ]
    node = UNSET if record.node == NO_READING else record.node
    return msgspec.json.encode(_Record(VERSION, record.agent, record.beat, record.ttl_s, pods, record.life, node))


def read_record(written: bytes) -> AgentRecord:
    """Read a record from Redis. Raises `InvalidRecord` that names the fault; fields of a later writer are ignored."""
    if len(written) > MAX_RECORD_BYTES:
        raise InvalidRecord(f"more than {MAX_RECORD_BYTES} bytes")
    try:
        version = msgspec.json.decode(written, type=_Version).v
        if version != VERSION:
            raise InvalidRecord(f"v: is {version}, we read {VERSION}")
        decoded = msgspec.json.decode(written, type=_Record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(str(error)) from None
    if not is_agent_name(decoded.agent):
        raise InvalidRecord("agent: is not a name")
    if not 0.1 <= decoded.ttl_s <= MAX_TTL_S:
        raise InvalidRecord(f"ttl_s: must be from 0.1 to {MAX_TTL_S:.0f}")
    if len(decoded.pods) > MAX_PODS:
        raise InvalidRecord(f"pods: more than {MAX_PODS}")
    node = NO_READING if decoded.node is UNSET else decoded.node
    if len(node.gpus) > MAX_GPUS or len(node.rdma_ports) > MAX_RDMA_PORTS:
        raise InvalidRecord(f"node: more than {MAX_GPUS} GPUs or {MAX_RDMA_PORTS} ports")
    pods = tuple(_registered(at, pod) for at, pod in enumerate(decoded.pods))
    return AgentRecord(decoded.agent, decoded.beat, decoded.ttl_s, pods, decoded.life, node)


def _registered(at: int, pod: _Pod) -> RegisteredPod:
    try:
        facts = read_facts({fact: value for fact, value in pod.facts.items() if fact in FACT_NAMES})
        settings = NO_SETTINGS if pod.settings is UNSET else permitted_settings(pod.settings)
        loads = tuple(map(_known_load, pod.load))
        return RegisteredPod(parse_pod_url(pod.url), facts, pod.state, pod.takes_priority, loads, settings)
    except (InvalidFacts, ValueError) as wrong:
        raise InvalidRecord(f"pods[{at}]: {wrong}") from None


def _known_load(load: EngineLoad) -> EngineLoad:
    if not load.counters and not load.fetching:
        return load
    return msgspec.structs.replace(load, counters=known_counters(load.counters), fetching=known_stages(load.fetching))

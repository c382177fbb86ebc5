"""The section `kv_events`: whether and how KV-cache events of the engines are followed; values, reader, JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gateway.config.fields import TOKENIZER_REMOVED, parse_pod_base_url, read_switch, schema_of_fields, seconds
from tenancy.document import DocumentTable, InvalidValue, integer, positive, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import AMOUNT, COUNT, TEXT

MAX_WAIT_S = 10.0
"""A request that waits longer for a lookup than for its prefill gains nothing: such a value is in milliseconds."""

MAX_LOAD_S = 0.01
"""Seconds per token. Computing a token takes less: such a value is in microseconds."""


@dataclass(frozen=True, slots=True)
class KvEventSource:
    """Where one pod publishes KV events, for pods that do not report it or report an unreachable address.

    As in vLLM, a data-parallel rank adds itself to the ports.
    """

    pod: str
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class KvLoadTimes:
    """Seconds per token to load KV from a slower medium, compared with the prefill that this saves."""

    cpu: float = 10e-6
    """From host memory; 10 us are about 250 KB of KV per token over PCIe."""
    storage: float = 60e-6
    """From a fast disk, or a store across the network."""


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """Settings of the precise prefix-cache index."""

    max_wait_s: float = 0.02
    """Maximum wait of a request for a lookup; then the approximate index decides."""
    max_blocks_per_engine: int = 1 << 22
    """Maximum blocks per engine; about 200 bytes each."""
    load_s_per_token: KvLoadTimes = field(default_factory=KvLoadTimes)
    sources: tuple[KvEventSource, ...] = ()


def read_kv_events(root: DocumentTable) -> KvEventsConfig | None:
    """Read `kv_events: true` or a mapping. Returns None if absent or false: the approximate index decides."""
    section = read_switch(root, "kv_events")
    if isinstance(section, bool):
        return KvEventsConfig() if section else None
    defaults = KvEventsConfig()
    section.reject_unknown("tokenizer_cache_mb", TOKENIZER_REMOVED)
    loads = section.table("load_s_per_token")
    found = KvEventsConfig(
        max_wait_s=section.get("max_wait_s", seconds(MAX_WAIT_S, "milliseconds"), defaults.max_wait_s),
        max_blocks_per_engine=section.get("max_blocks_per_engine", positive(integer), defaults.max_blocks_per_engine),
        load_s_per_token=_load_times(loads) if loads else defaults.load_s_per_token,
        sources=tuple(map(_source, section.tables("sources"))),
    )
    section.close()
    return found


def _load_times(section: DocumentTable) -> KvLoadTimes:
    defaults, parse = KvLoadTimes(), seconds(MAX_LOAD_S, "microseconds")
    found = KvLoadTimes(section.get("cpu", parse, defaults.cpu), section.get("storage", parse, defaults.storage))
    section.close()
    return found


def _source(section: DocumentTable) -> KvEventSource:
    found = KvEventSource(
        pod=section.get_required("pod", parse_pod_base_url, ""),
        endpoint=section.get_required("endpoint", parse_zmq_endpoint, ""),
        replay_endpoint=section.get("replay_endpoint", parse_zmq_endpoint, None),
        topic=section.get("topic", lambda value: value if value == "" else text(value), ""),
    )
    section.close()
    return found


def parse_zmq_endpoint(value: object) -> str:
    """Parse a ZeroMQ address: `tcp://HOST:PORT` or `ipc://PATH`."""
    words = text(value)
    if words.startswith("ipc://") and len(words) > len("ipc://"):
        return words
    try:
        parts = urlsplit(words.replace("*", "0.0.0.0"))  # noqa: S104 - only looked at
        port = parts.port
    except ValueError:
        port = None
    if not words.startswith("tcp://") or not port:
        raise InvalidValue(f"must be tcp://HOST:PORT or ipc://PATH, not `{words}`")
    return words


def kv_events_schema() -> Schema:
    source = table(
        {
            "pod": described(TEXT.schema, "Base URL of the pod."),
            "endpoint": described(TEXT.schema, "ZeroMQ address of its events, as vLLM was given it."),
            "replay_endpoint": described(TEXT.schema, "ZeroMQ address where missed events are requested."),
            "topic": described({"type": "string"}, "Topic of its events (default: all)."),
        },
        required=("pod", "endpoint"),
    )
    return table(
        {
            "max_wait_s": described(AMOUNT.schema, "Maximum wait of a request for a lookup (default 0.02)."),
            "max_blocks_per_engine": described(COUNT.schema, "Maximum KV blocks indexed per engine."),
            "load_s_per_token": described(
                schema_of_fields(KvLoadTimes(), above_zero=False), "Seconds to load the KV of a token, by medium."
            ),
            "sources": described(
                {"type": "array", "items": source}, "Publishing addresses of pods that do not report theirs."
            ),
        }
    )

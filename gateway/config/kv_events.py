"""The section `kv_events`: whether and how KV-cache events of the engines are followed; values, reader, JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gateway.config.fields import TOKENIZER_REMOVED, parse_pod_base_url, read_switch, schema_of_fields
from tenancy.document import DocumentTable, InvalidValue, not_negative, positive, read_fields, text, whole
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import AMOUNT, COUNT, TEXT


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
    """Microseconds per token to load KV from a slower medium, compared with the prefill that this saves."""

    cpu: float = 10.0
    """About 250 KB of KV per token over PCIe."""
    storage: float = 60.0
    """The same from a fast disk or a store across the network."""


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """Settings of the precise prefix-cache index."""

    wait_ms: float = 20.0
    """How long a request waits for a lookup before the approximate index decides."""
    most_blocks: int = 1 << 22
    """Maximum blocks per engine; about 200 bytes each."""
    load_us_per_token: KvLoadTimes = field(default_factory=KvLoadTimes)
    sources: tuple[KvEventSource, ...] = ()


def read_kv_events(root: DocumentTable) -> KvEventsConfig | None:
    """Read `kv_events: true` or a mapping. Returns None if absent or false: the approximate index decides."""
    section = read_switch(root, "kv_events")
    if isinstance(section, bool):
        return KvEventsConfig() if section else None
    usual = KvEventsConfig()
    section.reject_unknown("tokenizer_cache_mb", TOKENIZER_REMOVED)
    loads = section.table("load_us_per_token")
    found = KvEventsConfig(
        wait_ms=section.get("wait_ms", not_negative, usual.wait_ms),
        most_blocks=section.get("most_blocks", positive(whole), usual.most_blocks),
        load_us_per_token=read_fields(loads, usual.load_us_per_token) if loads else usual.load_us_per_token,
        sources=tuple(map(_source, section.tables("sources"))),
    )
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
        {"pod": TEXT.schema, "endpoint": TEXT.schema, "replay_endpoint": TEXT.schema, "topic": {"type": "string"}},
        required=("pod", "endpoint"),
    )
    return table(
        {
            "wait_ms": described(AMOUNT.schema, "How long a request waits for it before the shadow caches decide."),
            "most_blocks": described(COUNT.schema, "Followed per engine."),
            "load_us_per_token": described(
                schema_of_fields(KvLoadTimes(), above_zero=False), "Until a slower medium's KV is of use."
            ),
            "sources": described({"type": "array", "items": source}, "Pods that do not tell where they publish."),
        }
    )

"""Words of the configuration about exact warmth: whose KV events are followed, and who turns prompts into tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gateway.config.fields import file, pod_url
from tenancy.document import Table, Wrong, flag, not_negative, positive, read_fields, text, whole

POD = "pod"
"""The tokenizer is the pod's own `/tokenize`."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where one pod publishes, for pods that do not tell or tell an address that only they can reach.

    As in vLLM, a data-parallel rank adds itself to the ports.
    """

    pod: str
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Microseconds per token until what stands on a slower medium can be used. Work of a prefill that it saves."""

    cpu: float = 10.0
    """About 250 KB of KV per token over PCIe."""
    storage: float = 60.0
    """The same from a fast disk or a store across the network."""


@dataclass(frozen=True, slots=True)
class KvEvents:
    """Exact warmth is wanted."""

    wait_ms: float = 20.0
    """How long a request waits for it before the shadow cache decides."""
    most_blocks: int = 1 << 22
    """Per engine; about 200 bytes each."""
    tokenizer_cache_mb: int = 256
    """Texts whose tokens are remembered, per model."""
    load_us_per_token: LoadTimes = field(default_factory=LoadTimes)
    sources: tuple[EventSource, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """How the prompts of a model become tokens."""

    place: Path | str
    template: Path | None = None
    """The chat template where it is not the tokenizer's own, as given to vLLM's `--chat-template`."""


def tokenizer_entry(table: Table) -> TokenizerEntry | None:
    """`tokenizer` and `chat_template` of a model."""
    place, template = table.get("tokenizer", tokenizer, None), table.get("chat_template", file, None)
    if template is not None and not isinstance(place, Path):
        table.fault("chat_template", "is of use only with a tokenizer's folder: a pod has its own")
    return TokenizerEntry(place, template) if place is not None else None


def kv_events(root: Table) -> KvEvents | None:
    """`kv_events: true`, or a mapping of what is to be otherwise; absent or false: the shadow caches decide."""
    if not root.get("kv_events", lambda value: isinstance(value, dict) or flag(value), default=False):
        return None
    if root.get("kv_events", lambda value: value is True, default=False):
        return KvEvents()
    table = root.table("kv_events")
    if table is None:  # pragma: no cover - only a mapping comes here
        return None
    usual = KvEvents()
    loads = table.table("load_us_per_token")
    found = KvEvents(
        wait_ms=table.get("wait_ms", not_negative, usual.wait_ms),
        most_blocks=table.get("most_blocks", positive(whole), usual.most_blocks),
        tokenizer_cache_mb=table.get("tokenizer_cache_mb", positive(whole), usual.tokenizer_cache_mb),
        load_us_per_token=read_fields(loads, usual.load_us_per_token) if loads else usual.load_us_per_token,
        sources=tuple(map(_source, table.tables("sources"))),
    )
    table.close()
    return found


def _source(table: Table) -> EventSource:
    found = EventSource(
        pod=table.need("pod", pod_url, ""),
        endpoint=table.need("endpoint", endpoint, ""),
        replay_endpoint=table.get("replay_endpoint", endpoint, None),
        topic=table.get("topic", lambda value: value if value == "" else text(value), ""),
    )
    table.close()
    return found


def endpoint(value: object) -> str:
    """A ZeroMQ address: `tcp://HOST:PORT` or `ipc://PATH`."""
    words = text(value)
    if words.startswith("ipc://") and len(words) > len("ipc://"):
        return words
    try:
        parts = urlsplit(words.replace("*", "0.0.0.0"))  # noqa: S104 - only looked at
        port = parts.port
    except ValueError:
        port = None
    if not words.startswith("tcp://") or not port:
        raise Wrong(f"must be tcp://HOST:PORT or ipc://PATH, not `{words}`")
    return words


def tokenizer(value: object) -> Path | str:
    """`pod`, or a folder with a model's `tokenizer.json`."""
    words = text(value)
    if words == POD:
        return POD
    path = Path(words)
    if not (path / "tokenizer.json").is_file():
        raise Wrong(f"must be `pod` or a folder that holds tokenizer.json: `{words}` does not")
    return path

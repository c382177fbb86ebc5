"""What Envoy and the endpoint picker protocol define: header and metadata names, body modes, and endpoints of pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.ext_proc.messages_pb2 import ProcessingRequest, ProtocolConfiguration
from gateway.pipeline.record import Frontend
from routing.pods import Engine, Pod

DESTINATION = "x-gateway-destination-endpoint"
"""Header and metadata key: where Envoy sends the request."""

LB_NAMESPACE = "envoy.lb"
SERVED = "x-gateway-destination-endpoint-served"
"""Metadata key: where it was sent in the end."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"

PREFILLER = "x-prefiller-host-port"
RANK = "x-data-parallel-rank"
PRIORITY = "x-vllm-priority"
REQUEST_ID = "x-request-id"

PATH = ":path"
"""Replaces the path that Envoy forwards."""

ATTRIBUTES = "envoy.filters.http.ext_proc"
UPSTREAM_ADDRESS = "upstream.address"
SOURCE_ADDRESS = "source.address"

REMOVED_HEADERS = (
    *(DESTINATION, SERVED, SUBSET, "x-gateway-destination-endpoint-scores"),
    *(PREFILLER, "x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port"),
    *(RANK, PRIORITY, "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"),
    *("authorization", "x-api-key", "accept-encoding", "x-hearth-return"),
)
"""Never forwarded as a client sent them: they choose a destination, control an engine, or are credentials.

`accept-encoding`: a compressed response cannot be read.
"""


NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX = range(5)
"""As Envoy numbers its body modes."""

NAMES = {
    NONE: "none",
    STREAMED: "streamed",
    BUFFERED: "buffered",
    BUFFERED_PARTIAL: "buffered_partial",
    FULL_DUPLEX: "full_duplex",
}


FRONTENDS = {
    (request, response): Frontend("extproc", f"{NAMES[request]}/{NAMES[response]}")
    for request in NAMES
    for response in NAMES
}


class ResponseVisibility(Enum):
    """How much of a response is visible, and whether it can be changed."""

    HEADERS_ONLY = "blind"
    """Headers only: usage is estimated."""
    READ_ONLY = "watching"
    """All of it, but it cannot be changed: usage is exact."""
    FULL = "full"
    """All of it, and it can be changed: usage is exact, limits end it, errors have the form of the client's API."""


@dataclass(frozen=True, slots=True)
class BodyModes:
    """Body modes of one stream."""

    request: int
    response: int
    sends_body_early: bool = False
    """STREAMED: the body is sent without waiting for the response to the headers."""

    @property
    def visibility(self) -> ResponseVisibility:
        if self.response == NONE:
            return ResponseVisibility.HEADERS_ONLY
        return ResponseVisibility.FULL if self.response == FULL_DUPLEX else ResponseVisibility.READ_ONLY

    @property
    def answers_headers_first(self) -> bool:
        """Whether no body is sent before the headers are answered."""
        return self.request in (BUFFERED, BUFFERED_PARTIAL) or (self.request == STREAMED and not self.sends_body_early)

    @property
    def frontend(self) -> Frontend:
        """Its name on a receipt."""
        return FRONTENDS[self.request, self.response]


DEFAULT_MODES = BodyModes(FULL_DUPLEX, FULL_DUPLEX)
"""Default: what gateways configure for an endpoint picker."""

_KNOWN = {
    (request, response, unasked): BodyModes(request, response, unasked)
    for request in NAMES
    for response in NAMES
    for unasked in (False, True)
}


def modes_of(config: ProtocolConfiguration) -> BodyModes:
    """Return the modes of a stream's first message; unknown ones count as full duplex."""
    requested = (
        config.request_body_mode,
        config.response_body_mode,
        config.send_body_without_waiting_for_header_response,
    )
    return _KNOWN.get(requested, DEFAULT_MODES)


@lru_cache(maxsize=8192)
def endpoint_of(url: str) -> str:
    """Return `host:port` of a pod's URL."""
    return urlsplit(url).netloc


def subset_of(message: ProcessingRequest, pods: Iterable[Pod]) -> frozenset[str] | None:
    """Return the URLs of the pods that a subset hint allows; None without a hint.

    A bare address allows every port there. Names that are no known pod are ignored: a hint may allow none.
    """
    hint = message.metadata_context.filter_metadata.get(SUBSET_NAMESPACE)
    if hint is None or (value := hint.fields.get(SUBSET)) is None:
        return None
    texts = [each.string_value for each in value.list_value.values] or value.string_value.split(",")
    wanted = {each.strip() for each in texts if each.strip()}
    found = ((pod.url, endpoint_of(pod.url)) for pod in pods)
    return frozenset(url for url, endpoint in found if endpoint in wanted or endpoint.rpartition(":")[0] in wanted)


def engine_at(pods: Iterable[Pod], endpoint: str, *, rank: int | None) -> Engine | None:
    """Return the engine behind an endpoint: the one of this rank, else the first; None if it is no known pod."""
    engines = next((pod.engines for pod in pods if endpoint_of(pod.url) == endpoint), ())
    return next((engine for engine in engines if engine.rank == rank), engines[0] if engines else None)


def served_by(message: ProcessingRequest) -> str:
    """Return the endpoint that served a request; empty if Envoy does not report it."""
    if message.HasField("metadata_context"):
        held = message.metadata_context.filter_metadata.get(LB_NAMESPACE)
        if held is not None and (value := held.fields.get(SERVED)) is not None:
            return value.string_value
    attributes = message.attributes.get(ATTRIBUTES)
    value = None if attributes is None else attributes.fields.get(UPSTREAM_ADDRESS)
    return "" if value is None else value.string_value


def source_of(message: ProcessingRequest) -> str:
    """Return the client address that Envoy reports (`request_attributes`), empty without one."""
    attributes = message.attributes.get(ATTRIBUTES)
    value = None if attributes is None else attributes.fields.get(SOURCE_ADDRESS)
    return "" if value is None else value.string_value.rpartition(":")[0].strip("[]")

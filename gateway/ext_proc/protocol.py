"""What Envoy and the endpoint picker protocol define: header and metadata names, body modes, and endpoints of pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.ext_proc.messages_pb2 import ProcessingRequest, ProtocolConfiguration
from gateway.pipeline.outcome import Shell
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
"""Envoy forwards the path that it was sent unless it is told another."""

ATTRIBUTES = "envoy.filters.http.ext_proc"
UPSTREAM_ADDRESS = "upstream.address"
SOURCE_ADDRESS = "source.address"

NOT_THE_CLIENTS = (
    *(DESTINATION, SERVED, SUBSET, "x-gateway-destination-endpoint-scores"),
    *(PREFILLER, "x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port"),
    *(RANK, PRIORITY, "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"),
    *("authorization", "x-api-key", "accept-encoding"),
)
"""Never passed on as a client sent them: they choose a destination, steer an engine, or are keys that we check.

An answer that is compressed tells nothing.
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


SHELLS = {
    (request, response): Shell("extproc", f"{NAMES[request]}/{NAMES[response]}")
    for request in NAMES
    for response in NAMES
}


class Sight(Enum):
    """How much of an answer we see, and may do about it."""

    BLIND = "blind"
    """Its head: what it took is estimated."""
    WATCHING = "watching"
    """All of it, and nothing of it can be changed: settled exactly."""
    FULL = "full"
    """All of it goes through us: settled exactly, cut at a limit, told in the client's dialect where it failed."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Of one stream."""

    request: int
    response: int
    body_comes_unasked: bool = False
    """STREAMED: the body is sent without waiting for what is said about the headers."""

    @property
    def sight(self) -> Sight:
        if self.response == NONE:
            return Sight.BLIND
        return Sight.FULL if self.response == FULL_DUPLEX else Sight.WATCHING

    @property
    def answers_headers_first(self) -> bool:
        """Whether no body comes before the headers are answered."""
        return self.request in (BUFFERED, BUFFERED_PARTIAL) or (
            self.request == STREAMED and not self.body_comes_unasked
        )

    @property
    def shell(self) -> Shell:
        """How it is called on a receipt."""
        return SHELLS[self.request, self.response]


USUAL = Modes(FULL_DUPLEX, FULL_DUPLEX)
"""Where an Envoy does not say: what gateways set up for an endpoint picker."""

_KNOWN = {
    (request, response, unasked): Modes(request, response, unasked)
    for request in NAMES
    for response in NAMES
    for unasked in (False, True)
}


def modes_of(config: ProtocolConfiguration) -> Modes:
    """What a stream's first message says; a mode that is newer than we are is taken as full duplex."""
    asked = (
        config.request_body_mode,
        config.response_body_mode,
        config.send_body_without_waiting_for_header_response,
    )
    return _KNOWN.get(asked, USUAL)


@lru_cache(maxsize=8192)
def endpoint_of(url: str) -> str:
    """`host:port` of a pod's URL."""
    return urlsplit(url).netloc


def subset_of(told: ProcessingRequest, pods: Iterable[Pod]) -> frozenset[str] | None:
    """URLs of the pods that a gateway's hint leaves to choose from, None where it gave none.

    Ports count where the hint names them; a bare address means every port there. A name that is no pod of ours is
    nobody: a hint that fits none leaves none.
    """
    hint = told.metadata_context.filter_metadata.get(SUBSET_NAMESPACE)
    if hint is None or (value := hint.fields.get(SUBSET)) is None:
        return None
    said = [each.string_value for each in value.list_value.values] or value.string_value.split(",")
    wanted = {each.strip() for each in said if each.strip()}
    found = ((pod.url, endpoint_of(pod.url)) for pod in pods)
    return frozenset(url for url, endpoint in found if endpoint in wanted or endpoint.rpartition(":")[0] in wanted)


def engine_at(pods: Iterable[Pod], endpoint: str, *, rank: int | None) -> Engine | None:
    """The engine behind an endpoint: of several the one of this rank, else the first; None where it is no pod."""
    engines = next((pod.engines for pod in pods if endpoint_of(pod.url) == endpoint), ())
    return next((engine for engine in engines if engine.rank == rank), engines[0] if engines else None)


def served_by(told: ProcessingRequest) -> str:
    """Where Envoy sent a request in the end, as far as it says; empty where it does not."""
    if told.HasField("metadata_context"):
        held = told.metadata_context.filter_metadata.get(LB_NAMESPACE)
        if held is not None and (value := held.fields.get(SERVED)) is not None:
            return value.string_value
    attributes = told.attributes.get(ATTRIBUTES)
    value = None if attributes is None else attributes.fields.get(UPSTREAM_ADDRESS)
    return "" if value is None else value.string_value


def source_of(told: ProcessingRequest) -> str:
    """The address that a request came to Envoy from, where Envoy was told to say so (`request_attributes`)."""
    attributes = told.attributes.get(ATTRIBUTES)
    value = None if attributes is None else attributes.fields.get(SOURCE_ADDRESS)
    return "" if value is None else value.string_value.rpartition(":")[0].strip("[]")

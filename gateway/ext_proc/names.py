"""The names that Envoy, the endpoint picker protocol and llm-d's sidecars know things by."""

from __future__ import annotations

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

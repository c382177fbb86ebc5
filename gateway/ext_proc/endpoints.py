"""Pods as Envoy knows them, by `ip:port`; and what Envoy tells of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.ext_proc import names
from gateway.ext_proc.messages_pb2 import ProcessingRequest
from routing.pods import Engine, Pod


@lru_cache(maxsize=8192)
def endpoint_of(url: str) -> str:
    """`host:port` of a pod's URL."""
    return urlsplit(url).netloc


def subset_of(told: ProcessingRequest, pods: Iterable[Pod]) -> frozenset[str] | None:
    """URLs of the pods that a gateway's hint leaves to choose from, None where it gave none.

    Ports count where the hint names them; a bare address means every port there. A name that is no pod of ours is
    nobody: a hint that fits none leaves none.
    """
    hint = told.metadata_context.filter_metadata.get(names.SUBSET_NAMESPACE)
    if hint is None or (value := hint.fields.get(names.SUBSET)) is None:
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
        held = told.metadata_context.filter_metadata.get(names.LB_NAMESPACE)
        if held is not None and (value := held.fields.get(names.SERVED)) is not None:
            return value.string_value
    attributes = told.attributes.get(names.ATTRIBUTES)
    value = None if attributes is None else attributes.fields.get(names.UPSTREAM_ADDRESS)
    return "" if value is None else value.string_value


def source_of(told: ProcessingRequest) -> str:
    """The address that a request came to Envoy from, where Envoy was told to say so (`request_attributes`)."""
    attributes = told.attributes.get(names.ATTRIBUTES)
    value = None if attributes is None else attributes.fields.get(names.SOURCE_ADDRESS)
    return "" if value is None else value.string_value.rpartition(":")[0].strip("[]")

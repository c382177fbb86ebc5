"""The words of the sources that ask others: DNS, the registry in Redis, Kubernetes. Each reader makes one place."""

from __future__ import annotations

import re
from typing import Any

from gateway.config.fields import address, file, pod_url, redis_url
from gateway.discovery.locations import DnsPlace, KubernetesPlace, RegistryPlace
from routing.facts import NO_FACTS, WORDS, BadFacts, PodFacts, read_facts
from tenancy.document import Table, Wrong, flag, one_of, positive, text, whole
from tenancy.document import number as any_number

SCHEMES = ("http", "https")

_NAME = re.compile(r"(?=.{1,254}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
"""Of hosts and services in DNS."""

_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""How Kubernetes names what it holds."""


def dns_place(table: Table) -> DnsPlace:
    """`{name, port}` for A and AAAA records, `{name}` alone for SRV records; with the facts of all its pods."""
    usual = DnsPlace("")
    found = DnsPlace(
        name=table.need("name", _dns_name, ""),
        port=table.get("port", port, None),
        scheme=table.get("scheme", one_of(SCHEMES), usual.scheme),
        servers=table.each("servers", _server) or (),
        timeout_s=table.get("timeout_s", positive(any_number), usual.timeout_s),
        longest_s=table.get("longest_s", positive(any_number), usual.longest_s),
        pool=table.get("pool", text, None),
        facts=_facts(table),
    )
    if found.name and found.port is None and not found.name.startswith("_"):
        table.fault("port", f"is missing: only SRV records, as of `_http._tcp.{found.name}`, say a port themselves")
    table.close()
    return found


def registry_place(table: Table) -> RegistryPlace:
    """`{url, keep_s}`, both of which may be left out."""
    found = RegistryPlace(
        url=table.get("url", lambda value: redis_url(value).value, None),
        keep_s=table.get("keep_s", positive(any_number), RegistryPlace().keep_s),
    )
    table.close()
    return found


def kubernetes_place(table: Table, pools: tuple[str, ...]) -> KubernetesPlace:
    """One namespace. `pools`: those that models name, which are followed where nothing else is said."""
    usual = KubernetesPlace()
    selector, service = table.get("selector", _selector, None), table.get("service", _object_name, None)
    named = table.each("inference_pools", _object_name)
    if named is None and selector is None and service is None:
        named = pools
    if not (selector or service or named):
        table.blame("says not which pods: name a selector, a service or inference_pools, or a model's inference_pool")
    found = KubernetesPlace(
        namespace=table.get("namespace", _object_name, None),
        selector=selector,
        service=service,
        inference_pools=named or (),
        port=table.get("port", port, None),
        scheme=table.get("scheme", one_of(SCHEMES), usual.scheme),
        api=table.get("api", pod_url, None),
        token_file=table.get("token_file", file, None),
        ca_file=table.get("ca_file", file, None),
        region_label=table.get("region_label", text, usual.region_label),
        zone_label=table.get("zone_label", text, usual.zone_label),
        rack_label=table.get("rack_label", text, usual.rack_label),
        nodes=table.get("nodes", flag, default=usual.nodes),
    )
    table.close()
    return found


def port(value: object) -> int:
    """Where a pod listens."""
    found = whole(value)
    if not 1 <= found <= 65_535:
        raise Wrong(f"`{found}` is no port (1 to 65535)")
    return found


def _facts(table: Table) -> PodFacts:
    said: dict[str, Any] = {word: table.get(word, lambda value: value, None) for word in sorted(WORDS)}
    try:
        return read_facts(said)
    except BadFacts as bad:
        for fault in bad.faults:
            word, _, words = fault.partition(": ")
            table.fault(word, words)
        return NO_FACTS


def _dns_name(value: object) -> str:
    found = text(value).lower()
    if not _NAME.fullmatch(found):
        raise Wrong(f"`{found}` is no name in DNS")
    return found


def _server(value: object) -> str:
    """An address of a name server, with a port where it is not 53."""
    words = text(value)
    found = address(words if ":" in words else f"{words}:53")
    return str(found)


def _object_name(value: object) -> str:
    found = text(value)
    if not _OBJECT.fullmatch(found):
        raise Wrong(f"`{found}` is no name in Kubernetes (lower case, digits, `-` and `.`)")
    return found


def _selector(value: object) -> str:
    """Of labels; a mapping is equality of each."""
    if isinstance(value, dict):
        return ",".join(f"{text(key)}={text(held)}" for key, held in value.items())
    found = text(value)
    if not re.fullmatch(r"[A-Za-z0-9_./,=!() -]+", found):
        raise Wrong(f"`{found}` is no label selector, as `app=vllm,tier!=test`")
    return found

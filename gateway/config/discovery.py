"""The section `discovery`: values, reader and JSON Schema of the sources of pods.

A source is static, a file, DNS, the agents' registry in Redis, or Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.config.fields import (
    parse_address,
    parse_file,
    parse_pod_base_url,
    parse_redis_secret,
    parse_scheduling_policy,
    read_switch,
)
from routing.facts import FACT_NAMES, NO_FACTS, InvalidFacts, PodFacts, read_facts
from routing.pods import PodState
from tenancy.document import DocumentTable, InvalidValue, flag, integer, one_of, positive, text
from tenancy.document import number as any_number
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, COUNT, FLAG, NAMES, TEXT


@dataclass(frozen=True, slots=True)
class DiscoveredPod:
    """A pod that should exist, as one source knows it."""

    url: str
    pool: str | None = None
    """The configured pool it was discovered for, if any."""
    facts: PodFacts = NO_FACTS
    takes_priority: bool = False
    """Its engine was started with `--scheduling-policy priority`, which engines do not report."""
    held: PodState | None = None
    """`UNREADY` or `DRAINING` if its source forbids new requests, whatever its own /health answers."""

    @property
    def region(self) -> str | None:
        return self.facts.region


@dataclass(frozen=True, slots=True)
class DnsSourceConfig:
    """A DNS name whose addresses or SRV records are pods."""

    name: str
    port: int | None = None
    """Port of the pods behind A and AAAA records; None for SRV records, which contain it."""
    scheme: str = "http"
    servers: tuple[str, ...] = ()
    """Name servers as HOST:PORT; empty for those of the system."""
    timeout_s: float = 2.0
    max_interval_s: float = 30.0
    """Maximum seconds between two queries, however long the TTL."""
    pool: str | None = None
    facts: PodFacts = NO_FACTS
    """Facts of all pods behind the name: DNS knows addresses only."""


@dataclass(frozen=True, slots=True)
class RegistrySourceConfig:
    """The Redis in which agents on GPU nodes register their pods."""

    url: str | None = field(default=None, repr=False)
    """URL of a separate Redis, which may hold a password; None for the one that gateways share."""
    stale_ttl_s: float = 3600.0
    """Seconds that the last list stays valid while Redis does not answer."""


@dataclass(frozen=True, slots=True)
class KubernetesSourceConfig:
    """Pods of one namespace, selected by labels, a service's EndpointSlices, or InferencePools."""

    namespace: str | None = None
    """Namespace; None: the gateway's own, from the service account's folder."""
    selector: str | None = None
    """Label selector as for `kubectl get pods -l`."""
    service: str | None = None
    inference_pools: tuple[str, ...] = ()
    port: int | None = None
    """Port of pods found by selector; None: their container port `http`, else their only one, else 8000."""
    scheme: str = "http"
    api: str | None = None
    """URL of the API server; None: the cluster we run in."""
    token_file: Path | None = None
    ca_file: Path | None = None
    region_label: str = "topology.kubernetes.io/region"
    zone_label: str = "topology.kubernetes.io/zone"
    rack_label: str = "topology.kubernetes.io/rack"
    nodes: bool = False
    """Whether topology labels that pods lack are read from their nodes; needs permission to read nodes."""
    objectives: str | None = None
    """API group of the InferenceObjectives and InferenceModelRewrites that are followed; None: neither is."""


@dataclass(frozen=True, slots=True)
class DiscoverySources:
    """All sources beside the static list and the file."""

    dns: tuple[DnsSourceConfig, ...] = ()
    registry: RegistrySourceConfig | None = None
    kubernetes: tuple[KubernetesSourceConfig, ...] = ()


NO_SOURCES = DiscoverySources()
"""No other sources."""


SCHEMES = ("http", "https")


OBJECTIVE_GROUPS = ("inference.networking.x-k8s.io", "llm-d.ai")
"""API groups of InferenceObjective and InferenceModelRewrite: up to version 1.5 of the extension, and since."""


POD_KEYS = ("url", "pool", "scheduling_policy")
"""Keys of a pod beside its facts (`routing/facts.py`)."""


def read_discovery(
    section: DocumentTable, pools: tuple[str, ...]
) -> tuple[tuple[DiscoveredPod, ...], Path | None, DiscoverySources]:
    """Read the section into the static pods, the pod file and all other places.

    `pools`: the InferencePools that models name; Kubernetes follows them unless its own keys say otherwise.
    """
    pods: tuple[DiscoveredPod, ...] = ()
    pod_file: Path | None = None
    if (static := section.table("static")) is not None:
        pods = _pods(static)
        static.close()
    if (watched := section.table("file")) is not None:
        pod_file = watched.get_required("path", parse_file, None)
        watched.close()
    places = DiscoverySources(
        dns=tuple(read_dns(each) for each in _several(section, "dns")),
        registry=_registry(section),
        kubernetes=tuple(read_kubernetes(each, pools) for each in _several(section, "kubernetes")),
    )
    section.close()
    return pods, pod_file, places


def _pods(static: DocumentTable) -> tuple[DiscoveredPod, ...]:
    try:
        return unique_pods(static.each("pods", parse_pod) or ())
    except InvalidValue as wrong:
        static.error("pods", str(wrong))
        return ()


def _registry(section: DocumentTable) -> RegistrySourceConfig | None:
    """Read `agent_registry`; `true` selects the Redis that gateways share."""
    found = read_switch(section, "agent_registry")
    if isinstance(found, bool):
        return RegistrySourceConfig() if found else None
    return read_registry(found)


def _several(section: DocumentTable, key: str) -> tuple[DocumentTable, ...]:
    """Read one mapping, or a list of them."""
    if section.get(key, lambda value: isinstance(value, list), default=False):
        return section.tables(key)
    one = section.table(key)
    return (one,) if one is not None else ()


def parse_pod(value: object) -> DiscoveredPod:
    """Parse a pod: its URL, or a mapping with its facts. Raises `InvalidValue`."""
    if not isinstance(value, dict):
        return DiscoveredPod(parse_pod_base_url(value))
    own = {key: _pod_text(key, value[key]) for key in POD_KEYS if value.get(key) is not None}
    try:
        facts = read_facts({str(key): held for key, held in value.items() if key not in POD_KEYS})
    except InvalidFacts as bad:
        raise InvalidValue(str(bad)) from None
    policy = own.get("scheduling_policy", "fcfs")
    return DiscoveredPod(
        parse_pod_base_url(own.get("url")), own.get("pool"), facts, takes_priority=parse_scheduling_policy(policy)
    )


def _pod_text(key: str, held: object) -> str:
    try:
        return text(held)
    except InvalidValue as wrong:
        raise InvalidValue(f"{key}: {wrong}") from None


def unique_pods(found: Iterable[DiscoveredPod]) -> tuple[DiscoveredPod, ...]:
    """Remove duplicates. Raises `InvalidValue` if a pod is listed with different facts."""
    once: dict[str, DiscoveredPod] = {}
    for pod in found:
        if once.setdefault(pod.url, pod) != pod:
            raise InvalidValue(f"{pod.url}: duplicate entry with different settings")
    return tuple(once.values())


def read_dns(section: DocumentTable) -> DnsSourceConfig:
    """Read one entry of `dns`: with `port` for A and AAAA records, without for SRV records."""
    defaults = DnsSourceConfig("")
    found = DnsSourceConfig(
        name=section.get_required("name", _dns_name, ""),
        port=section.get("port", parse_port, None),
        scheme=section.get("scheme", one_of(SCHEMES), defaults.scheme),
        servers=section.each("servers", _server) or (),
        timeout_s=section.get("timeout_s", positive(any_number), defaults.timeout_s),
        max_interval_s=section.get("max_interval_s", positive(any_number), defaults.max_interval_s),
        pool=section.get("pool", text, None),
        facts=_facts(section),
    )
    if found.name and found.port is None and not found.name.startswith("_"):
        section.error("port", f"is missing: only SRV records, as of `_http._tcp.{found.name}`, contain a port")
    section.close()
    return found


def read_registry(section: DocumentTable) -> RegistrySourceConfig:
    """Read `agent_registry`: `{url, stale_ttl_s}`, both optional."""
    found = RegistrySourceConfig(
        url=section.get("url", lambda value: parse_redis_secret(value).value, None),
        stale_ttl_s=section.get("stale_ttl_s", positive(any_number), RegistrySourceConfig().stale_ttl_s),
    )
    section.close()
    return found


def read_kubernetes(section: DocumentTable, pools: tuple[str, ...]) -> KubernetesSourceConfig:
    """Read one entry of `kubernetes`. `pools`: the InferencePools that models name, used without other selectors."""
    defaults = KubernetesSourceConfig()
    selector, service = section.get("selector", _selector, None), section.get("service", _object_name, None)
    named = section.each("inference_pools", _object_name)
    if named is None and selector is None and service is None:
        named = pools
    if not (selector or service or named):
        section.add_error("set one of selector, service, inference_pools, or a model's inference_pool")
    found = KubernetesSourceConfig(
        namespace=section.get("namespace", _object_name, None),
        selector=selector,
        service=service,
        inference_pools=named or (),
        port=section.get("port", parse_port, None),
        scheme=section.get("scheme", one_of(SCHEMES), defaults.scheme),
        api=section.get("api", parse_pod_base_url, None),
        token_file=section.get("token_file", parse_file, None),
        ca_file=section.get("ca_file", parse_file, None),
        region_label=section.get("region_label", text, defaults.region_label),
        zone_label=section.get("zone_label", text, defaults.zone_label),
        rack_label=section.get("rack_label", text, defaults.rack_label),
        nodes=section.get("nodes", flag, default=defaults.nodes),
        objectives=section.get("objectives", one_of(OBJECTIVE_GROUPS), None),
    )
    if found.objectives and not found.inference_pools:
        section.error("objectives", "needs inference_pools: only their objectives and rewrites count")
    section.close()
    return found


def parse_port(value: object) -> int:
    """Parse a port, 1 to 65535. Raises `InvalidValue`."""
    found = integer(value)
    if not 1 <= found <= 65_535:
        raise InvalidValue(f"`{found}` is not a port (1 to 65535)")
    return found


def _facts(section: DocumentTable) -> PodFacts:
    given_values: dict[str, Any] = {word: section.get(word, lambda value: value, None) for word in sorted(FACT_NAMES)}
    try:
        return read_facts(given_values)
    except InvalidFacts as bad:
        for fault in bad.errors:
            word, _, words = fault.partition(": ")
            section.error(word, words)
        return NO_FACTS


_NAME = re.compile(r"(?=.{1,254}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
"""A DNS name, lower case."""


_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""The name of a Kubernetes object."""


def _dns_name(value: object) -> str:
    found = text(value).lower()
    if not _NAME.fullmatch(found):
        raise InvalidValue(f"`{found}` is not a DNS name")
    return found


def _server(value: object) -> str:
    """Parse the address of a name server; the port is 53 by default."""
    words = text(value)
    found = parse_address(words if ":" in words else f"{words}:53")
    return str(found)


def _object_name(value: object) -> str:
    found = text(value)
    if not _OBJECT.fullmatch(found):
        raise InvalidValue(f"`{found}` is not a Kubernetes name (lower case, digits, `-` and `.`)")
    return found


def _selector(value: object) -> str:
    """Parse a label selector; a mapping means equality of each label."""
    if isinstance(value, dict):
        return ",".join(f"{text(key)}={text(held)}" for key, held in value.items())
    found = text(value)
    if not re.fullmatch(r"[A-Za-z0-9_./,=!() -]+", found):
        raise InvalidValue(f"`{found}` is not a label selector such as `app=vllm,tier!=test`")
    return found


PORT: Schema = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65_535}, COUNT.schema["anyOf"][1]]}


POOL_TEXT = "Name of its pool, in metrics and for autoscalers."

FACT: Schema = {
    "anyOf": [TEXT.schema, {"type": "integer"}, {"type": "boolean"}, {"type": "array", "items": TEXT.schema}]
}


def discovery_schema() -> Schema:
    """Return the schema of `discovery`."""
    scheduling: Schema = {"enum": ["fcfs", "priority"]}
    own: dict[str, Schema] = {
        "url": described(TEXT.schema, "Base URL of the pod: http:// or https://, host and port."),
        "pool": described(TEXT.schema, POOL_TEXT),
        "scheduling_policy": described(scheduling, "What it was started with as --scheduling-policy (default fcfs)."),
    }
    pods: Schema = {
        "type": "array",
        "items": {"anyOf": [TEXT.schema, table(own | facts_schema(), required=("url",))]},
    }
    path = described(TEXT.schema, "Path of the file: a YAML list of pods as under `static.pods`.")
    return table(
        {
            "static": described(
                table({"pods": described(pods, "A URL, or a mapping with the properties of the pod.")}),
                "Pods by URL, with properties that they cannot report.",
            ),
            "file": described(table({"path": path}, required=("path",)), "A file that lists pods, watched."),
            "dns": described(_one_or_several(_dns()), "DNS names whose addresses or SRV records are pods."),
            "agent_registry": described(
                {"anyOf": [FLAG.schema, table({"url": TEXT.schema, "stale_ttl_s": ABOVE_ZERO.schema})]},
                "Pods registered by `hearth agent`; true: in the Redis that gateways share.",
            ),
            "kubernetes": described(_one_or_several(_kubernetes()), "Pods of a namespace, watched."),
        }
    )


def _one_or_several(one: Schema) -> Schema:
    return {"anyOf": [one, {"type": "array", "items": one}]}


def _dns() -> Schema:
    own: dict[str, Schema] = {
        "name": described(TEXT.schema, "DNS name of the pods."),
        "port": described(PORT, "Port of the pods; absent: the name has SRV records, which contain it."),
        "scheme": described({"enum": list(SCHEMES)}, "Scheme of the pods' URLs (default http)."),
        "servers": described(NAMES.schema, "Name servers as HOST:PORT (default: those of the system)."),
        "timeout_s": described(ABOVE_ZERO.schema, "Seconds that a query may take (default 2)."),
        "max_interval_s": described(ABOVE_ZERO.schema, "Maximum seconds between two queries (default 30)."),
        "pool": described(TEXT.schema, POOL_TEXT),
    }
    return table(own | facts_schema(), required=("name",))


def _kubernetes() -> Schema:
    selector: Schema = {"anyOf": [TEXT.schema, {"type": "object", "additionalProperties": TEXT.schema}]}
    texts = {
        "namespace": "Namespace of the pods (default: the gateway's own).",
        "service": "Service whose EndpointSlices list the pods.",
        "api": "URL of the API server (default: that of the cluster the gateway runs in).",
        "token_file": "File with the token for the API server (default: that of the service account).",
        "ca_file": "CA certificates of the API server (default: those of the service account).",
        "region_label": "Label with the region (default topology.kubernetes.io/region).",
        "zone_label": "Label with the zone (default topology.kubernetes.io/zone).",
        "rack_label": "Label with the rack (default topology.kubernetes.io/rack).",
    }
    return table(
        {
            **{key: described(TEXT.schema, text) for key, text in texts.items()},
            "selector": described(selector, "Label selector as for `kubectl get pods -l`, or a mapping of labels."),
            "inference_pools": described(NAMES.schema, "InferencePools whose pods are followed."),
            "port": described(
                PORT, "Port of pods found by selector (default: container port `http`, else their only one, else 8000)."
            ),
            "scheme": described({"enum": list(SCHEMES)}, "Scheme of the pods' URLs (default http)."),
            "nodes": described(
                FLAG.schema, "Read topology labels that pods lack from their nodes; needs permission (default false)."
            ),
            "objectives": described(
                {"enum": list(OBJECTIVE_GROUPS)},
                "API group of the InferenceObjectives and InferenceModelRewrites that are followed (default: none).",
            ),
        }
    )


def facts_schema() -> dict[str, Schema]:
    """Return the schemas of a pod's facts; their allowed values are checked by the reader only."""
    return dict.fromkeys(sorted(FACT_NAMES), FACT)

"""What objects of Kubernetes say of pods. Values in, values out: asks nobody and knows no watch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from gateway.config.discovery import Found, KubernetesPlace
from gateway.discovery.aggregator import facts_over, merged
from gateway.discovery.kubernetes.objects import (
    Endpoint,
    EndpointSlice,
    InferencePool,
    Node,
    Pod,
)
from routing.facts import NO_FACTS, WORDS, BadFacts, PodFacts, read_facts
from routing.pods import Standing

ROLE_LABEL = "llm-d.ai/role"

FACT_PREFIX = "hearth/"
"""Before a fact's word, as label or annotation: `hearth/kv_connector: NixlConnector`."""

PRIORITY = f"{FACT_PREFIX}scheduling_policy"

REVISION_LABELS = ("controller-revision-hash", "pod-template-hash")
"""By which StatefulSets and Deployments tell one rollout's pods from another's."""

USUAL_PORT = 8000
"""vLLM's."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One pod as its object shows it, before it is known which of its ports are asked for."""

    address: str
    ports: tuple[tuple[str, int], ...]
    node: str
    facts: PodFacts
    takes_priority: bool
    held: Standing | None

    def port(self, wanted: int | None) -> int:
        """The wanted one, else the one called `http`, else the only one, else vLLM's."""
        named = dict(self.ports)
        only = self.ports[0][1] if len(self.ports) == 1 else USUAL_PORT
        return wanted or named.get("http", only)

    def found(self, scheme: str, port: int, pool: str | None, nodes: Mapping[str, PodFacts]) -> Found:
        """The engine behind one of its ports; its node says where it stands if it does not itself."""
        facts = facts_over(self.facts, nodes[self.node]) if self.node in nodes else self.facts
        return Found(url(scheme, self.address, port), pool, facts, takes_priority=self.takes_priority, held=self.held)


def read_pod(written: Raw, place: KubernetesPlace) -> Sight | None:
    """A pod, None where it has no address or has ended. Raises ValueError where it is none."""
    pod = msgspec.json.decode(written, type=Pod)
    if not pod.status.pod_ip or pod.status.phase in ("Succeeded", "Failed"):
        return None
    said = {**(pod.metadata.annotations or {}), **(pod.metadata.labels or {})}
    ports = tuple((port.name, port.container_port) for each in pod.spec.containers or () for port in each.ports or ())
    return Sight(
        address=pod.status.pod_ip,
        ports=ports,
        node=pod.spec.node_name,
        facts=_facts(said, pod.spec.node_name, place),
        takes_priority=said.get(PRIORITY) == "priority",
        held=_held(pod),
    )


def read_node(written: Raw, place: KubernetesPlace) -> PodFacts | None:
    """Where a node stands."""
    node = msgspec.json.decode(written, type=Node)
    return _readable(_placed(node.metadata.labels or {}, place))


def read_pool(written: Raw) -> InferencePool:
    """An InferencePool. Raises ValueError where it is none."""
    return msgspec.json.decode(written, type=InferencePool)


def read_slice(written: Raw) -> EndpointSlice:
    """An EndpointSlice. Raises ValueError where it is none."""
    return msgspec.json.decode(written, type=EndpointSlice)


def selector_of(pool: InferencePool) -> str:
    """Of the pool's labels, as a list's query takes it."""
    return ",".join(f"{key}={value}" for key, value in sorted(pool.spec.selector.match_labels.items()))


def found_in_slices(
    slices: Iterable[EndpointSlice], place: KubernetesPlace, nodes: Mapping[str, PodFacts]
) -> tuple[Found, ...]:
    """The endpoints of a service. One that stands in two slices is one, also where it has two kinds of addresses."""
    pods: dict[str, list[Found]] = {}
    for each in sorted(slices, key=lambda each: (each.address_type, each.metadata.name)):
        port = _slice_port(each, place)
        for endpoint in each.endpoints or () if port else ():
            for address in endpoint.addresses[:1]:
                found = _endpoint(endpoint, url(place.scheme, address, port), nodes)
                same = pods.setdefault(endpoint.target_ref.name if endpoint.target_ref else found.url, [])
                if not same or same[0].url == found.url:
                    same.append(found)
    return tuple(merged(pods.values()).values())


def url(scheme: str, address: str, port: int) -> str:
    """As one pod is told from another."""
    return f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}"


def _slice_port(each: EndpointSlice, place: KubernetesPlace) -> int:
    """0 where the slice has no port of use."""
    ports = {port.name or "": port.port for port in each.ports or () if port.port}
    if place.port:
        return place.port if place.port in ports.values() else 0
    return ports.get("http") or next(iter(ports.values()), 0)


def _endpoint(endpoint: Endpoint, at: str, nodes: Mapping[str, PodFacts]) -> Found:
    facts = _readable({"zone": endpoint.zone, "host": endpoint.node_name})
    facts = facts_over(facts, nodes.get(endpoint.node_name or "", NO_FACTS))
    held = Standing.UNREADY if endpoint.conditions.ready is False else None
    return Found(at, facts=facts, held=Standing.DRAINING if endpoint.conditions.terminating else held)


def _held(pod: Pod) -> Standing | None:
    """One that is being deleted finishes what it has; one that is not ready gets nothing either."""
    if pod.metadata.deletion_timestamp is not None:
        return Standing.DRAINING
    ready = next((each.status for each in pod.status.conditions or () if each.type == "Ready"), "False")
    return None if ready == "True" else Standing.UNREADY


def _facts(said: Mapping[str, str], node: str, place: KubernetesPlace) -> PodFacts:
    """What labels and annotations say; a word that makes no sense is as good as not said."""
    known: dict[str, str | None] = {"host": node or None, **_placed(said, place)}
    known["revision"] = next((said[label] for label in REVISION_LABELS if label in said), None)
    known["role"] = said.get(ROLE_LABEL)
    ours = {word.removeprefix(FACT_PREFIX): value for word, value in said.items() if word.startswith(FACT_PREFIX)}
    return _readable(known | {word: value for word, value in ours.items() if word in WORDS})


def _placed(labels: Mapping[str, str], place: KubernetesPlace) -> dict[str, str | None]:
    named = {"region": place.region_label, "zone": place.zone_label, "rack": place.rack_label}
    return {word: labels.get(label) for word, label in named.items()}


def _readable(said: Mapping[str, str | None]) -> PodFacts:
    """The facts that can be read: one bad label must not hide a pod."""
    try:
        return read_facts(said)
    except BadFacts as bad:
        wrong = {fault.partition(":")[0] for fault in bad.faults}
        return read_facts({word: value for word, value in said.items() if word not in wrong})

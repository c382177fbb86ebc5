"""The Kubernetes objects that discovery reads, and how they become discovered pods. Pure: knows no API and no watch.

Each type has the fields that are used, under the names of the API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw, Struct, field

from gateway.config.discovery import DiscoveredPod, KubernetesSourceConfig
from gateway.discovery.aggregator import merge_facts, merge_pods
from routing.facts import FACT_NAMES, NO_FACTS, InvalidFacts, PodFacts, read_facts
from routing.pods import PodState


class ObjectMetadata(Struct, frozen=True, rename="camel"):
    """Metadata of an object."""

    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class ObjectHeader(Struct, frozen=True):
    """Any object: only its metadata."""

    metadata: ObjectMetadata = ObjectMetadata()


class ListMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = field(name="continue", default="")


class ObjectList(Struct, frozen=True):
    """One page of a list; its objects are parsed one by one."""

    metadata: ListMetadata = ListMetadata()
    items: list[Raw] | None = None


class WatchEvent(Struct, frozen=True):
    """One event of a watch."""

    type: str
    object: Raw


class ApiStatus(Struct, frozen=True):
    """The API server's error response."""

    code: int = 0
    reason: str = ""
    message: str = ""


class ContainerPort(Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class Container(Struct, frozen=True):
    name: str = ""
    ports: list[ContainerPort] | None = None


class PodSpec(Struct, frozen=True, rename="camel"):
    containers: list[Container] | None = None
    node_name: str = ""


class PodCondition(Struct, frozen=True):
    type: str
    status: str


class ContainerStatus(Struct, frozen=True):
    name: str = ""
    image_id: str = field(name="imageID", default="")


class PodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    pod_ip: str = field(name="podIP", default="")
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class PodObject(Struct, frozen=True):
    metadata: ObjectMetadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeObject(Struct, frozen=True):
    metadata: ObjectMetadata


class TargetPort(Struct, frozen=True):
    number: int


class LabelSelector(Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str]


class InferencePoolSpec(Struct, frozen=True, rename="camel"):
    selector: LabelSelector
    target_ports: list[TargetPort]


class InferencePool(Struct, frozen=True):
    """A pool of `inference.networking.k8s.io/v1`."""

    metadata: ObjectMetadata
    spec: InferencePoolSpec


class EndpointConditions(Struct, frozen=True):
    """Conditions of an endpoint; a missing one counts as ready."""

    ready: bool | None = None
    terminating: bool | None = None


class TargetRef(Struct, frozen=True):
    name: str = ""


class SliceEndpoint(Struct, frozen=True, rename="camel"):
    addresses: list[str]
    conditions: EndpointConditions = EndpointConditions()
    node_name: str | None = None
    zone: str | None = None
    target_ref: TargetRef | None = None


class EndpointPort(Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class EndpointSlice(Struct, frozen=True, rename="camel"):
    metadata: ObjectMetadata
    address_type: str = "IPv4"
    endpoints: list[SliceEndpoint] | None = None
    ports: list[EndpointPort] | None = None


ROLE_LABEL = "llm-d.ai/role"


FACT_PREFIX = "hearth/"
"""Prefix of a fact as label or annotation: `hearth/kv_connector: NixlConnector`."""


SCHEDULING_POLICY_LABEL = f"{FACT_PREFIX}scheduling_policy"


REVISION_LABELS = ("controller-revision-hash", "pod-template-hash")
"""Labels by which StatefulSets and Deployments distinguish the pods of rollouts."""


DEFAULT_PORT = 8000
"""Default port of vLLM."""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """The fields of a Pod object that matter, before one of its ports is chosen."""

    address: str
    ports: tuple[tuple[str, int], ...]
    node: str
    facts: PodFacts
    takes_priority: bool
    held: PodState | None

    def port(self, wanted: int | None) -> int:
        """Return `wanted`, else the port called `http`, else the only one, else vLLM's default."""
        named = dict(self.ports)
        only = self.ports[0][1] if len(self.ports) == 1 else DEFAULT_PORT
        return wanted or named.get("http", only)

    def to_discovered_pod(
        self, scheme: str, port: int, pool: str | None, nodes: Mapping[str, PodFacts]
    ) -> DiscoveredPod:
        """Return the engine behind a port; topology facts that the pod lacks come from its node."""
        facts = merge_facts(self.facts, nodes[self.node]) if self.node in nodes else self.facts
        return DiscoveredPod(
            pod_address_url(scheme, self.address, port), pool, facts, takes_priority=self.takes_priority, held=self.held
        )


def read_pod(written: Raw, place: KubernetesSourceConfig) -> ObservedPod | None:
    """Parse a Pod. Returns None if it has no address or has ended. Raises ValueError."""
    pod = msgspec.json.decode(written, type=PodObject)
    if not pod.status.pod_ip or pod.status.phase in ("Succeeded", "Failed"):
        return None
    marks = {**(pod.metadata.annotations or {}), **(pod.metadata.labels or {})}
    ports = tuple((port.name, port.container_port) for each in pod.spec.containers or () for port in each.ports or ())
    return ObservedPod(
        address=pod.status.pod_ip,
        ports=ports,
        node=pod.spec.node_name,
        facts=_facts(marks, pod.spec.node_name, place, _engine_image(pod)),
        takes_priority=marks.get(SCHEDULING_POLICY_LABEL) == "priority",
        held=_held(pod),
    )


def read_node(written: Raw, place: KubernetesSourceConfig) -> PodFacts | None:
    """Parse the topology labels of a Node. Raises ValueError."""
    node = msgspec.json.decode(written, type=NodeObject)
    return _readable(_placed(node.metadata.labels or {}, place))


def read_pool(written: Raw) -> InferencePool:
    """Parse an InferencePool. Raises ValueError."""
    return msgspec.json.decode(written, type=InferencePool)


def read_slice(written: Raw) -> EndpointSlice:
    """Parse an EndpointSlice. Raises ValueError."""
    return msgspec.json.decode(written, type=EndpointSlice)


def label_selector(pool: InferencePool) -> str:
    """Return the label selector of a pool in the form of a list query."""
    return ",".join(f"{key}={value}" for key, value in sorted(pool.spec.selector.match_labels.items()))


def pods_of_slices(
    slices: Iterable[EndpointSlice], place: KubernetesSourceConfig, nodes: Mapping[str, PodFacts]
) -> tuple[DiscoveredPod, ...]:
    """Return the endpoints of a service; one in several slices, or with IPv4 and IPv6 addresses, counts once."""
    pods: dict[str, list[DiscoveredPod]] = {}
    for each in sorted(slices, key=lambda each: (each.address_type, each.metadata.name)):
        port = _slice_port(each, place)
        for endpoint in each.endpoints or () if port else ():
            for address in endpoint.addresses[:1]:
                found = _endpoint(endpoint, pod_address_url(place.scheme, address, port), nodes)
                same = pods.setdefault(endpoint.target_ref.name if endpoint.target_ref else found.url, [])
                if not same or same[0].url == found.url:
                    same.append(found)
    return tuple(merge_pods(pods.values()).values())


def pod_address_url(scheme: str, address: str, port: int) -> str:
    """Return the URL that identifies a pod."""
    return f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}"


def _slice_port(each: EndpointSlice, place: KubernetesSourceConfig) -> int:
    """Return the port of a slice's endpoints, 0 if it has none that fits."""
    ports = {port.name or "": port.port for port in each.ports or () if port.port}
    if place.port:
        return place.port if place.port in ports.values() else 0
    return ports.get("http") or next(iter(ports.values()), 0)


def _endpoint(endpoint: SliceEndpoint, at: str, nodes: Mapping[str, PodFacts]) -> DiscoveredPod:
    facts = _readable({"zone": endpoint.zone, "host": endpoint.node_name})
    facts = merge_facts(facts, nodes.get(endpoint.node_name or "", NO_FACTS))
    held = PodState.UNREADY if endpoint.conditions.ready is False else None
    return DiscoveredPod(at, facts=facts, held=PodState.DRAINING if endpoint.conditions.terminating else held)


def _held(pod: PodObject) -> PodState | None:
    """Return DRAINING for a pod that is being deleted, UNREADY for one that is not ready, else None."""
    if pod.metadata.deletion_timestamp is not None:
        return PodState.DRAINING
    ready = next((each.status for each in pod.status.conditions or () if each.type == "Ready"), "False")
    return None if ready == "True" else PodState.UNREADY


def _engine_image(pod: PodObject) -> str | None:
    """Return the image id of the container that has ports, or of the only one; None where that is not clear."""
    statuses = pod.status.container_statuses or ()
    serving = {each.name for each in pod.spec.containers or () if each.ports}
    images = {each.image_id for each in statuses if len(statuses) == 1 or each.name in serving}
    return images.pop() if len(images) == 1 else None


def _facts(marks: Mapping[str, str], node: str, place: KubernetesSourceConfig, image: str | None = None) -> PodFacts:
    """Return the facts in labels and annotations; invalid values are ignored."""
    known: dict[str, str | None] = {"host": node or None, "image_digest": image, **_placed(marks, place)}
    known["revision"] = next((marks[label] for label in REVISION_LABELS if label in marks), None)
    known["role"] = marks.get(ROLE_LABEL)
    ours = {word.removeprefix(FACT_PREFIX): value for word, value in marks.items() if word.startswith(FACT_PREFIX)}
    return _readable(known | {word: value for word, value in ours.items() if word in FACT_NAMES})


def _placed(labels: Mapping[str, str], place: KubernetesSourceConfig) -> dict[str, str | None]:
    named = {"region": place.region_label, "zone": place.zone_label, "rack": place.rack_label}
    return {word: labels.get(label) for word, label in named.items()}


def _readable(marks: Mapping[str, str | None]) -> PodFacts:
    """Return the valid facts: one bad label must not hide a pod."""
    try:
        return read_facts(marks)
    except InvalidFacts as bad:
        wrong = {fault.partition(":")[0] for fault in bad.errors}
        return read_facts({word: value for word, value in marks.items() if word not in wrong})

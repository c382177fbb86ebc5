"""Types of the Kubernetes objects that discovery reads, with the fields it uses; field names are those of the API."""

from __future__ import annotations

from msgspec import Raw, Struct, field


class Metadata(Struct, frozen=True, rename="camel"):
    """Metadata of an object."""

    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class Meta(Struct, frozen=True):
    """Any object: only its metadata."""

    metadata: Metadata = Metadata()


class PageMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = field(name="continue", default="")


class Page(Struct, frozen=True):
    """One page of a list; its objects are parsed one by one."""

    metadata: PageMetadata = PageMetadata()
    items: list[Raw] | None = None


class Event(Struct, frozen=True):
    """One event of a watch."""

    type: str
    object: Raw


class Status(Struct, frozen=True):
    """The API server's error response."""

    code: int = 0
    reason: str = ""
    message: str = ""


class ContainerPort(Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class Container(Struct, frozen=True):
    ports: list[ContainerPort] | None = None


class PodSpec(Struct, frozen=True, rename="camel"):
    containers: list[Container] | None = None
    node_name: str = ""


class Condition(Struct, frozen=True):
    type: str
    status: str


class PodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    pod_ip: str = field(name="podIP", default="")
    conditions: list[Condition] | None = None


class Pod(Struct, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Node(Struct, frozen=True):
    metadata: Metadata


class TargetPort(Struct, frozen=True):
    number: int


class Selector(Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str]


class PoolSpec(Struct, frozen=True, rename="camel"):
    selector: Selector
    target_ports: list[TargetPort]


class InferencePool(Struct, frozen=True):
    """A pool of `inference.networking.k8s.io/v1`."""

    metadata: Metadata
    spec: PoolSpec


class Conditions(Struct, frozen=True):
    """Conditions of an endpoint; a missing one counts as ready."""

    ready: bool | None = None
    terminating: bool | None = None


class TargetRef(Struct, frozen=True):
    name: str = ""


class Endpoint(Struct, frozen=True, rename="camel"):
    addresses: list[str]
    conditions: Conditions = Conditions()
    node_name: str | None = None
    zone: str | None = None
    target_ref: TargetRef | None = None


class EndpointPort(Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class EndpointSlice(Struct, frozen=True, rename="camel"):
    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: list[Endpoint] | None = None
    ports: list[EndpointPort] | None = None

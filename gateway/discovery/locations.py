"""Where the configuration says that pods are to be looked for: one value for each source. Reads and asks nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from routing.facts import NO_FACTS, PodFacts


@dataclass(frozen=True, slots=True)
class DnsPlace:
    """A name whose addresses, or whose SRV records, are pods."""

    name: str
    port: int | None = None
    """Of the pods behind A and AAAA records; None where SRV records say it."""
    scheme: str = "http"
    servers: tuple[str, ...] = ()
    """Name servers as HOST:PORT, those of the system where there is none."""
    timeout_s: float = 2.0
    longest_s: float = 30.0
    """Between two looks, however long the records say that they hold."""
    pool: str | None = None
    facts: PodFacts = NO_FACTS
    """What is known of all of them: DNS tells nothing but where they are."""


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """The Redis in which agents on GPU nodes register the pods beside them."""

    url: str | None = field(default=None, repr=False)
    """Another Redis than the one that gateways share; None for that one. It may hold a password."""
    keep_s: float = 3600.0
    """How long the last list stands while Redis cannot be asked."""


@dataclass(frozen=True, slots=True)
class KubernetesPlace:
    """Pods of one namespace, by labels, by a service's EndpointSlices, or by the pools they are in."""

    namespace: str | None = None
    """None: our own, as the service account's folder says."""
    selector: str | None = None
    """Of labels, as `kubectl get pods -l` takes it."""
    service: str | None = None
    inference_pools: tuple[str, ...] = ()
    port: int | None = None
    """Of pods found by selector; None: their container port `http`, else their only one, else 8000."""
    scheme: str = "http"
    api: str | None = None
    """Of the API server; None: the cluster we run in."""
    token_file: Path | None = None
    ca_file: Path | None = None
    region_label: str = "topology.kubernetes.io/region"
    zone_label: str = "topology.kubernetes.io/zone"
    rack_label: str = "topology.kubernetes.io/rack"
    nodes: bool = False
    """Whether nodes are asked for the labels of place that their pods lack; needs the right to read nodes."""


@dataclass(frozen=True, slots=True)
class Places:
    """All of them beside the static list and the file."""

    dns: tuple[DnsPlace, ...] = ()
    registry: RegistryPlace | None = None
    kubernetes: tuple[KubernetesPlace, ...] = ()


ELSEWHERE = Places()
"""Nowhere else."""

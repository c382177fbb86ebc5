"""Objects of a small cluster, and a source that follows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.config.discovery import KubernetesSourceConfig
from gateway.discovery.kubernetes import KubernetesSource
from gateway.discovery.kubernetes_api import ReflectorIntervals
from gateway.discovery.kubernetes_objectives import InferenceRules
from tests.gateway.discovery.api_server import TOKEN, ApiServer, Object
from tests.gateway.discovery.following import Heard, following

WITHIN = "/namespaces/inference"

PODS = f"/api/v1{WITHIN}/pods"
SLICES = f"/apis/discovery.k8s.io/v1{WITHIN}/endpointslices"
POOLS = f"/apis/inference.networking.k8s.io/v1{WITHIN}/inferencepools"
NODES = "/api/v1/nodes"

QUICK = ReflectorIntervals(
    page_size=100, watch_s=3600, min_backoff_s=0.01, max_backoff_s=0.05, min_watch_s=0.0, debounce_s=0.01
)

VLLM = {"app": "vllm"}


def a_pod(
    name: str,
    address: str | None,
    labels: dict[str, str] | None = None,
    *,
    ready: bool = True,
    deleting: bool = False,
    ports: tuple[tuple[str, int], ...] = (("http", 8000),),
    annotations: dict[str, str] | None = None,
    phase: str = "Running",
    node: str = "n1",
) -> Object:
    """With much that we do not read."""
    metadata: Object = {"name": name, "namespace": "inference", "uid": f"uid-{name}", "labels": labels or dict(VLLM)}
    metadata["managedFields"] = [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]
    metadata["annotations"] = annotations
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    held_ports = [{"name": named, "containerPort": port, "protocol": "TCP"} for named, port in ports]
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    status: Object = {"phase": phase, "conditions": conditions, "hostIP": "10.1.0.1"}
    if address is not None:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    containers = [{"name": "vllm", "image": "vllm/vllm-openai", "ports": held_ports}]
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}, "status": status}


def a_pool(name: str, labels: dict[str, str], *ports: int) -> Object:
    spec = {"selector": {"matchLabels": labels}, "targetPorts": [{"number": port} for port in ports]}
    return {"metadata": {"name": name}, "spec": spec}


def a_slice(name: str, *endpoints: Object, kind: str = "IPv4", port: int = 8000) -> Object:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": kind,
        "ports": [{"name": "metrics", "port": 9000}, {"name": "http", "port": port}],
        "endpoints": list(endpoints),
    }


def an_endpoint(pod: str, address: str, **conditions: bool) -> Object:
    return {
        "addresses": [address],
        "conditions": conditions,
        "nodeName": "n1",
        "zone": "eu-1",
        "targetRef": {"kind": "Pod", "name": pod},
    }


@asynccontextmanager
async def followed(
    server: ApiServer,
    folder: Path,
    pace: ReflectorIntervals = QUICK,
    token: str = TOKEN,
    rules: InferenceRules | None = None,
    **words: Any,
) -> AsyncIterator[Heard]:
    """What the source tells of the namespace, by selector unless something else is said."""
    path = folder / "token"
    path.write_text(f"{token}\n")
    if not words.keys() & {"selector", "service", "inference_pools"}:
        words["selector"] = "app=vllm"
    received = Heard()
    source = KubernetesSource(
        KubernetesSourceConfig("inference", api=server.url, token_file=path, **words),
        log_event=received.log_event,
        clock=asyncio.get_running_loop().time,
        draw=lambda: 0.5,
        pace=pace,
        rules=rules,
    )
    async with following(source, received):
        yield received

"""Pods of a cluster are found as the API server holds them, by labels, services and pools."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.discovery import DiscoveredPod, KubernetesSourceConfig
from gateway.discovery.kubernetes_api import ApiError, ServiceAccount
from routing.facts import PodFacts, Role
from routing.pods import PodState
from tests.gateway.discovery.api_server import ApiServer, api_server
from tests.gateway.discovery.cluster import (
    NODES,
    PODS,
    POOLS,
    SLICES,
    VLLM,
    a_pod,
    a_pool,
    a_slice,
    an_endpoint,
    followed,
)

A, B, C = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as running:
        await running.put(PODS, a_pod("a", "10.0.0.1"))
        yield running


async def test_pods_with_labels_come_and_go(server: ApiServer, tmp_path: Path) -> None:
    """Also one whose labels change; one without an address or at its end is none."""
    async with followed(server, tmp_path) as received:
        await received.hears(A)
        await server.put(PODS, a_pod("b", None))
        await server.put(PODS, a_pod("other", "10.0.0.9", {"app": "other"}))
        await server.put(PODS, a_pod("c", "10.0.0.3"))
        await received.hears(A, C)
        await server.put(PODS, a_pod("b", "10.0.0.2"))
        await received.hears(A, B, C)
        await server.put(PODS, a_pod("a", "10.0.0.1", {"app": "aside"}))
        await server.put(PODS, a_pod("c", "10.0.0.3", phase="Failed"))
        await received.hears(B)
        await server.delete(PODS, "b")
        await received.hears()
    assert received.stated == []
    assert server.lists == 1


async def test_what_labels_report_is_known(server: ApiServer, tmp_path: Path) -> None:
    """Role and place by the usual labels, any fact by our own; nonsense is passed over."""
    labels = VLLM | {
        "llm-d.ai/role": "prefill",
        "topology.kubernetes.io/region": "eu",
        "topology.kubernetes.io/zone": "eu-1",
        "rack": "r7",
        "pod-template-hash": "6d4cf56db6",
        "hearth/tp": "two",
    }
    annotations = {"hearth/kv_connector": "NixlConnector", "hearth/side_channel": "10.0.0.1:5600", "hearth/x": "y"}
    annotations["hearth/scheduling_policy"] = "priority"
    await server.put(PODS, a_pod("a", "10.0.0.1", labels, annotations=annotations, node="gpu-3"))
    facts = PodFacts(
        role=Role.PREFILL,
        region="eu",
        zone="eu-1",
        rack="r7",
        host="gpu-3",
        revision="6d4cf56db6",
        kv_connector="NixlConnector",
        side_channel="10.0.0.1:5600",
    )
    async with followed(server, tmp_path, rack_label="rack") as received:
        await received.hears(A)
        assert received.reported[-1] == (DiscoveredPod(A, facts=facts, takes_priority=True),)


async def test_a_pod_that_is_leaving_or_not_ready_is_held(server: ApiServer, tmp_path: Path) -> None:
    """Kubernetes knows it before its /health does."""

    def held() -> list[PodState | None]:
        return [pod.held for pod in received.reported[-1]]

    async with followed(server, tmp_path) as received:
        await received.hears(A)
        await server.put(PODS, a_pod("a", "10.0.0.1", ready=False))
        await received.until(lambda: held() == [PodState.UNREADY])
        await server.put(PODS, a_pod("a", "10.0.0.1"))
        await received.until(lambda: held() == [None])
        await server.put(PODS, a_pod("a", "10.0.0.1", deleting=True))
        await received.until(lambda: held() == [PodState.DRAINING])


async def test_the_port_is_the_named_the_only_or_the_default_one(server: ApiServer, tmp_path: Path) -> None:
    """Unless the configuration says it."""
    await server.put(PODS, a_pod("b", "10.0.0.2", ports=(("metrics", 9000), ("http", 8001))))
    await server.put(PODS, a_pod("c", "10.0.0.3", ports=(("api", 8003),)))
    await server.put(PODS, a_pod("d", "fd00::4", ports=()))
    async with followed(server, tmp_path) as received:
        await received.hears(A, "http://10.0.0.2:8001", "http://10.0.0.3:8003", "http://[fd00::4]:8000")
    async with followed(server, tmp_path, port=9000, scheme="https") as received:
        await received.hears(*(f"https://{host}:9000" for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "[fd00::4]")))


async def test_a_pool_has_the_pods_it_selects(server: ApiServer, tmp_path: Path) -> None:
    """Each port an engine of its own; another selector, other pods, and the old ones until these are known."""
    await server.put(PODS, a_pod("b", "10.0.0.2", {"app": "vllm", "model": "big"}))
    async with followed(server, tmp_path, inference_pools=("p",)) as received:
        await received.until(lambda: received.reported[-1:] == [()])
        await server.put(POOLS, a_pool("other", VLLM, 8000))
        await server.put(POOLS, a_pool("p", VLLM, 8000, 8001))
        await received.hears(A, "http://10.0.0.1:8001", B, "http://10.0.0.2:8001")
        assert {pod.pool for pod in received.reported[-1]} == {"p"}
        before = len(received.reported)
        await server.put(POOLS, a_pool("p", {"model": "big"}, 8000))
        await received.hears(B)
        assert all(reported for reported in received.reported[before:])
        await server.put(PODS, a_pod("c", "10.0.0.3", {"model": "big"}))
        await received.hears(B, C)
        await server.delete(POOLS, "p")
        await received.hears()


async def test_a_service_has_the_endpoints_in_its_slices(server: ApiServer, tmp_path: Path) -> None:
    """Once each, though slices may share them for a moment and a pod may have two kinds of addresses."""
    one, two = an_endpoint("a", "10.0.0.1"), an_endpoint("b", "10.0.0.2", ready=False)
    await server.put(SLICES, a_slice("vllm-1", one, two))
    await server.put(SLICES, a_slice("vllm-2", one, an_endpoint("c", "10.0.0.3", ready=True)))
    await server.put(SLICES, a_slice("vllm-6", an_endpoint("a", "fd00::1"), kind="IPv6"))
    async with followed(server, tmp_path, service="vllm") as received:
        await received.hears(A, B, C)
        facts = PodFacts(host="n1", zone="eu-1")
        unready = DiscoveredPod(B, facts=facts, held=PodState.UNREADY)
        assert received.reported[-1] == (DiscoveredPod(A, facts=facts), unready, DiscoveredPod(C, facts=facts))
        leaving = an_endpoint("c", "10.0.0.3", ready=False, serving=True, terminating=True)
        await server.put(SLICES, a_slice("vllm-2", leaving))
        await received.until(lambda: received.reported[-1][-1].held is PodState.DRAINING)
        await server.delete(SLICES, "vllm-2")
        await received.hears(A, B)


async def test_nodes_report_where_pods_stand(server: ApiServer, tmp_path: Path) -> None:
    """Where their own labels do not."""
    labels = {"topology.kubernetes.io/region": "eu", "topology.kubernetes.io/zone": "eu-1"}
    await server.put(NODES, {"metadata": {"name": "n1", "labels": labels}})
    await server.put(PODS, a_pod("b", "10.0.0.2", VLLM | {"topology.kubernetes.io/zone": "mine"}))
    async with followed(server, tmp_path, nodes=True) as received:
        await received.hears(A, B)
        assert [(pod.facts.region, pod.facts.zone) for pod in received.reported[-1]] == [("eu", "eu-1"), ("eu", "mine")]


def test_in_a_cluster_everything_is_where_pods_are_reported(tmp_path: Path) -> None:
    """Address by environment, namespace, token and CA in the service account's folder."""
    for name, text in (("namespace", "mine\n"), ("token", "t1"), ("ca.crt", "x")):
        (tmp_path / name).write_text(text)
    inside = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    account = ServiceAccount.from_config(KubernetesSourceConfig(), inside, tmp_path)
    assert (account.url, account.namespace, account.ca_file) == ("https://[fd00::1]:6443", "mine", tmp_path / "ca.crt")
    assert account.headers()["authorization"] == "Bearer t1"
    (tmp_path / "token").write_text("t2")
    assert account.headers()["authorization"] == "Bearer t2"
    with pytest.raises(ApiError, match="we run in no cluster"):
        ServiceAccount.from_config(KubernetesSourceConfig(), {}, tmp_path)

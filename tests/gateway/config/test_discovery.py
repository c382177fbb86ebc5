"""What the sources of pods are told, and what is said of a configuration that tells them nonsense."""

from pathlib import Path

import pytest

from gateway.config.discovery import DnsSourceConfig, KubernetesSourceConfig, RegistrySourceConfig
from gateway.config.loading import load_settings
from gateway.config.settings import Settings, read_settings, show_settings
from routing.facts import PodFacts, Role
from tenancy.document import InvalidDocument


def settings(source: str) -> Settings:
    found, root = read_settings(source, {})
    assert not root.errors, list(map(str, root.errors))
    return found


def faults(source: str) -> list[str]:
    return [str(fault) for fault in read_settings(source, {})[1].errors]


def test_every_source_is_read() -> None:
    """One of a kind as a mapping, several as a list."""
    places = settings(
        """
discovery:
  dns:
    - {name: vllm.inference.svc.cluster.local, port: 8000, region: eu, role: prefill, pool: p}
    - {name: _http._tcp.pods.example, servers: [127.0.0.1:5353, 10.0.0.2, "[::1]:53"]}
  agent_registry: {url: "redis://:secret@h", stale_ttl_s: 60}
  kubernetes: {namespace: inference, selector: "app=vllm,tier!=test", port: 8001, api: "https://10.0.0.1:6443"}
"""
    ).sources
    assert places.dns == (
        DnsSourceConfig(
            "vllm.inference.svc.cluster.local", 8000, pool="p", facts=PodFacts(region="eu", role=Role.PREFILL)
        ),
        DnsSourceConfig("_http._tcp.pods.example", servers=("127.0.0.1:5353", "10.0.0.2:53", "[::1]:53")),
    )
    assert places.registry == RegistrySourceConfig("redis://:secret@h", 60)
    assert places.kubernetes == (
        KubernetesSourceConfig("inference", "app=vllm,tier!=test", port=8001, api="https://10.0.0.1:6443"),
    )


def test_the_registry_may_be_the_redis_of_all() -> None:
    """`true` is enough, wherever that Redis was named; without one it is a fault."""
    assert settings("redis: redis://h\ndiscovery: {agent_registry: true}").sources.registry == RegistrySourceConfig()
    assert settings("discovery: {agent_registry: false}").sources.registry is None


def test_a_registry_without_redis_is_a_fault(tmp_path: Path) -> None:
    """Also where flags and environment might have named it."""
    config = tmp_path / "hearth.yaml"
    config.write_text("discovery: {agent_registry: {}}\n")
    with pytest.raises(InvalidDocument, match=r"discovery\.agent_registry: names no Redis"):
        load_settings({}, {}, config)
    assert load_settings({}, {"HEARTH_REDIS": "redis://h"}, config).sources.registry == RegistrySourceConfig()


def test_pools_of_models_are_followed() -> None:
    """Where the source itself names none."""
    found = settings(
        "model_list: [{model_name: a, inference_pool: p}, {model_name: b, inference_pool: q}, {model_name: c}]\n"
        "discovery: {kubernetes: [{namespace: x}, {namespace: y, selector: {app: vllm}}]}"
    )
    assert [(place.inference_pools, place.selector) for place in found.sources.kubernetes] == [
        (("p", "q"), None),
        ((), "app=vllm"),
    ]
    assert [entry.inference_pool for entry in found.models] == ["p", "q", None]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("dns: {}", "discovery.dns.name: is missing"),
        ("dns: {name: 'a b'}", "discovery.dns.name: `a b` is not a DNS name"),
        (
            "dns: {name: a}",
            "discovery.dns.port: is missing: only SRV records, as of `_http._tcp.a`, contain a port",
        ),
        ("dns: [{name: a, port: 70000}]", "discovery.dns[0].port: `70000` is not a port (1 to 65535)"),
        ("dns: {name: a, port: 1, servers: [':5']}", "discovery.dns.servers[0]: must be HOST:PORT, not `:5`"),
        ("dns: {name: a, port: 1, role: cook}", "discovery.dns.role: must be one of either, prefill, decode"),
        ("agent_registry: {stale_ttl_s: 0}", "discovery.agent_registry.stale_ttl_s: must be above 0"),
        (
            "agent_registry: {url: 'http://secret@h'}",
            "discovery.agent_registry.url: must be a URL beginning with redis://",
        ),
        ("kubernetes: {}", "discovery.kubernetes: set one of selector, service, inference_pools"),
        ("kubernetes: {service: S}", "discovery.kubernetes.service: `S` is not a Kubernetes name"),
        ("kubernetes: {selector: 'a\"b'}", 'discovery.kubernetes.selector: `a"b` is not a label selector'),
        ("kubernetes: {selector: a, tokenn: x}", "discovery.kubernetes.tokenn: unknown key"),
        ("kubernetes: {inference_pools: [p], objectives: k8s}", "discovery.kubernetes.objectives: `k8s` is none of"),
        (
            "kubernetes: {selector: a, objectives: llm-d.ai}",
            "discovery.kubernetes.objectives: needs inference_pools",
        ),
        ("consul: {}", "discovery.consul: unknown key"),
    ],
)
def test_nonsense_is_reported_with_its_path(source: str, words: str) -> None:
    """Nothing secret stands in what is said."""
    stated = faults(f"discovery: {{{source}}}")
    assert any(fault.startswith(words) for fault in stated), stated
    assert not any("secret" in fault for fault in stated)


def test_a_password_in_the_registry_is_not_shown() -> None:
    """Wherever settings are shown."""
    found = settings("discovery: {agent_registry: {url: 'redis://u:hush@h'}}")
    assert "hush" not in f"{show_settings(found)}{found!r}"

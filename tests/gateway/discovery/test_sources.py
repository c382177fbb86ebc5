"""The sources that settings ask for stand in the order in which they are believed."""

import asyncio

import pytest

from gateway.config.discovery import DiscoverySources, DnsSourceConfig, KubernetesSourceConfig, RegistrySourceConfig
from gateway.config.fields import Secret
from gateway.config.settings import Settings
from gateway.discovery import sources
from gateway.discovery.sources import SourceContext, missing_libraries, remote_sources
from tenancy.document import InvalidDocument

EVERYTHING = DiscoverySources(
    dns=(DnsSourceConfig("a.example", 8000), DnsSourceConfig("_http._tcp.b.example")),
    registry=RegistrySourceConfig(),
    kubernetes=(KubernetesSourceConfig("x", "app=a", api="http://127.0.0.1:1"),),
)


def means() -> SourceContext:
    return SourceContext(log=lambda *_, **__: None, clock=asyncio.get_running_loop().time, random=lambda: 0.5)


async def test_who_measured_is_believed_before_who_labelled_and_who_resolved() -> None:
    """Registry, Kubernetes, DNS; each place a source of its own."""
    settings = Settings(redis=Secret("redis://127.0.0.1"), sources=EVERYTHING)
    names = [source.name for source in remote_sources(settings, means())]
    assert names == ["redis", "kubernetes:x", "dns:a.example:8000", "dns:_http._tcp.b.example"]
    assert not list(remote_sources(Settings(redis=Secret("redis://127.0.0.1")), means()))


async def test_outside_a_cluster_the_api_server_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, not in the log."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    settings = Settings(sources=DiscoverySources(kubernetes=(KubernetesSourceConfig("x", "app=a"),)))
    with pytest.raises(InvalidDocument, match=r"discovery\.kubernetes: we run in no cluster"):
        list(remote_sources(settings, means()))


async def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the start and by `hearth config check`."""
    settings = Settings(sources=DiscoverySources(dns=EVERYTHING.dns))
    assert missing_libraries(settings) == []
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    with pytest.raises(InvalidDocument, match=r"discovery\.dns: needs a library: pip install 'hearth-gateway\[dns\]'"):
        list(remote_sources(settings, means()))

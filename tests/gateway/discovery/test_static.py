"""Named pods are told once."""

from gateway.config.discovery import DiscoveredPod
from gateway.discovery.source import StaticSource


async def test_named_pods_are_reported_once() -> None:
    """And then there is nothing more to follow."""
    reported: list[tuple[DiscoveredPod, ...]] = []
    await StaticSource([DiscoveredPod("http://a:1"), DiscoveredPod("http://b:1")]).follow(reported.append)
    assert reported == [(DiscoveredPod("http://a:1"), DiscoveredPod("http://b:1"))]

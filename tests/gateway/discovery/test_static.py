"""Named pods are told once."""

from gateway.config.discovery import Found
from gateway.discovery.source import Static


async def test_named_pods_are_told_once() -> None:
    """And then there is nothing more to follow."""
    told: list[tuple[Found, ...]] = []
    await Static([Found("http://a:1"), Found("http://b:1")]).follow(told.append)
    assert told == [(Found("http://a:1"), Found("http://b:1"))]

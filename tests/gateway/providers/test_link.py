"""Whether an endpoint answers: over TLS by the handshake, behind a local proxy by a request, else by the connection."""

from __future__ import annotations

import pytest

from gateway.config.providers import ProviderApi, ProviderEndpoint, ProviderQuirks
from gateway.providers.link import LinkProbe
from tests.gateway.hostile_links import an_endless_server
from tests.gateway.kv_index.redis_servers import free_port

SOON_S = 0.3


def endpoint(port: int, *, scheme: str = "http", probe_path: str | None = None) -> ProviderEndpoint:
    """An endpoint on this machine."""
    url = f"{scheme}://127.0.0.1:{port}/v1"
    return ProviderEndpoint(
        "one", "acme", "eu", url, ProviderApi.OPENAI, {}, quirks=ProviderQuirks(probe_path=probe_path)
    )


async def test_a_closed_port() -> None:
    """A refused connection is no answer."""
    assert not await LinkProbe().answers(endpoint(free_port()), SOON_S)


@pytest.mark.parametrize(
    ("scheme", "probe_path", "way", "answers"),
    [
        ("http", None, "nothing", True),
        ("https", None, "nothing", False),
        ("http", "/models", "nothing", False),
        ("http", "/models", "headers", True),
    ],
)
async def test_who_accepts_and_says_nothing(scheme: str, probe_path: str | None, way: str, *, answers: bool) -> None:
    """As a proxy does whose link is cut: only a handshake, or a request, shows that; any first byte is an answer."""
    async with an_endless_server() as server:
        server.way = way
        found = await LinkProbe().answers(endpoint(server.port, scheme=scheme, probe_path=probe_path), SOON_S)
    assert found is answers

"""Whether an endpoint answers at all: a connection of its own, TLS handshake included, without a client's request.

Packets may vanish without a FIN or a RST. Over TLS the handshake shows that the other side is there. A proxy on this
machine accepts connections whatever lies behind it: `quirks.probe_path` names a GET request that has to be answered.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cached_property

from gateway.config.providers import KeyHeader, ProviderApi, ProviderEndpoint
from gateway.relay.upstream_pool import read_address

ANTHROPIC_VERSION = "2023-06-01"


class LinkProbe:
    """Probes endpoints."""

    async def answers(self, endpoint: ProviderEndpoint, within_s: float) -> bool:
        """Return whether an endpoint can be reached within so many seconds; any answer to the probe counts."""
        address = read_address(endpoint.url)
        try:
            async with asyncio.timeout(within_s):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=self._tls if address.is_tls else None
                )
                try:
                    if endpoint.quirks.probe_path is None:
                        return True
                    path = address.base + endpoint.quirks.probe_path
                    head = f"GET {path} HTTP/1.1\r\nhost: {address.authority}\r\nconnection: close\r\n"
                    writer.write(f"{head}{endpoint_fields(endpoint)}\r\n".encode("latin-1"))
                    return bool(await reader.read(1))
                finally:
                    writer.transport.abort()
        except OSError:
            return False

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def endpoint_fields(config: ProviderEndpoint) -> str:
    """Return the header lines of every request to an endpoint: its key, its API's version, and what it needs."""
    fields = ""
    is_anthropic = config.api is ProviderApi.ANTHROPIC
    if config.key is not None:
        named = config.quirks.key_header or (KeyHeader.X_API_KEY if is_anthropic else KeyHeader.BEARER)
        is_bearer = named is KeyHeader.BEARER
        fields += f"authorization: Bearer {config.key.value}\r\n" if is_bearer else f"{named}: {config.key.value}\r\n"
    headers = dict(config.quirks.headers)
    if is_anthropic:
        headers.setdefault("anthropic-version", ANTHROPIC_VERSION)
    return fields + "".join(f"{name}: {value}\r\n" for name, value in headers.items())

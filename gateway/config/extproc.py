"""What is said of Envoy: where it finds us as its external processor, and what it may ask of us. A value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # They hold one of these.
    from gateway.config.values import Address, TlsFiles


@dataclass(frozen=True, slots=True)
class ExtProc:
    """Envoy may send us requests to place."""

    listen: Address
    """Of the first worker; each further one listens one port higher."""
    health: Address | None = None
    """Health without TLS, for probes that speak none."""
    tls: TlsFiles | None = None
    endpoints: int = 1
    """How many pods are named for one request: more than one where Envoy's cluster falls back along the list."""
    queue_s: float = 60.0
    """How long a request may wait for an engine, whatever its tier: Envoy does not bound it in full duplex."""
    sample: float = 0.0
    """Of the answers that pass us by, so many are looked at (wants `allow_mode_override` in Envoy)."""
    trust_headers: bool = False
    """Who speaks for others is believed by Envoy's word alone: it strips such headers from clients."""

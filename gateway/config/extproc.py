"""What is said of Envoy: where it finds us as its external processor, and what it may ask of us. A value."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.config.secret import Secret
from gateway.runtime.addresses import Address, MutualTlsFiles


@dataclass(frozen=True, slots=True)
class ExtProc:
    """Envoy may send us requests to place."""

    listen: Address
    """Of the first worker; each further one listens one port higher, unless they share it."""
    health: Address | None = None
    """Health without TLS, for probes that speak none."""
    shares_port: bool = False
    """All workers listen on one port, and the kernel deals connections out: what stands behind a Service has one."""
    tls: MutualTlsFiles | None = None
    token: Secret | None = None
    """What Envoy must send as `authorization: Bearer TOKEN` in the metadata of its calls; None: nothing."""
    endpoints: int = 1
    """How many pods are named for one request: more than one where Envoy's cluster falls back along the list."""
    queue_s: float = 60.0
    """How long a request may wait for an engine, whatever its tier: Envoy does not bound it in full duplex."""
    sample: float = 0.0
    """Of the answers that pass us by, so many are looked at (wants `allow_mode_override` in Envoy)."""
    trust_headers: bool = False
    """Who speaks for others is believed by Envoy's word alone: it strips such headers from clients."""

    @property
    def knows_callers(self) -> bool:
        """Whether callers must show a certificate or a token."""
        return self.token is not None or (self.tls is not None and self.tls.client_ca is not None)

    def addresses(self, workers: int) -> dict[str, list[str]]:
        """Where so many workers listen, by name; without those that only the system knows."""
        ports = {"extproc": self.listen, "extproc_health": self.health}
        return {name: _spread(where, 1 if self.shares_port else workers) for name, where in ports.items() if where}


def _spread(where: Address, count: int) -> list[str]:
    return [str(replace(where, port=where.port + number)) for number in range(count)] if where.port else []

"""The section `extproc`: the listener for Envoy's external processing filter; value, reader and JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.config.fields import (
    Secret,
    mutual_tls_schema,
    parse_address,
    parse_share,
    read_mutual_tls,
    read_secret,
)
from gateway.runtime.addresses import Address, MutualTlsFiles
from tenancy.document import DocumentTable, flag, integer, number, one_of, positive
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import COUNT, FLAG, TEXT


class ReturnedFeature(StrEnum):
    """Features for which requests behind Envoy are served over the gateway's own connections."""

    CASCADES = "cascades"
    """Requests for cascades that judge answers."""
    COALESCING = "coalescing"
    """Identical requests of tenants that share responses."""
    LIMITS = "limits"
    """Streams of callers with limits, to end them exactly there."""
    RESUME = "resume"
    """Streams that are continued on another pod where theirs is lost."""


@dataclass(frozen=True, slots=True)
class ExtProcConfig:
    """The listener for Envoy's external processing filter."""

    listen: Address
    """Address of the first worker; each further one listens one port higher, unless they share it."""
    health_listen: Address | None = None
    """Address of gRPC health checks without TLS."""
    reuse_port: bool = False
    """All workers listen on one port and the kernel distributes connections, as a Kubernetes Service needs."""
    tls: MutualTlsFiles | None = None
    token: Secret | None = None
    """Token that Envoy must send as `authorization: Bearer TOKEN` in its call metadata; None: no check."""
    max_endpoints: int = 1
    """Pods named per request: more than one if Envoy's cluster retries along the list."""
    max_queue_s: float = 60.0
    """Maximum wait for an engine in seconds, whatever the tier: Envoy has no timeout in full duplex mode."""
    sample_share: float = 0.0
    """Share of responses that are inspected, 0 to 1 (needs `allow_mode_override` in Envoy)."""
    trust_headers: bool = False
    """Trust identity headers from every address, because Envoy strips them from clients' requests."""
    return_listen: Address | None = None
    """Address at which Envoy returns requests to be served over the gateway's own connections; each further worker
    listens one port higher. None: every request goes to the pod that is picked."""
    returns: frozenset[ReturnedFeature] = frozenset({ReturnedFeature.CASCADES})
    """Features for which requests are returned, with `return_listen`."""

    @property
    def returns_cascades(self) -> bool:
        """Whether requests for judging cascades are returned."""
        return self.return_listen is not None and ReturnedFeature.CASCADES in self.returns

    @property
    def authenticates_callers(self) -> bool:
        """Return whether Envoys must present a certificate or a token."""
        return self.token is not None or (self.tls is not None and self.tls.client_ca is not None)

    def addresses_of_workers(self, workers: int) -> dict[str, list[str]]:
        """Return the addresses of `workers` workers by name, without those whose port the system chooses."""
        ports = {"extproc": self.listen, "extproc_health": self.health_listen}
        found = {name: _spread(where, 1 if self.reuse_port else workers) for name, where in ports.items() if where}
        return found | ({"extproc_return": _spread(self.return_listen, workers)} if self.return_listen else {})


def _spread(where: Address, count: int) -> list[str]:
    return [str(replace(where, port=where.port + number)) for number in range(count)] if where.port else []


def read_extproc(root: DocumentTable) -> ExtProcConfig | None:
    """Read `extproc: {listen: HOST:PORT, ...}`. Returns None if it is absent."""
    if isinstance(root.get("extproc", _any, None), str):
        root.error("extproc", "must be a mapping: `extproc: {listen: HOST:PORT}`")
        return None
    found = root.table("extproc")
    if found is None:
        return None
    listen = found.get_required("listen", parse_address, None)
    settings = None
    if listen is not None:
        defaults = ExtProcConfig(listen)
        returned = found.each("returns", one_of(tuple(ReturnedFeature)))
        settings = ExtProcConfig(
            listen,
            health_listen=found.get("health_listen", parse_address, None),
            reuse_port=found.get("reuse_port", flag, default=defaults.reuse_port),
            tls=read_mutual_tls(found.table("tls")),
            token=read_secret(found, "token"),
            max_endpoints=found.get("max_endpoints", positive(integer), defaults.max_endpoints),
            max_queue_s=found.get("max_queue_s", positive(number), defaults.max_queue_s),
            sample_share=found.get("sample_share", parse_share, defaults.sample_share),
            trust_headers=found.get("trust_headers", flag, default=defaults.trust_headers),
            return_listen=found.get("return_listen", parse_address, None),
            returns=defaults.returns if returned is None else frozenset(map(ReturnedFeature, returned)),
        )
        if returned is not None and settings.return_listen is None:
            found.error("returns", "needs `return_listen`, the address at which Envoy returns requests")
    found.close()
    return settings


def extproc_schema() -> Schema:
    where: Schema = {"type": "string", "description": "HOST:PORT, with brackets around an IPv6 host."}
    files = mutual_tls_schema(
        "CA certificates that Envoy's client certificate is verified against; absent: none required."
    )
    amount: Schema = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, TEXT.schema]}
    return table(
        {
            "listen": described(where, "Listen address for Envoy; each further worker listens one port higher."),
            "health_listen": described(where, "Listen address of gRPC health checks without TLS."),
            "reuse_port": described(FLAG.schema, "All workers of a host listen on one port (default false)."),
            "tls": described(files, "PEM files of this listener."),
            "token": described(
                TEXT.schema, "Token that Envoy must send as `authorization: Bearer TOKEN`; absent: none."
            ),
            "token_file": described(TEXT.schema, "File that contains the token."),
            "max_endpoints": described(COUNT.schema, "Maximum pods named per request, best first (default 1)."),
            "max_queue_s": described(amount, "Maximum seconds in the admission queue, whatever the tier (default 60)."),
            "sample_share": described(
                {"type": "number", "minimum": 0, "maximum": 1}, "Share of responses that are inspected (default 0)."
            ),
            "return_listen": described(
                where, "Listen address for requests that Envoy returns; each further worker listens one port higher."
            ),
            "returns": described(
                {"type": "array", "items": {"enum": [str(each) for each in ReturnedFeature]}},
                "Features for which requests are returned (default cascades).",
            ),
            "trust_headers": described(
                FLAG.schema, "Trust identity headers from every address, because Envoy removes those of clients."
            ),
        },
        required=("listen",),
    )


def _any(value: object) -> object:
    return value

"""The section `extproc`: the listener for Envoy's external processing filter; value, reader and JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.config.fields import Secret, parse_address, parse_file, read_secret
from gateway.runtime.addresses import Address, MutualTlsFiles
from tenancy.document import DocumentTable, InvalidValue, flag, not_negative, number, positive, whole
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import COUNT, FLAG, TEXT


@dataclass(frozen=True, slots=True)
class ExtProcConfig:
    """The listener for Envoy's external processing filter."""

    listen: Address
    """Address of the first worker; each further one listens one port higher, unless they share it."""
    health: Address | None = None
    """Address of gRPC health checks without TLS."""
    shares_port: bool = False
    """All workers listen on one port and the kernel distributes connections, as a Kubernetes Service needs."""
    tls: MutualTlsFiles | None = None
    token: Secret | None = None
    """Token that Envoy must send as `authorization: Bearer TOKEN` in its call metadata; None: no check."""
    endpoints: int = 1
    """Pods named per request: more than one if Envoy's cluster retries along the list."""
    queue_s: float = 60.0
    """Maximum wait for an engine in seconds, whatever the tier: Envoy has no timeout in full duplex mode."""
    sample: float = 0.0
    """Share of responses that are inspected, 0 to 1 (needs `allow_mode_override` in Envoy)."""
    trust_headers: bool = False
    """Trust identity headers from every address, because Envoy strips them from clients' requests."""

    @property
    def authenticates_callers(self) -> bool:
        """Return whether Envoys must present a certificate or a token."""
        return self.token is not None or (self.tls is not None and self.tls.client_ca is not None)

    def addresses_of_workers(self, workers: int) -> dict[str, list[str]]:
        """Return the addresses of `workers` workers by name, without those whose port the system chooses."""
        ports = {"extproc": self.listen, "extproc_health": self.health}
        return {name: _spread(where, 1 if self.shares_port else workers) for name, where in ports.items() if where}


def _spread(where: Address, count: int) -> list[str]:
    return [str(replace(where, port=where.port + number)) for number in range(count)] if where.port else []


def read_extproc(root: DocumentTable) -> ExtProcConfig | None:
    """Read `extproc: HOST:PORT`, or a mapping."""
    if isinstance(root.get("extproc", _any, None), str):
        listen = root.get("extproc", parse_address, None)
        return ExtProcConfig(listen) if listen is not None else None
    found = root.table("extproc")
    if found is None:
        return None
    listen = found.get_required("listen", parse_address, None)
    settings = None
    if listen is not None:
        usual = ExtProcConfig(listen)
        settings = ExtProcConfig(
            listen,
            health=found.get("health", parse_address, None),
            shares_port=found.get("shares_port", flag, default=usual.shares_port),
            tls=_tls(found.table("tls")),
            token=read_secret(found, "token"),
            endpoints=found.get("endpoints", positive(whole), usual.endpoints),
            queue_s=found.get("queue_s", positive(number), usual.queue_s),
            sample=found.get("sample", _share, usual.sample),
            trust_headers=found.get("trust_headers", flag, default=usual.trust_headers),
        )
    found.close()
    return settings


def extproc_schema() -> Schema:
    where: Schema = {"type": "string", "description": "HOST:PORT, with brackets around an IPv6 host."}
    files = table(
        {
            "cert": TEXT.schema,
            "key": TEXT.schema,
            "client_ca": described(TEXT.schema, "Authorities of the certificates that Envoys must show; absent: none."),
        },
        required=("cert", "key"),
    )
    amount: Schema = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, TEXT.schema]}
    whole_table = table(
        {
            "listen": described(where, "Where Envoy finds us; each further worker listens one port higher."),
            "health": described(where, "Health without TLS, for probes that speak none."),
            "shares_port": described(FLAG.schema, "All workers of a host listen on one port: false by default."),
            "tls": described(files, "PEM files of this listener."),
            "token": described(TEXT.schema, "What Envoys must send as `authorization: Bearer TOKEN`; absent: nothing."),
            "token_file": described(TEXT.schema, "The file that holds it, instead."),
            "endpoints": described(COUNT.schema, "Pods named for one request, the best first: 1 by default."),
            "queue_s": described(amount, "Longest wait for an engine, whatever the tier: 60 by default."),
            "sample": described(
                {"type": "number", "minimum": 0, "maximum": 1}, "Of the answers that pass us by, so many are looked at."
            ),
            "trust_headers": described(FLAG.schema, "Envoy strips the headers of those who speak for others."),
        },
        required=("listen",),
    )
    return {"anyOf": [where, whole_table]}


def _share(value: object) -> float:
    found = not_negative(value)
    if found > 1:
        raise InvalidValue("must be from 0 to 1")
    return found


def _any(value: object) -> object:
    return value


def _tls(found: DocumentTable | None) -> MutualTlsFiles | None:
    if found is None:
        return None
    cert, key = found.get_required("cert", parse_file, None), found.get_required("key", parse_file, None)
    client_ca = found.get("client_ca", parse_file, None)
    found.close()
    return MutualTlsFiles(cert, key, client_ca) if cert and key else None

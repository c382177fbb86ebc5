"""Words of the configuration about Envoy: read, contradicted where they must be, and described."""

from __future__ import annotations

from gateway.config.extproc import ExtProc
from gateway.config.fields import address, file, secret, secret_file
from gateway.config.listening import MutualTlsFiles
from gateway.config.secret import Secret
from gateway.config.values import Settings
from tenancy.document import Fault, Table, Wrong, flag, not_negative, number, positive, whole
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import COUNT, FLAG, TEXT


def extproc(root: Table) -> ExtProc | None:
    """`extproc: HOST:PORT`, or a mapping that says more."""
    if isinstance(root.get("extproc", _any, None), str):
        listen = root.get("extproc", address, None)
        return ExtProc(listen) if listen is not None else None
    found = root.table("extproc")
    if found is None:
        return None
    listen = found.need("listen", address, None)
    settings = None
    if listen is not None:
        usual = ExtProc(listen)
        settings = ExtProc(
            listen,
            health=found.get("health", address, None),
            shares_port=found.get("shares_port", flag, default=usual.shares_port),
            tls=_tls(found.table("tls")),
            token=_token(found),
            endpoints=found.get("endpoints", positive(whole), usual.endpoints),
            queue_s=found.get("queue_s", positive(number), usual.queue_s),
            sample=found.get("sample", _share, usual.sample),
            trust_headers=found.get("trust_headers", flag, default=usual.trust_headers),
        )
    found.close()
    return settings


def judged_by_nobody(settings: Settings) -> list[Fault]:
    """What ladders may not ask for where answers pass by Envoy: nobody could hold them back."""
    if settings.extproc is None:
        return []
    words = (
        "judges answers, and Envoy carries them past us: set `hold_back: off` and `judge_whole: false`, "
        "or leave out extproc"
    )
    return [
        Fault(f"model_list.{entry.name}.ladder", words)
        for entry in settings.models
        if entry.ladder is not None and (entry.ladder.window is not None or entry.ladder.whole)
    ]


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
        raise Wrong("must be from 0 to 1")
    return found


def _any(value: object) -> object:
    return value


def _tls(found: Table | None) -> MutualTlsFiles | None:
    if found is None:
        return None
    cert, key = found.need("cert", file, None), found.need("key", file, None)
    client_ca = found.get("client_ca", file, None)
    found.close()
    return MutualTlsFiles(cert, key, client_ca) if cert and key else None


def _token(found: Table) -> Secret | None:
    """`token`, or `token_file` with the name of the file that holds it."""
    given, filed = found.get("token", secret, None), found.get("token_file", secret_file, None)
    if given and filed:
        found.fault("token_file", "stands beside token: which one is meant?")
    return given or filed

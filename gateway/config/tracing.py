"""The section `tracing`: where spans are exported, which requests are sampled; reader and JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from gateway.config.fields import NUMBER_SCHEMA, check_extra, parse_file, parse_share
from tenancy.document import DocumentTable, InvalidValue, number, one_of, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, TEXT

HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*)")

MAX_HEADERS_BYTES = 64 << 10


class AcceptParent(StrEnum):
    """Which callers' `traceparent` is continued; that of others is dropped, and a new trace begins."""

    NONE = "none"
    TRUSTED_PROXIES = "trusted_proxies"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Traces, where configured."""

    endpoint: str
    """URL of an OTLP/HTTP receiver; `/v1/traces` is appended where its path does not end in it."""
    sample_ratio: float = 0.1
    """Share of the traces begun here that are exported; continued ones follow their parent."""
    accept_parent: AcceptParent = AcceptParent.TRUSTED_PROXIES
    headers_file: Path | None = field(default=None)
    """File of `Name: value` lines that are sent with each export, such as a credential."""
    service_name: str = "hearth"
    timeout_s: float = 10.0
    """Seconds of each step of an export."""
    flush_s: float = 2.0
    """Seconds to export what is queued when the gateway ends."""


def read_tracing(root: DocumentTable) -> TracingConfig | None:
    """Read the section. Returns None if it is absent: no spans."""
    section = root.table("tracing")
    if section is None:
        return None
    check_extra(section, "otel", "opentelemetry.proto")
    found = TracingConfig(
        endpoint=section.get_required("endpoint", parse_endpoint, ""),
        sample_ratio=section.get("sample_ratio", parse_share, 0.1),
        accept_parent=section.get("accept_parent", parse_accept_parent, AcceptParent.TRUSTED_PROXIES),
        headers_file=section.get("headers_file", parse_headers_file, None),
        service_name=section.get("service_name", text, "hearth"),
        timeout_s=section.get("timeout_s", parse_seconds, 10.0),
        flush_s=section.get("flush_s", parse_seconds, 2.0),
    )
    section.close()
    return found


def parse_endpoint(value: object) -> str:
    """Parse the URL of a receiver; a password belongs in `headers_file`."""
    words = text(value)
    try:
        url = urlsplit(words)
        port = url.port
    except ValueError:
        raise InvalidValue(f"`{words}` is not a URL") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        raise InvalidValue(f"must be http://HOST:PORT or https://HOST:PORT, not `{words}`")
    if url.username or url.password or url.query or url.fragment:
        raise InvalidValue("has no user, query or fragment: credentials belong in headers_file")
    return words


def parse_accept_parent(value: object) -> AcceptParent:
    """Parse which callers' traces are continued."""
    return AcceptParent(one_of(tuple(each.value for each in AcceptParent))(value))


def parse_seconds(value: object) -> float:
    """Parse a duration above 0, an hour at most."""
    found = number(value)
    if not 0 < found <= 3600:
        raise InvalidValue(f"must be above 0 and at most 3600 seconds, not {found:g}")
    return found


def parse_headers_file(value: object) -> Path:
    """Parse the path of a file of headers, and check its content."""
    path = parse_file(value)
    try:
        read_headers(path)
    except (OSError, ValueError) as error:
        raise InvalidValue(f"cannot be used: {error}") from None
    return path


def read_headers(path: Path) -> Mapping[str, str]:
    """Read `Name: value` lines; empty ones and those that begin with `#` are left out. Raises `OSError`, `ValueError`;
    no message holds a value.
    """
    with path.open("rb") as file:
        content = file.read(MAX_HEADERS_BYTES + 1)
    if len(content) > MAX_HEADERS_BYTES:
        raise ValueError(f"it has more than {MAX_HEADERS_BYTES} bytes")
    found: dict[str, str] = {}
    for at, line in enumerate(content.decode("ascii", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = HEADER.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"line {at} is not `Name: value`")
        found[match[1].lower()] = match[2]
    return found


def tracing_schema() -> Schema:
    return table(
        {
            "endpoint": described(TEXT.schema, "URL of an OTLP/HTTP receiver, such as http://127.0.0.1:4318."),
            "sample_ratio": described(NUMBER_SCHEMA, "Share of new traces that are exported (default 0.1)."),
            "accept_parent": described(
                {"enum": [each.value for each in AcceptParent]},
                "Callers whose traceparent is continued (default trusted_proxies).",
            ),
            "headers_file": described(TEXT.schema, "File of `Name: value` lines sent with each export."),
            "service_name": described(TEXT.schema, "service.name of the spans (default hearth)."),
            "timeout_s": described(ABOVE_ZERO.schema, "Seconds of each step of an export (default 10)."),
            "flush_s": described(ABOVE_ZERO.schema, "Seconds to export the rest at the end (default 2)."),
        },
        required=("endpoint",),
    )

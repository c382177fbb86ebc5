"""The section `providers`: endpoints outside the fleet, and their one switch; values, reader and JSON Schema.

An endpoint is one URL of one provider in one region with one key. Tenants name provider, region and model in the
policy before anything is sent there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from gateway.config.fields import Secret, read_secret
from tenancy.document import DocumentTable, InvalidValue, flag, integer, one_of, positive, text
from tenancy.document import number as any_number
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, COUNT, FLAG, RENAMINGS, TEXT, renamings


class ProviderApi(StrEnum):
    """The wire format of an endpoint."""

    OPENAI = "openai"
    """`/v1/chat/completions`, and `/v1/responses` and `/v1/completions` where listed."""
    ANTHROPIC = "anthropic"
    """`/v1/messages`."""


class KeyHeader(StrEnum):
    """How the key is sent."""

    BEARER = "bearer"
    """`authorization: Bearer KEY`."""
    X_API_KEY = "x-api-key"
    API_KEY = "api-key"


class TokenLimitField(StrEnum):
    """The field that limits a chat answer."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


@dataclass(frozen=True, slots=True)
class ProviderQuirks:
    """How an endpoint differs from the API it speaks."""

    path: str | None = None
    """Path of the request, beneath the base URL; None: that of its API."""
    key_header: KeyHeader | None = None
    """None: the API's own."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers that are sent beside the key; never secret."""
    token_limit_field: TokenLimitField = TokenLimitField.MAX_TOKENS
    drops: frozenset[str] = frozenset()
    """Fields of the body that the endpoint rejects; they are left out."""
    reports_stream_usage: bool = True
    """Whether `stream_options` is accepted."""
    probe_path: str | None = None
    """Path of a GET request that finds out whether it can be reached; None: a connection is enough."""


@dataclass(frozen=True, slots=True)
class ProviderEndpoint:
    """One endpoint outside the fleet."""

    name: str
    provider: str
    region: str
    url: str
    api: ProviderApi
    models: Mapping[str, str]
    """What a model is called here, to what the provider calls it."""
    key: Secret | None = None
    max_parallel_requests: int = 64
    max_output_tokens: int = 4096
    """Sent as the limit of an answer whose client sets none, so that its money can be reserved."""
    connect_timeout_s: float = 1.0
    """Also how long a link that is cut may stay unnoticed while a request waits."""
    first_byte_timeout_s: float = 30.0
    response_timeout_s: float = 1800.0
    """To the end of a response, however slowly it comes."""
    distance_s: float = 0.0
    """Seconds of a round trip to it, added where it is compared with other engines."""
    rank: int = 1
    """Beside pods of the fleet that serve the same model: they come first while they answer in time (rank 0)."""
    quirks: ProviderQuirks = field(default_factory=ProviderQuirks)

    @property
    def label(self) -> str:
        """`provider/region`, as headers, receipts and metrics name it."""
        return f"{self.provider}/{self.region}"


@dataclass(frozen=True, slots=True)
class ProvidersConfig:
    """All endpoints. `enabled` false: nothing is sent to any of them."""

    enabled: bool = True
    endpoints: tuple[ProviderEndpoint, ...] = ()


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

HEADER = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

RESERVED_HEADERS = frozenset(
    (
        *("authorization", "x-api-key", "api-key", "host", "content-type", "content-length", "connection"),
        *("transfer-encoding", "accept-encoding", "traceparent", "tracestate", "x-request-id"),
    )
)


NO_HEADERS: dict[str, str] = {}


def read_providers(root: DocumentTable) -> ProvidersConfig:
    """Read the section `providers`; without it there are no endpoints."""
    section = root.table("providers")
    if section is None:
        return ProvidersConfig()
    endpoints = tuple(filter(None, [_endpoint(each) for each in section.tables("endpoints")]))
    for names, key in (([each.name for each in endpoints], "name"), ([each.url for each in endpoints], "base_url")):
        for repeated in sorted({each for each in names if names.count(each) > 1}):
            section.error("endpoints", f"{key} `{repeated}` is used twice; each endpoint has its own")
    found = ProvidersConfig(section.get("enabled", flag, default=True), endpoints)
    section.close()
    return found


def _endpoint(table: DocumentTable) -> ProviderEndpoint | None:
    defaults = ProviderEndpoint("", "", "", "", ProviderApi.OPENAI, {})
    found = ProviderEndpoint(
        name=table.get_required("name", _name, ""),
        provider=table.get_required("provider", _name, ""),
        region=table.get_required("region", _name, ""),
        url=table.get_required("base_url", _base_url, ""),
        api=ProviderApi(table.get_required("api", one_of(tuple(ProviderApi)), ProviderApi.OPENAI.value)),
        models=table.get_required("models", _models, {}),
        key=read_secret(table, "api_key"),
        max_parallel_requests=table.get("max_parallel_requests", positive(integer), defaults.max_parallel_requests),
        max_output_tokens=table.get("max_output_tokens", positive(integer), defaults.max_output_tokens),
        connect_timeout_s=table.get("connect_timeout_s", _timeout, defaults.connect_timeout_s),
        first_byte_timeout_s=table.get("first_byte_timeout_s", _timeout, defaults.first_byte_timeout_s),
        response_timeout_s=table.get("response_timeout_s", _response_timeout, defaults.response_timeout_s),
        distance_s=table.get("distance_s", _distance, defaults.distance_s),
        rank=table.get("rank", _rank, defaults.rank),
        quirks=_quirks(table.table("quirks")),
    )
    table.close()
    return found if found.name and found.url else None


def _quirks(table: DocumentTable | None) -> ProviderQuirks:
    if table is None:
        return ProviderQuirks()
    header = table.get("key_header", one_of(tuple(KeyHeader)), None)
    found = ProviderQuirks(
        path=table.get("path", _path, None),
        key_header=None if header is None else KeyHeader(header),
        headers=tuple(table.get("headers", _headers, NO_HEADERS).items()),
        token_limit_field=TokenLimitField(
            table.get("token_limit_field", one_of(tuple(TokenLimitField)), TokenLimitField.MAX_TOKENS.value)
        ),
        drops=frozenset(table.each("drops", text) or ()),
        reports_stream_usage=table.get("reports_stream_usage", flag, default=True),
        probe_path=table.get("probe_path", _path, None),
    )
    table.close()
    return found


def _name(value: object) -> str:
    found = text(value)
    if not NAME.fullmatch(found):
        raise InvalidValue("must be 1 to 64 letters, digits, `.`, `_` and `-`")
    return found


def _base_url(value: object) -> str:
    """An https URL without credentials or query; http only to this machine, since a key and prompts would be read."""
    words = text(value).rstrip("/")
    parts = urlsplit(words)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme not in ("https", "http") or not parts.hostname or (parts.scheme == "http" and not is_local):
        raise InvalidValue("must be an https:// URL (http:// only for localhost)")
    if parts.username or parts.password or parts.query or parts.fragment or not words.isascii() or " " in words:
        raise InvalidValue("must have neither credentials nor query nor fragment")
    return words


def _path(value: object) -> str:
    words = text(value)
    if not re.fullmatch(r"/[!-~]*", words):
        raise InvalidValue("must begin with `/` and hold printable ASCII without spaces")
    return words


def _models(value: object) -> dict[str, str]:
    found = renamings(value)
    if not found:
        raise InvalidValue("must name a model: what it is called here, to what the provider calls it")
    return found


def _headers(value: object) -> dict[str, str]:
    found = renamings(value)
    for name, content in found.items():
        if not HEADER.fullmatch(name) or name in RESERVED_HEADERS or name.startswith("x-hearth"):
            raise InvalidValue(f"`{name}` cannot be set; header names are lower case, and keys belong in `api_key`")
        if not content.isascii() or not content.isprintable():
            raise InvalidValue(f"`{name}` must be one line of printable ASCII")
    return found


MAX_TIMEOUT_S = 600.0
MAX_RESPONSE_S = 86_400.0


def _timeout(value: object) -> float:
    return _seconds(value, MAX_TIMEOUT_S)


def _response_timeout(value: object) -> float:
    return _seconds(value, MAX_RESPONSE_S)


def _seconds(value: object, limit: float) -> float:
    found = positive(any_number)(value)
    if found > limit:
        raise InvalidValue(f"must be a number of seconds, at most {limit:g}; {found:g} looks like milliseconds")
    return found


def _rank(value: object) -> int:
    found = integer(value)
    if not 0 <= found <= 100:
        raise InvalidValue("must be from 0 to 100")
    return found


def _distance(value: object) -> float:
    found = any_number(value)
    if not 0 <= found <= 10:
        raise InvalidValue("must be a number of seconds from 0 to 10")
    return found


def providers_schema() -> Schema:
    quirks = table(
        {
            "path": described(TEXT.schema, "Path of the request beneath base_url (default: that of the API)."),
            "key_header": described({"enum": list(KeyHeader)}, "How the key is sent (default: as the API does)."),
            "headers": described(RENAMINGS.schema, "Headers that the endpoint needs, such as a version; no secrets."),
            "token_limit_field": described({"enum": list(TokenLimitField)}, "Field that limits a chat answer."),
            "drops": described({"type": "array", "items": TEXT.schema}, "Body fields that the endpoint rejects."),
            "reports_stream_usage": described(
                FLAG.schema, "Whether it accepts `stream_options` (default true); if not, streams are settled by count."
            ),
            "probe_path": described(
                TEXT.schema,
                "Path under base_url of a GET that shows whether it can be reached; default: connecting does.",
            ),
        }
    )
    endpoint = table(
        {
            "name": described(TEXT.schema, "Name of the endpoint in logs and metrics."),
            "provider": described(TEXT.schema, "Provider, as policies name it."),
            "region": described(TEXT.schema, "Region where it computes, as policies name it."),
            "base_url": described(TEXT.schema, "URL before the API's path; https, or http on this machine."),
            "api": described({"enum": list(ProviderApi)}, "Wire format: openai or anthropic."),
            "models": described(RENAMINGS.schema, "Model name here, to the provider's name of it."),
            "api_key": described(TEXT.schema, "Its key; write `${NAME}` for an environment variable."),
            "api_key_file": described(TEXT.schema, "File that contains its key, read again by a reload."),
            "max_parallel_requests": described(
                COUNT.schema, "Requests at one time, divided among the processes (default 64)."
            ),
            "max_output_tokens": described(COUNT.schema, "Output limit of requests that set none (default 4096)."),
            "connect_timeout_s": described(
                ABOVE_ZERO.schema, "Seconds to connect, and to notice a link that is cut (default 1)."
            ),
            "first_byte_timeout_s": described(
                ABOVE_ZERO.schema, "Seconds to the first byte, of unary answers to the last (default 30)."
            ),
            "response_timeout_s": described(ABOVE_ZERO.schema, "Seconds to the end of a response (default 1800)."),
            "distance_s": described(
                {"type": "number", "minimum": 0, "maximum": 10},
                "Seconds of a round trip, added where engines are compared.",
            ),
            "rank": described(
                {"type": "integer", "minimum": 0, "maximum": 100},
                "Order behind pods that serve the same model, which have rank 0 (default 1).",
            ),
            "quirks": described(quirks, "How it differs from its API."),
        },
        required=("name", "provider", "region", "base_url", "api", "models"),
    )
    return table(
        {
            "enabled": described(FLAG.schema, "False: nothing is sent to any provider (default true)."),
            "endpoints": described({"type": "array", "items": endpoint}, "Endpoints outside the fleet."),
        }
    )

"""The word `cors` of the configuration: web pages that may ask the gateway from a browser, with its schema."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tenancy.document import DocumentTable, InvalidValue, integer, not_negative, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import TEXT

ANY_ORIGIN = "*"
"""As an origin: every page may ask."""


@dataclass(frozen=True, slots=True)
class CorsPolicy:
    """Which origins (scheme, host, port) may call the gateway from a browser, and how long a browser may cache that."""

    origins: frozenset[str]
    max_age_s: int = 600


DEFAULT_MAX_AGE_S = CorsPolicy(frozenset()).max_age_s


def read_cors(root: DocumentTable) -> CorsPolicy | None:
    """`cors: {origins: [ORIGIN, ...], max_age_s: SECONDS}`; absent: pages of other origins may not ask."""
    given = root.table("cors")
    if given is None:
        return None
    origins = given.each("origins", parse_origin) or ()
    if not origins:
        given.error("origins", "must name an origin, or `*` for all")
    age_s = given.get("max_age_s", lambda value: integer(not_negative(value)), DEFAULT_MAX_AGE_S)
    given.close()
    return CorsPolicy(frozenset(origins), age_s)


def parse_origin(value: object) -> str:
    """`https://HOST`, `https://HOST:PORT` or `*`, as browsers write it. Raises `InvalidValue`."""
    words = text(value)
    if words == ANY_ORIGIN:
        return words
    try:
        parts = urlsplit(words)
        is_origin = f"{parts.scheme}://{parts.netloc}" == words and parts.hostname is not None and parts.port != 0
    except ValueError:
        is_origin = False
    if (
        not is_origin
        or "@" in words
        or words != words.lower()
        or not words.isascii()
        or any(char <= " " for char in words)
    ):
        raise InvalidValue(f"must be an origin as browsers send it, such as https://app.example.com, not `{words}`")
    return words


def cors_schema() -> Schema:
    """Return the schema of `cors`."""
    return table(
        {
            "origins": described(
                {"type": "array", "items": TEXT.schema, "minItems": 1}, "https://HOST of each, or `*` for all."
            ),
            "max_age_s": described(
                {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^([0-9]+|\$\{.*\})$"}]},
                "So long a browser may remember that it may ask.",
            ),
        },
        required=("origins",),
    )

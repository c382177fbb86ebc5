"""The word `cors` of the configuration: web pages that may ask the gateway from a browser, with its schema."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tenancy.document import Table, Wrong, not_negative, text, whole
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import TEXT

ANY = "*"
"""As an origin: every page may ask."""


@dataclass(frozen=True, slots=True)
class Cors:
    """Which origins (scheme, host, port) may call the gateway from a browser, and how long a browser may cache that."""

    origins: frozenset[str]
    max_age_s: int = 600


USUAL_MAX_AGE_S = Cors(frozenset()).max_age_s


def cors(root: Table) -> Cors | None:
    """`cors: {origins: [ORIGIN, ...], max_age_s: SECONDS}`; absent: pages of other origins may not ask."""
    given = root.table("cors")
    if given is None:
        return None
    origins = given.each("origins", origin) or ()
    if not origins:
        given.fault("origins", "must name an origin, or `*` for all")
    age_s = given.get("max_age_s", lambda value: whole(not_negative(value)), USUAL_MAX_AGE_S)
    given.close()
    return Cors(frozenset(origins), age_s)


def origin(value: object) -> str:
    """`https://HOST`, `https://HOST:PORT` or `*`, as browsers write it. Raises `Wrong`."""
    words = text(value)
    if words == ANY:
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
        raise Wrong(f"must be an origin as browsers send it, such as https://app.example.com, not `{words}`")
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

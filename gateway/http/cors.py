"""CORS headers of one request or response. Which origins are allowed is configuration (`gateway.config.cors`).

Off by default. Credentials mode is never allowed: a page authenticates with an API key like any other client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.config.cors import ANY_ORIGIN, CorsPolicy

ORIGIN = b"origin"
REQUESTED_HEADERS = b"access-control-request-headers"

CORS_HEADERS = frozenset({ORIGIN, REQUESTED_HEADERS})
"""Request headers that are read only where CORS is on."""

DEFAULT_ALLOWED_HEADERS = "authorization, content-type, x-api-key"

VALID_HEADER_LIST = re.compile(rb"[A-Za-z0-9_-]+(?: ?, ?[A-Za-z0-9_-]+)*")

Fields = tuple[tuple[str, str], ...]


def is_allowed_origin(policy: CorsPolicy, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request names an origin that the policy allows."""
    origin = headers.get(ORIGIN)
    return origin is not None and (ANY_ORIGIN in policy.origins or origin.decode("latin-1") in policy.origins)


def response_fields(policy: CorsPolicy, headers: Mapping[bytes, bytes]) -> Fields:
    """Return the CORS headers of a response to a request with these headers; empty where it names no origin."""
    if ORIGIN not in headers:
        return ()
    if ANY_ORIGIN in policy.origins:
        return (("access-control-allow-origin", ANY_ORIGIN), ("access-control-expose-headers", ANY_ORIGIN))
    if not is_allowed_origin(policy, headers):
        return (("vary", "origin"),)
    return (
        ("access-control-allow-origin", headers[ORIGIN].decode("latin-1")),
        ("access-control-expose-headers", ANY_ORIGIN),
        ("vary", "origin"),
    )


def preflight_fields(policy: CorsPolicy, headers: Mapping[bytes, bytes], methods: str) -> Fields:
    """Return what a preflight response has beside `response_fields`: allowed methods and headers, and their age."""
    requested = headers.get(REQUESTED_HEADERS, b"")
    allowed = requested.decode("ascii") if VALID_HEADER_LIST.fullmatch(requested) else DEFAULT_ALLOWED_HEADERS
    return (
        ("access-control-allow-methods", methods),
        ("access-control-allow-headers", allowed),
        ("access-control-max-age", str(policy.max_age_s)),
    )

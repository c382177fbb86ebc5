"""Web pages of other origins: which may ask the gateway from a browser, and what the browser is answered (CORS).

Off by default. Cookies are never asked for: whoever asks from a page sends a key as every client does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ORIGIN = b"origin"
WANTED_HEADERS = b"access-control-request-headers"

KEPT_FOR_CORS = frozenset({ORIGIN, WANTED_HEADERS})
"""Headers that mean something only where CORS is on."""

ANY = "*"

USUAL_HEADERS = "authorization, content-type, x-api-key"

SANE_HEADERS = re.compile(rb"[A-Za-z0-9_-]+(?: ?, ?[A-Za-z0-9_-]+)*")

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cors:
    """Which origins may ask, and for how long a browser may remember it."""

    origins: frozenset[str]
    max_age_s: int = 600

    def allows(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request comes from a page that may ask."""
        origin = headers.get(ORIGIN)
        return origin is not None and (ANY in self.origins or origin.decode("latin-1") in self.origins)

    def fields(self, headers: Mapping[bytes, bytes]) -> Fields:
        """Headers of an answer to a page; empty where the request names no origin."""
        if ORIGIN not in headers:
            return ()
        if ANY in self.origins:
            return (("access-control-allow-origin", ANY), ("access-control-expose-headers", ANY))
        if not self.allows(headers):
            return (("vary", "origin"),)
        return (
            ("access-control-allow-origin", headers[ORIGIN].decode("latin-1")),
            ("access-control-expose-headers", ANY),
            ("vary", "origin"),
        )

    def preflight(self, headers: Mapping[bytes, bytes], methods: str) -> Fields:
        """Headers of the answer to OPTIONS, beside those of every answer: what a page may send."""
        wanted = headers.get(WANTED_HEADERS, b"")
        named = wanted.decode("ascii") if SANE_HEADERS.fullmatch(wanted) else USUAL_HEADERS
        return (
            ("access-control-allow-methods", methods),
            ("access-control-allow-headers", named),
            ("access-control-max-age", str(self.max_age_s)),
        )

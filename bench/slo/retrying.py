"""When a client asks again: the rule of OpenAI's Python client, which most clients of such gateways are or imitate.

Two more attempts after 408, 409, 429, any 5xx or a broken connection. `retry-after-ms` and `retry-after` are obeyed up
to two minutes; asked for more, the client gives up. Without them it waits 0.5 s, then 1 s, less up to a quarter by a
draw. `x-should-retry` overrules the status. Dates in `retry-after` are not read: none of the compared gateways sends
any.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

RETRIES = 2
FIRST_WAIT_S = 0.5
MAX_WAIT_S = 8.0
MAX_OBEYED_S = 120.0
JITTER = 0.25

BROKEN = 0
"""The status of an attempt that got no answer at all."""


def wait_before_next(status: int, headers: Mapping[str, str], retries: int, draw: float) -> float | None:
    """Seconds until it asks again, None where it gives up. `retries`: how often it has; `draw`: from [0, 1)."""
    if retries >= RETRIES:
        return None
    requested_s = _requested_s(headers)
    if requested_s is not None and requested_s > MAX_OBEYED_S:
        return None
    if not _may_retry(status, headers):
        return None
    if requested_s is not None and requested_s > 0:
        return requested_s
    return min(FIRST_WAIT_S * float(1 << retries), MAX_WAIT_S) * (1.0 - JITTER * draw)


def _may_retry(status: int, headers: Mapping[str, str]) -> bool:
    header = headers.get("x-should-retry")
    if header in ("true", "false"):
        return header == "true"
    return status in (BROKEN, 408, 409, 429) or status >= 500


def _requested_s(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        return seconds if isfinite(seconds) else None
    return None

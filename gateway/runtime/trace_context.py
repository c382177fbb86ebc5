"""W3C Trace Context: the trace of one request, as it comes in headers and goes to pods. Values only, no I/O.

Ids of child spans are computed from the id of the request's span, so that spans can be built when the request has ended
and still have the ids that pods were sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct

MAX_TRACE_BYTES = 512
"""Bytes of either header; limit of W3C Trace Context for `tracestate`."""

SAMPLED, RANDOM = 1, 2
"""Bits of the trace flags; `RANDOM` (level 2) is passed on as received."""

ID_MASK = (1 << 64) - 1

_STEP = 0x9E3779B97F4A7C15
"""Odd, so that no two children of a request have one id."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACESTATE = re.compile(rb"[\x20-\x7e]+")


class SpanRole(IntEnum):
    """What a span of one attempt is about. Its number is part of the span's id."""

    ATTEMPT = 0
    ADMISSION = 1
    CHOICE = 2
    PREFILL = 3
    TRANSFER = 4
    DECODE = 5
    CASCADE_MODEL = 6


SPANS_PER_ATTEMPT = 8


class RequestTrace(Struct, gc=False):
    """The trace of one request."""

    trace_id: str
    """32 hexadecimal digits."""
    parent_id: str | None = None
    """Span of the caller, 16 hexadecimal digits; None where the gateway began the trace."""
    root: int = 0
    """Id of the gateway's span of the request; 0 where tracing is off and the caller's headers go to pods unchanged."""
    flags: int = 0
    state: str | None = None
    """The caller's `tracestate`, passed on unchanged."""
    attempt: int = 0
    """Number of the attempt that is sent now, from 1; 0: none."""
    line: str = ""
    """The header line for all attempts of a request that is not sampled; empty: `header_lines` makes one for each."""

    @property
    def is_sampled(self) -> bool:
        """Whether its spans are exported."""
        return self.flags & SAMPLED == SAMPLED

    @property
    def span_id(self) -> str | None:
        """Id of the gateway's span of the request, in hex; None where it makes none."""
        return f"{self.root:016x}" if self.root else None

    def child(self, attempt: int, role: SpanRole) -> int:
        """Return the id of a span of an attempt; that of the request for attempt 0."""
        if attempt == 0:
            return self.root
        return (self.root + (attempt * SPANS_PER_ATTEMPT + role) * _STEP) & ID_MASK or 1

    def header_lines(self, role: int = 0) -> str:
        """Return `fields` as lines of an HTTP head."""
        attempt = self.attempt
        span = self.root if attempt == 0 else (self.root + (attempt * SPANS_PER_ATTEMPT + role) * _STEP) & ID_MASK or 1
        parent = (
            f"traceparent: 00-{self.trace_id}-{span:016x}-{'01' if self.flags == SAMPLED else f'{self.flags:02x}'}\r\n"
        )
        return parent if self.state is None else f"{parent}tracestate: {self.state}\r\n"

    def fields(self, role: SpanRole = SpanRole.ATTEMPT) -> list[tuple[str, str]]:
        """Return the headers for a pod: the parent is a span of the current attempt."""
        found = [("traceparent", f"00-{self.trace_id}-{self.child(self.attempt, role):016x}-{self.flags:02x}")]
        if self.state:
            found.append(("tracestate", self.state))
        return found


def received_trace(headers: Mapping[bytes, bytes]) -> RequestTrace | None:
    """Return the trace of a caller's headers, with no span of ours; None without a valid `traceparent`."""
    value = headers.get(b"traceparent")
    match = _TRACEPARENT.fullmatch(value) if value and len(value) <= MAX_TRACE_BYTES else None
    if match is None:
        return None
    version, trace_id, parent, flags, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest) or not (trace_id.strip(b"0") and parent.strip(b"0")):
        return None
    state = headers.get(b"tracestate")
    is_fit = state and len(state) <= MAX_TRACE_BYTES and _TRACESTATE.fullmatch(state)
    return RequestTrace(
        trace_id.decode(),
        parent.decode(),
        flags=int(flags, 16) & (SAMPLED | RANDOM),
        state=state.decode() if state and is_fit else None,
    )

"""Begins the trace of each request, and hands the records of sampled ones to the exporter when they have ended.

A request pays for two random numbers and a header, which is made once where the request is not sampled; the spans of a
sampled one are built from its record, in the exporter's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.config.tracing import AcceptParent
from gateway.pipeline.record import Outcome
from gateway.runtime.trace_context import SAMPLED, RequestTrace, received_trace

RANDOM_BITS = 56
"""Low bits of a trace id that decide by ratio: those that W3C and OpenTelemetry take to be random."""

RANDOM_MASK = (1 << RANDOM_BITS) - 1

SET_BITS = 1 << 127 | 1 << 128
"""One bit of the trace id and one of the span id: ids of zeros are invalid."""


class Tracer:
    """One per gateway process; holds no request's state."""

    def __init__(
        self,
        *,
        sample_ratio: float,
        accept_parent: AcceptParent,
        random_bits: Callable[[int], int],
        export: Callable[[Outcome], None],
    ) -> None:
        """`sample_ratio`: share of the traces begun here; a continued one is sampled as its parent is."""
        self._threshold = round(sample_ratio * (1 << RANDOM_BITS))
        self._accepts_all = accept_parent is AcceptParent.ALL
        self._accepts_proxies = accept_parent is AcceptParent.TRUSTED_PROXIES
        self._random_bits = random_bits
        self._export = export

    def begin(self, headers: Mapping[bytes, bytes], *, is_trusted: bool) -> RequestTrace:
        """Return the trace of a request: its caller's, where it may be continued, or a new one."""
        drawn = self._random_bits(192) | SET_BITS
        if b"traceparent" in headers and (self._accepts_all or (is_trusted and self._accepts_proxies)):
            trace = received_trace(headers)
            if trace is not None:
                trace.root = drawn >> 128
                return trace
        ids = f"{drawn:048x}"
        trace_id = ids[16:]
        if drawn & RANDOM_MASK < self._threshold:
            return RequestTrace(trace_id, None, drawn >> 128, SAMPLED)
        return RequestTrace(trace_id, None, drawn >> 128, 0, None, 0, f"traceparent: 00-{trace_id}-{ids[:16]}-00\r\n")

    def on_outcome(self, outcome: Outcome) -> None:
        """Export a request that has ended, if it is sampled."""
        trace = outcome.trace
        if trace is None or trace.line or not trace.root:
            return
        trace.attempt = 0  # What is still sent on its behalf, such as a shadow sample, belongs to the request.
        if trace.flags & SAMPLED:
            self._export(outcome)

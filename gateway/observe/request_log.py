"""The request log: one JSON line per request, and one usage record per request for chargeback.

A witness only puts the outcome aside; a moment later all of them are encoded at once and handed to a thread that
writes. Says nothing of what was asked or answered, and no key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping

import msgspec

from cascade.record import CascadeResult
from gateway.attempts.outcome import CLIENT_GONE_STATUS, Outcome
from gateway.config.models import ModelEntry
from gateway.runtime.event_log import LEVELS, format_timestamp
from gateway.runtime.guard import call_guarded, report_exception
from gateway.runtime.line_writer import LineWriter

FLUSH_DELAY_S = 0.05
"""Lines are this late at most."""

MAX_BATCH = 200
"""Lines encoded in one go: under half a millisecond of the loop."""

EncodeOutcome = Callable[[Outcome], bytes]
"""One line, or nothing where nothing is to be said."""


class OutcomeLog:
    """Writes one line per outcome, encoded off the hot path."""

    def __init__(self, writer: LineWriter, encode: EncodeOutcome) -> None:
        self.writer = writer
        self._encode = encode
        self._waiting: list[Outcome] = []

    def on_outcome(self, outcome: Outcome) -> None:
        """Take note of a request that has ended."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(FLUSH_DELAY_S, call_guarded, "log", self._flush_some)
        self._waiting.append(outcome)

    def flush(self) -> None:
        """Hand over all that waits."""
        while self._waiting:
            self._hand_over()

    def _flush_some(self) -> None:
        if not self._waiting:
            return
        try:
            self._hand_over()
        finally:
            if self._waiting:
                asyncio.get_running_loop().call_soon(call_guarded, "log", self._flush_some)

    def _hand_over(self) -> None:
        some, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        if lines := b"".join(map(self._encoded, some)):
            self.writer.put(lines, len(some))

    def _encoded(self, outcome: Outcome) -> bytes:
        try:
            return self._encode(outcome)
        except Exception as error:  # noqa: BLE001 - of this line alone: the others are written
            report_exception("log", error)
            return b""


class RequestLine(msgspec.Struct):
    """One request in the log, field by field as it is written."""

    timestamp: str
    level: str
    message: str
    trace_id: str | None
    span_id: str | None
    request_id: str
    tenant: str | None
    model: str
    status: int
    error_type: str | None
    ttft_ms: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    receipt: str
    tier: str
    key_id: str | None
    queued_ms: float
    promise_met: bool | None
    resumed: int = 0
    """How often another pod went on with its stream."""
    unresumed: str | None = None
    """Why nobody did."""
    wasted_tokens: int = 0
    """Of prompt and answer, that were computed again for that."""


class UsageLine(msgspec.Struct):
    """One usage record, field by field as it is written."""

    timestamp: str
    request_id: str
    tenant: str | None
    model: str
    api: str
    status: int
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    input_cost: float | None
    output_cost: float | None
    tier: str
    key_id: str | None
    user: str | None
    group: str | None
    duration_ms: float
    shared: str | None
    """The request whose answer it was given as well: it took nothing itself."""
    cascade: CascadeResult | None = None
    """Its way up a ladder, from which `hearth cascade report` is made."""
    reason: str | None = None
    """Why it was rejected."""
    stream: bool = False
    prompt_bytes: int = 0
    max_tokens: int | None = None
    """Most output tokens, of all its answers together; null where the client set none."""


_as_json = msgspec.json.Encoder().encode


def request_line(outcome: Outcome, level: Callable[[], str]) -> bytes:
    """The log line of one request, if `level` lets it through."""
    usage, request = outcome.usage, outcome.request
    own_level = "error" if outcome.status >= 500 else "info"
    if LEVELS[own_level] < LEVELS[level()]:
        return b""
    trace_id, span_id = _trace(outcome.trace)
    line = RequestLine(
        timestamp=format_timestamp(outcome.at_s),
        level=own_level,
        message="request",
        trace_id=trace_id,
        span_id=span_id,
        request_id=request.id,
        tenant=outcome.tenant,
        model=request.model,
        status=outcome.status,
        error_type=_error_type(outcome),
        ttft_ms=None if outcome.ttft_s is None else round(outcome.ttft_s * 1000, 3),
        input_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
        receipt=request.id,
        tier=outcome.tier,
        key_id=outcome.key_id,
        queued_ms=round(outcome.queued_s * 1000, 3),
        promise_met=outcome.promise_met,
        resumed=outcome.resumed,
        unresumed=outcome.unresumed,
        wasted_tokens=outcome.wasted_tokens,
    )
    return _as_json(line) + b"\n"


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


def _trace(parent: str | None) -> tuple[str | None, str | None]:
    """Trace and span of the caller: we make no spans of our own yet."""
    match = _TRACEPARENT.fullmatch(parent) if parent else None
    return (match[1], match[2]) if match else (None, None)


def _error_type(outcome: Outcome) -> str | None:
    if outcome.reason is not None:
        return outcome.reason.value
    if outcome.status == CLIENT_GONE_STATUS:
        return "client_gone"
    return str(outcome.status) if outcome.status >= 400 else None


_UNPRICED = ModelEntry("")


def usage_line(outcome: Outcome, prices: Mapping[str, ModelEntry]) -> bytes:
    """The usage record of one request. Costs are null where the model has no price or the engine told no tokens."""
    usage, request = outcome.usage, outcome.request
    entry = prices.get(request.model, _UNPRICED)
    line = UsageLine(
        timestamp=format_timestamp(outcome.at_s),
        request_id=request.id,
        tenant=outcome.tenant,
        model=request.model,
        api=request.api.value,
        status=outcome.status,
        input_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
        input_cost=entry.input_cost(usage.prompt_tokens, usage.cached_tokens) if usage else None,
        output_cost=entry.output_cost(usage.completion_tokens) if usage else None,
        tier=outcome.tier,
        key_id=outcome.key_id,
        user=outcome.user,
        group=outcome.group,
        duration_ms=round(outcome.duration_s * 1000, 3),
        shared=outcome.shared,
        cascade=outcome.cascade,
        reason=outcome.reason.value if outcome.reason else None,
        stream=request.stream,
        prompt_bytes=request.prompt.size,
        max_tokens=None if request.max_tokens is None else request.max_tokens * request.sequences,
    )
    return _as_json(line) + b"\n"

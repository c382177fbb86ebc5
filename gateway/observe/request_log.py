"""The request log: one JSON line per request, and one usage record per request for chargeback.

A witness only puts the outcome aside; a moment later all of them are encoded at once and handed to a thread that
writes. Says nothing of what was asked or answered, and no key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from gateway.config.models import ModelEntry
from gateway.observe.pricing import cost_of
from gateway.pipeline.record import Outcome, RecordFields
from gateway.runtime.event_log import LEVELS
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


REQUEST_FIELDS = RecordFields(
    *(
        "timestamp",
        "level",
        "event",
        "message",
        "request_id=id",
        "trace_id",
        "request_span_id=span_id",
        "parent_span_id",
    ),
    *("tenant", "tier"),
    *("key_id", "api", "model", "stream", "status", "reason", "upstream", "dp_rank", "attempts=attempt_count"),
    *("duration_s=rounded_duration_s", "ttft_s=rounded_ttft_s", "queue_wait_s=rounded_queue_wait_s", "slo_met"),
    *("input_tokens", "cached_input_tokens", "output_tokens", "resumes", "resume_failure", "wasted_tokens"),
    *("client_request_id", "path", "requested_model", "role", "cost=unset", "providers"),
)
"""A line of the request log."""

USAGE_FIELDS = RecordFields(
    *("schema=usage_schema", "timestamp", "request_id=id", "tenant", "model", "api", "status", "input_tokens"),
    *("cached_input_tokens", "output_tokens", "input_cost=unset", "output_cost=unset", "tier", "key_id", "user"),
    *("group", "duration_s=rounded_duration_s", "coalesced_with", "cascade", "reason", "stream", "prompt_bytes"),
    *("max_tokens", "cost=unset", "providers"),
)
"""A usage record."""

_as_json = msgspec.json.Encoder().encode

_UNPRICED = ModelEntry("")


def request_line(outcome: Outcome, level: Callable[[], str], prices: Mapping[str, ModelEntry]) -> bytes:
    """Return the log line of one request; empty where it is below `level`. Its cost is null without price or tokens."""
    if LEVELS[outcome.level] < LEVELS[level()]:
        return b""
    return _as_json(REQUEST_FIELDS.of(outcome, cost=cost_of(outcome, prices))) + b"\n"


def usage_line(outcome: Outcome, prices: Mapping[str, ModelEntry]) -> bytes:
    """Return the usage record of one request. Costs are null where the model has no price or no tokens are known."""
    usage, entry = outcome.usage, prices.get(outcome.model, _UNPRICED)
    line = USAGE_FIELDS.of(
        outcome,
        input_cost=entry.input_cost(usage.prompt_tokens, usage.cached_tokens) if usage else None,
        output_cost=entry.output_cost(usage.completion_tokens) if usage else None,
        cost=cost_of(outcome, prices),
    )
    return _as_json(line) + b"\n"

"""The spans of one request, from its record: values only, nothing of OpenTelemetry's libraries, no I/O.

Names and attributes follow OpenTelemetry's conventions for HTTP and generative AI, and vLLM's own spans; what those
lack is `hearth.*` (docs/tracing.md). A span holds sizes, times, names from configuration and closed reasons: no text of
a prompt, an answer or an error, and of a client's own names only that of a model that was placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from cascade.record import FAILED, CascadeStep
from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.record import CLIENT_GONE_STATUS, Outcome
from gateway.runtime.trace_context import RequestTrace, SpanRole
from routing.decision.placement import AttemptReceipt
from routing.eligible import PairingFallback
from routing.rejection import Reason
from routing.request import GENERATING, Api

AttributeValue = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, AttributeValue]

CLIENT_GONE = "client_gone"
"""`error.type` of a request whose client left."""

OPERATIONS: Mapping[Api, str] = {
    Api.CHAT: "chat",
    Api.RESPONSES: "chat",
    Api.MESSAGES: "chat",
    Api.COMPLETIONS: "text_completion",
    Api.EMBEDDINGS: "embeddings",
}
"""`gen_ai.operation.name`; other APIs have their own name."""

PROVIDER = "vllm"

MAX_NAME_CHARS = 256
MAX_FINISH_REASON_CHARS = 32

UNKNOWN_MODELS = frozenset({Reason.UNKNOWN_MODEL, Reason.MODEL_NOT_ALLOWED})

FAILED_TRANSFERS = frozenset({PairingFallback.TRANSFER_STALLED, PairingFallback.TRANSFER_FAILED})


class SpanKind(IntEnum):
    """As OTLP numbers them."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Span(Struct, frozen=True, gc=False):
    """One span; times in Unix seconds."""

    name: str
    kind: SpanKind
    span_id: int
    parent_id: int | None
    """None: the trace begins with it."""
    start_s: float
    end_s: float
    attributes: Attributes
    is_error: bool = False
    """Whether its status is an error: of a server only where the server is at fault."""


def spans_of(outcome: Outcome) -> list[Span]:
    """Return all spans of a request, each after its parent; none where it has no trace of ours."""
    trace = outcome.trace
    if trace is None or not trace.root:
        return []
    return [_server_span(outcome, trace), *_AttemptSpans(outcome, trace).spans()]


def _server_span(outcome: Outcome, trace: RequestTrace) -> Span:
    arrived_s, parent = outcome.at_s - outcome.duration_s, trace.parent_id
    attributes = _model_attributes(outcome, _requested_model(outcome))
    attributes |= {
        "http.response.status_code": outcome.status,
        "hearth.request_id": outcome.id,
        "hearth.tier": outcome.tier,
        "hearth.frontend": outcome.frontend,
        "hearth.attempts": len(outcome.attempts),
        "hearth.queue_wait_s": outcome.queue_wait_s,
    }
    optional: Mapping[str, AttributeValue | None] = {
        "gen_ai.response.model": outcome.model if outcome.attempts else None,
        "gen_ai.request.max_tokens": outcome.max_tokens,
        "gen_ai.response.time_to_first_chunk": outcome.ttft_s,
        "gen_ai.response.finish_reasons": _finish_reasons(outcome.finish_reason),
        "error.type": _error_of(outcome),
        "hearth.tenant": outcome.tenant,
        "hearth.slo_met": outcome.slo_met,
        "hearth.coalesced_with": outcome.coalesced_with,
        "hearth.extproc_mode": outcome.extproc_mode,
        "hearth.cascade": None if outcome.cascade is None else outcome.cascade.cascade,
        "hearth.resumes": outcome.resumes or None,
        "hearth.resume_failure": outcome.resume_failure,
    }
    attributes |= {name: value for name, value in optional.items() if value is not None}
    if (usage := outcome.usage) is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens is not None:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    return Span(
        _name_of(attributes),
        SpanKind.SERVER,
        trace.root,
        None if parent is None else int(parent, 16),
        arrived_s,
        outcome.at_s,
        attributes,
        is_error=outcome.status >= 500,
    )


class _AttemptSpans:
    """Builds the spans below that of the request, in order of time."""

    def __init__(self, outcome: Outcome, trace: RequestTrace) -> None:
        self._outcome = outcome
        self._trace = trace
        self._arrived_s = outcome.at_s - outcome.duration_s
        self._steps: list[CascadeStep] = list(outcome.cascade.steps) if outcome.cascade is not None else []
        self._last_end_s = 0.0
        """When the attempt before ended, in seconds from arrival."""

    def spans(self) -> Iterator[Span]:
        number, attempts = 1, self._outcome.attempts
        for model_attempts in _by_model(attempts) if self._outcome.cascade is not None else [attempts]:
            parent = self._trace.root
            if self._outcome.cascade is not None:
                yield (span := self._model_span(model_attempts, number))
                parent = span.span_id
            for attempt in model_attempts:
                yield from self._attempt(attempt, number, parent)
                number += 1
        yield from self._rejection(number)

    def _span(
        self,
        name: str,
        number: int,
        role: SpanRole,
        parent: int,
        start_s: float,
        end_s: float,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
    ) -> Span:
        """Return a span; times in seconds from arrival. It is an error where it has an `error.type`."""
        found = attributes or {}
        return Span(
            name,
            kind,
            self._trace.child(number, role),
            parent,
            self._arrived_s + start_s,
            self._arrived_s + max(start_s, end_s),
            found,
            is_error="error.type" in found,
        )

    def _model_span(self, attempts: Sequence[AttemptReceipt], number: int) -> Span:
        """Return the span of one model of a cascade: from where the one before was left to its last attempt's end."""
        model, last = attempts[0].model, attempts[-1]
        attributes: Attributes = {"gen_ai.request.model": model}
        step = self._take_step(model)
        if step is not None:
            attributes |= {"hearth.cascade.result": step.result, "hearth.cascade.cost": step.cost}
            if step.signal is not None:
                attributes["hearth.cascade.signal"] = step.signal
            if step.result == FAILED:
                attributes["error.type"] = last.result
        return self._span(
            f"cascade {model}",
            number,
            SpanRole.CASCADE_MODEL,
            self._trace.root,
            self._last_end_s,
            last.start_s + last.duration_s,
            attributes=attributes,
        )

    def _take_step(self, model: str) -> CascadeStep | None:
        """Return the next step of a model; steps before it had no attempt."""
        while self._steps:
            step = self._steps.pop(0)
            if step.model == model:
                return step
        return None

    def _attempt(self, attempt: AttemptReceipt, number: int, parent: int) -> Iterator[Span]:
        start_s, end_s = attempt.start_s, attempt.start_s + attempt.duration_s
        yield self._span("admission", number, SpanRole.ADMISSION, parent, self._last_end_s, start_s)
        self._last_end_s = end_s
        choice: Attributes = {
            "hearth.engine": attempt.engine,
            "hearth.candidates": attempt.candidate_count,
            "hearth.cache_source": attempt.cache_source,
            "hearth.predicted_input_tokens": attempt.predicted_input_tokens,
            "hearth.predicted_cached_input_tokens": attempt.predicted_cached_input_tokens,
            "hearth.predicted_ttft_s": attempt.predicted_ttft_s,
        }
        if attempt.prefill_engine is not None:
            choice["hearth.prefill_engine"] = attempt.prefill_engine
        if attempt.connector is not None:
            choice["hearth.connector"] = attempt.connector
        yield self._span("choose engine", number, SpanRole.CHOICE, parent, start_s, start_s, attributes=choice)

        attributes = _model_attributes(self._outcome, attempt.model)
        attributes |= _server_address(attempt.engine)
        attributes["hearth.attempt.number"] = number
        attributes["hearth.attempt.kind"] = attempt.kind
        if attempt.result != AttemptStatus.OK:
            attributes["error.type"] = attempt.result
        if attempt.fallback_reason is not None:
            attributes["hearth.pair.fallback_reason"] = attempt.fallback_reason
        if attempt.actual_cached_input_tokens is not None:
            attributes["gen_ai.usage.cache_read.input_tokens"] = attempt.actual_cached_input_tokens
        span = self._span(
            _name_of(attributes),
            number,
            SpanRole.ATTEMPT,
            parent,
            start_s,
            end_s,
            kind=SpanKind.CLIENT,
            attributes=attributes,
        )
        yield span
        if attempt.prefill_engine is None:
            yield from self._single_engine(attempt, number, span.span_id)
        else:
            yield from self._pair(attempt, attempt.prefill_engine, number, span.span_id)

    def _single_engine(self, attempt: AttemptReceipt, number: int, parent: int) -> Iterator[Span]:
        """Yield prefill and decode as the gateway sees them: before and after the first token, if that is seen."""
        start_s, ttft_s = attempt.start_s, attempt.actual_ttft_s
        if ttft_s is None or self._outcome.api not in GENERATING:
            return
        yield self._span("prefill", number, SpanRole.PREFILL, parent, start_s, start_s + ttft_s)
        yield self._decode(attempt, number, parent, start_s + ttft_s)

    def _pair(self, attempt: AttemptReceipt, prefill_engine: str, number: int, parent: int) -> Iterator[Span]:
        """Yield the parts of a pair: prefill by one engine, transfer, decode by the other."""
        start_s, ttft_s, prefill_s = attempt.start_s, attempt.actual_ttft_s, attempt.prefill_s
        attributes = _server_address(prefill_engine)
        end_s = start_s + attempt.duration_s
        if prefill_s is None:
            # It failed, or the next hop has done both and shows the first token only.
            if ttft_s is None and attempt.fallback_reason is not None:
                attributes["error.type"] = attempt.fallback_reason
            elif ttft_s is not None:
                end_s = start_s + ttft_s
            attributes["hearth.prefill.includes_transfer"] = ttft_s is not None
        else:
            end_s = start_s + prefill_s
        yield self._span(
            "prefill", number, SpanRole.PREFILL, parent, start_s, end_s, kind=SpanKind.CLIENT, attributes=attributes
        )
        if prefill_s is not None and (attempt.actual_transfer_s is not None or _has_failed_transfer(attempt)):
            yield self._transfer(attempt, number, parent, end_s)
        if ttft_s is not None:
            yield self._decode(attempt, number, parent, start_s + ttft_s)

    def _transfer(self, attempt: AttemptReceipt, number: int, parent: int, start_s: float) -> Span:
        """Return the hand-over of KV: from the prefill engine's answer to the first token, or to where it was given
        up.
        """
        attributes: Attributes = {}
        if attempt.connector is not None:
            attributes["hearth.connector"] = attempt.connector
        if attempt.predicted_transfer_s is not None:
            attributes["hearth.predicted_transfer_s"] = attempt.predicted_transfer_s
        if attempt.actual_transfer_s is not None:
            end_s = start_s + attempt.actual_transfer_s
        else:
            end_s = attempt.start_s + attempt.duration_s
            attributes["error.type"] = str(attempt.fallback_reason)
        return self._span("transfer", number, SpanRole.TRANSFER, parent, start_s, end_s, attributes=attributes)

    def _decode(self, attempt: AttemptReceipt, number: int, parent: int, start_s: float) -> Span:
        end_s = attempt.start_s + attempt.duration_s
        return self._span("decode", number, SpanRole.DECODE, parent, start_s, end_s)

    def _rejection(self, number: int) -> Iterator[Span]:
        """Yield the wait that ended without a choice: a rejection, or a client that left."""
        outcome, error = self._outcome, _error_of(self._outcome)
        is_waiting = not outcome.attempts or outcome.duration_s > self._last_end_s
        if outcome.coalesced_with is None and error is not None and is_waiting and outcome.status >= 400:
            yield self._span(
                "admission",
                number,
                SpanRole.ADMISSION,
                self._trace.root,
                self._last_end_s,
                outcome.duration_s,
                attributes={"error.type": error},
            )


def _by_model(attempts: Sequence[AttemptReceipt]) -> Iterator[Sequence[AttemptReceipt]]:
    """Yield runs of attempts at one model."""
    start = 0
    for at in range(1, len(attempts) + 1):
        if at == len(attempts) or attempts[at].model != attempts[start].model:
            yield attempts[start:at]
            start = at


def _requested_model(outcome: Outcome) -> str:
    """Return the model that the client named; empty where it may be any text: the request was never placed."""
    if not outcome.attempts and (outcome.reason in UNKNOWN_MODELS or outcome.queue_wait_s == 0.0):
        return ""
    if outcome.cascade is not None:
        return outcome.cascade.cascade
    return outcome.downgraded_from or outcome.model


def _model_attributes(outcome: Outcome, model: str) -> Attributes:
    found: Attributes = {
        "gen_ai.operation.name": OPERATIONS.get(outcome.api, outcome.api.value),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.stream": outcome.stream,
    }
    if model:
        found["gen_ai.request.model"] = model[:MAX_NAME_CHARS]
    return found


def _name_of(attributes: Attributes) -> str:
    """Return `{operation} {model}`, the conventions' name of a span."""
    operation, model = attributes["gen_ai.operation.name"], attributes.get("gen_ai.request.model")
    return f"{operation} {model}" if model else str(operation)


def _error_of(outcome: Outcome) -> str | None:
    """Return the closed reason by which a request failed, the status of a pod's error, or None."""
    if outcome.reason is not None:
        return outcome.reason.value
    if outcome.status == CLIENT_GONE_STATUS:
        return CLIENT_GONE
    return str(outcome.status) if outcome.status >= 400 else None


def _finish_reasons(reason: str | None) -> tuple[str, ...] | None:
    """Return it as the conventions have it; a pod's text that is too long for a reason is left out."""
    return (reason,) if reason and len(reason) <= MAX_FINISH_REASON_CHARS else None


def _has_failed_transfer(attempt: AttemptReceipt) -> bool:
    return attempt.fallback_reason in FAILED_TRANSFERS


def _server_address(engine: str) -> Attributes:
    """Return host and port of an engine named `URL` or `URL#RANK`."""
    url, _, rank = engine.partition("#")
    scheme, _, authority = url.partition("://")
    authority = authority.partition("/")[0]
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdigit():
        host, port = authority, "443" if scheme == "https" else "80"
    found: Attributes = {"server.address": host.strip("[]"), "server.port": int(port)}
    if rank:
        found["hearth.dp_rank"] = int(rank)
    return found

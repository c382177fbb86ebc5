"""The spans of a request, from its record."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.record import ESCALATED, FAILED, KEPT, CascadeResult, CascadeStep
from gateway.pipeline.record import Outcome
from gateway.runtime.trace_context import RequestTrace, SpanRole
from gateway.tracing.spans import Span, SpanKind, spans_of
from routing.eligible import PairingFallback
from routing.rejection import Reason
from routing.request import Api
from tests.gateway.samples import AT_S, a_request, an_attempt, an_outcome

TRACE = RequestTrace("0a" * 16, "0b" * 8, root=0xABCD, flags=1)
BEGAN_S = AT_S - 1.25


def an_ended(**changes: Any) -> Outcome:
    return an_outcome(trace=TRACE, **changes)


def shown(outcome: Outcome) -> list[tuple[str, float, float]]:
    """Names with start and end, in seconds from arrival."""
    return [(span.name, round(span.start_s - BEGAN_S, 3), round(span.end_s - BEGAN_S, 3)) for span in spans_of(outcome)]


def named(outcome: Outcome, name: str) -> Span:
    return next(span for span in spans_of(outcome) if span.name == name)


def check_tree(spans: list[Span]) -> None:
    """Ids are distinct, each parent stands before its children, and none begins before its parent."""
    seen: dict[int, Span] = {}
    for at, span in enumerate(spans):
        assert span.span_id not in seen
        if at:
            assert span.parent_id in seen
            parent = seen[span.parent_id]
            assert parent.start_s - 1e-6 <= span.start_s <= span.end_s <= parent.end_s + 1e-6
        seen[span.span_id] = span


def test_a_stream_on_one_engine() -> None:
    """Wait, choice, prefill until the first token, decode after it."""
    outcome = an_ended(
        attempts=(an_attempt(model="tiny", start_s=0.1, duration_s=1.15, actual_ttft_s=0.15),), queue_wait_s=0.1
    )
    assert shown(outcome) == [
        ("chat tiny", 0.0, 1.25),
        ("admission", 0.0, 0.1),
        ("choose engine", 0.1, 0.1),
        ("chat tiny", 0.1, 1.25),
        ("prefill", 0.1, 0.25),
        ("decode", 0.25, 1.25),
    ]
    spans = spans_of(outcome)
    check_tree(spans)
    assert [span.kind for span in spans[:4]] == [
        *(SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.INTERNAL, SpanKind.CLIENT)
    ]
    assert spans[0].parent_id == int(TRACE.parent_id or "", 16)
    assert spans[3].span_id == TRACE.child(1, SpanRole.ATTEMPT)


def test_the_attributes_are_those_of_the_conventions() -> None:
    """Names and values of the request's span and of an attempt's."""
    outcome = an_ended(
        request=a_request(max_tokens=64),
        attempts=(an_attempt(model="tiny", engine="http://10.0.0.1:8000#3", start_s=0.1, duration_s=1.15),),
        slo_met=True,
    )
    spans = spans_of(outcome)
    assert spans[0].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.stream": True,
        "gen_ai.request.model": "tiny",
        "http.response.status_code": 200,
        "hearth.request_id": "r-1",
        "hearth.tier": "default",
        "hearth.frontend": "http",
        "hearth.attempts": 1,
        "hearth.queue_wait_s": 0.0,
        "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.response.finish_reasons": ("stop",),
        "hearth.tenant": "legal",
        "hearth.slo_met": True,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 11,
        "gen_ai.usage.cache_read.input_tokens": 96,
    }
    assert spans[3].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.stream": True,
        "gen_ai.request.model": "tiny",
        "server.address": "10.0.0.1",
        "server.port": 8000,
        "hearth.dp_rank": 3,
        "hearth.attempt.number": 1,
        "hearth.attempt.kind": "first",
        "gen_ai.usage.cache_read.input_tokens": 96,
    }
    assert spans[2].attributes["hearth.predicted_ttft_s"] == 0.1
    assert not any(span.is_error for span in spans)


def test_a_pair_has_prefill_transfer_and_decode() -> None:
    """One after the other, the prefill at its own server."""
    attempt = an_attempt(
        model="tiny",
        duration_s=1.25,
        prefill_engine="http://[::1]:9000",
        connector="nixl",
        prefill_s=0.4,
        predicted_transfer_s=0.04,
        actual_transfer_s=0.05,
        actual_ttft_s=0.45,
    )
    outcome = an_ended(attempts=(attempt,))
    assert shown(outcome)[3:] == [
        ("chat tiny", 0.0, 1.25),
        ("prefill", 0.0, 0.4),
        ("transfer", 0.4, 0.45),
        ("decode", 0.45, 1.25),
    ]
    check_tree(spans_of(outcome))
    prefill = named(outcome, "prefill")
    assert (prefill.kind, prefill.attributes) == (
        SpanKind.CLIENT,
        {"server.address": "::1", "server.port": 9000},
    )
    assert prefill.span_id == TRACE.child(1, SpanRole.PREFILL)
    assert named(outcome, "transfer").attributes == {"hearth.connector": "nixl", "hearth.predicted_transfer_s": 0.04}


def test_a_pair_that_the_next_hop_splits_shows_its_first_token() -> None:
    """Prefill and transfer are one span there, and say so."""
    attempt = an_attempt(model="tiny", duration_s=1.25, prefill_engine="http://p:1", actual_ttft_s=0.45)
    outcome = an_ended(attempts=(attempt,))
    assert shown(outcome)[4:] == [("prefill", 0.0, 0.45), ("decode", 0.45, 1.25)]
    assert named(outcome, "prefill").attributes["hearth.prefill.includes_transfer"] is True


@pytest.mark.parametrize(
    ("fallback", "prefill_s", "name"),
    [(PairingFallback.PREFILL_FAILED, None, "prefill"), (PairingFallback.TRANSFER_STALLED, 0.2, "transfer")],
)
def test_the_part_of_a_pair_that_failed_has_the_error(
    fallback: PairingFallback, prefill_s: float | None, name: str
) -> None:
    """By the closed reason of the fallback."""
    attempt = an_attempt(
        *(),
        model="tiny",
        result="upstream_busy",
        duration_s=0.5,
        prefill_engine="http://p:1",
        prefill_s=prefill_s,
        fallback_reason=fallback,
        actual_ttft_s=None,
    )
    outcome = an_ended(attempts=(attempt, an_attempt(model="tiny", start_s=0.5, duration_s=0.75)))
    failed = named(outcome, name)
    assert (failed.attributes["error.type"], failed.is_error) == (fallback, True)
    check_tree(spans_of(outcome))


def test_each_attempt_and_each_resume_has_its_span() -> None:
    """The wait before each is its own; the failed one has the closed result."""
    outcome = an_ended(
        attempts=(
            an_attempt(model="tiny", engine="http://a:1", result="unreachable", start_s=0.1, actual_ttft_s=None),
            an_attempt(
                model="tiny",
                engine="http://b:1",
                result="upstream_disconnected",
                kind="retry",
                start_s=0.2,
                duration_s=0.4,
                actual_ttft_s=0.1,
            ),
            an_attempt(
                model="tiny", engine="http://c:1", kind="resume", start_s=0.7, duration_s=0.55, actual_ttft_s=0.1
            ),
        ),
        resumes=1,
    )
    spans = spans_of(outcome)
    check_tree(spans)
    attempts = [span for span in spans if "hearth.attempt.number" in span.attributes]
    assert [(span.attributes["hearth.attempt.kind"], span.attributes.get("error.type")) for span in attempts] == [
        ("first", "unreachable"),
        ("retry", "upstream_disconnected"),
        ("resume", None),
    ]
    assert [each[1:] for each in shown(outcome) if each[0] == "admission"] == [(0.0, 0.1), (0.1, 0.2), (0.6, 0.7)]
    assert spans[0].attributes["hearth.resumes"] == 1


def test_models_of_a_cascade_have_their_spans() -> None:
    """Each holds the attempts at it, with the verdict of its judge."""
    steps = (
        CascadeStep("small", ESCALATED, signal=0.25, cost=1.5),
        CascadeStep("none", FAILED),
        CascadeStep("big", KEPT),
    )
    outcome = an_ended(
        request=a_request(model="big"),
        attempts=(
            an_attempt(model="small", result="unreachable", duration_s=0.1, actual_ttft_s=None),
            an_attempt(model="small", start_s=0.2, duration_s=0.3),
            an_attempt(model="big", kind="escalation", start_s=0.6, duration_s=0.65),
        ),
        cascade=CascadeResult("auto", "other", "small", steps),
    )
    spans = spans_of(outcome)
    check_tree(spans)
    assert [each for each in shown(outcome) if each[0].startswith("cascade")] == [
        ("cascade small", 0.0, 0.5),
        ("cascade big", 0.5, 1.25),
    ]
    small = named(outcome, "cascade small")
    assert small.attributes == {
        "gen_ai.request.model": "small",
        "hearth.cascade.result": ESCALATED,
        "hearth.cascade.cost": 1.5,
        "hearth.cascade.signal": 0.25,
    }
    assert sum(span.parent_id == small.span_id for span in spans) == 6
    assert (spans[0].name, spans[0].attributes["gen_ai.response.model"]) == ("chat auto", "big")


def test_a_rejected_wait_has_the_reason() -> None:
    """No choice was made; a 429 is no fault of the server."""
    outcome = an_ended(
        attempts=(), status=429, reason=Reason.OVERLOADED, usage=None, ttft_s=None, queue_wait_s=1.2, finish_reason=None
    )
    assert shown(outcome) == [("chat tiny", 0.0, 1.25), ("admission", 0.0, 1.25)]
    root, wait = spans_of(outcome)
    assert root.attributes["error.type"] == wait.attributes["error.type"] == "overloaded"
    assert (root.is_error, wait.is_error) == (False, True)


def test_a_client_that_left_is_an_error_of_its_own() -> None:
    """In the queue as in a stream."""
    waiting = an_ended(attempts=(), status=499, usage=None, queue_wait_s=1.0)
    assert [span.attributes.get("error.type") for span in spans_of(waiting)] == ["client_gone", "client_gone"]
    reading = an_ended(attempts=(an_attempt(model="tiny", result="client_gone", duration_s=1.25),), status=499)
    errors = [span.name for span in spans_of(reading) if span.attributes.get("error.type") == "client_gone"]
    assert errors == ["chat tiny", "chat tiny"]


def test_a_model_that_is_not_served_is_not_named() -> None:
    """Its name may be any text of the client."""
    for reason in (Reason.UNKNOWN_MODEL, Reason.BAD_REQUEST):
        outcome = an_ended(request=a_request(model="SECRET"), attempts=(), status=404, reason=reason)
        assert "SECRET" not in str(spans_of(outcome))


def test_other_apis_have_no_decode() -> None:
    """Embeddings are done with their prefill."""
    outcome = an_ended(request=a_request(api=Api.EMBEDDINGS), attempts=(an_attempt(model="tiny", duration_s=1.25),))
    assert [name for name, *_ in shown(outcome)] == ["embeddings tiny", "admission", "choose engine", "embeddings tiny"]


def test_texts_of_pods_and_clients_are_left_out() -> None:
    """Errors, sessions, users and long reasons of a pod."""
    outcome = an_ended(
        request=a_request(session="SECRET"), error="SECRET", user="SECRET", finish_reason="SECRET" * 10, status=502
    )
    assert "SECRET" not in str(spans_of(outcome))
    assert spans_of(outcome)[0].is_error

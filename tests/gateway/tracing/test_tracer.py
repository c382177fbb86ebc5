"""Which requests are traced, and in whose trace."""

from __future__ import annotations

import random

import pytest

from gateway.config.tracing import AcceptParent
from gateway.pipeline.record import Outcome
from gateway.runtime.trace_context import RequestTrace
from gateway.tracing.tracer import Tracer
from tests.gateway.samples import an_outcome

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def a_tracer(
    ratio: float = 1.0, accept: AcceptParent = AcceptParent.TRUSTED_PROXIES, exported: list[Outcome] | None = None
) -> Tracer:
    drawn = random.Random(1)
    export = (exported if exported is not None else []).append
    return Tracer(sample_ratio=ratio, accept_parent=accept, random_bits=drawn.getrandbits, export=export)


def headers(flags: str) -> dict[bytes, bytes]:
    return {b"traceparent": f"00-{TRACE}-{SPAN}-{flags}".encode(), b"tracestate": b"a=1"}


@pytest.mark.parametrize(
    ("accept", "is_trusted", "continues"),
    [
        (AcceptParent.NONE, True, False),
        (AcceptParent.TRUSTED_PROXIES, True, True),
        (AcceptParent.TRUSTED_PROXIES, False, False),
        (AcceptParent.ALL, False, True),
    ],
)
def test_a_trace_is_continued_for_accepted_callers_only(
    accept: AcceptParent, is_trusted: bool, continues: bool
) -> None:
    """Of others neither ids nor flags nor state get in: a client can neither join a trace nor have itself sampled."""
    trace = a_tracer(0.0, accept).begin(headers("01"), is_trusted=is_trusted)
    assert (trace.trace_id == TRACE) is continues
    assert (trace.parent_id, trace.state, trace.is_sampled) == (
        (SPAN, "a=1", True) if continues else (None, None, False)
    )
    assert trace.root != 0


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_continued_trace_is_sampled_as_its_parent_is(ratio: float) -> None:
    """Whatever the ratio says."""
    tracer = a_tracer(ratio)
    assert tracer.begin(headers("01"), is_trusted=True).is_sampled
    assert not tracer.begin(headers("00"), is_trusted=True).is_sampled


def test_new_traces_are_sampled_by_their_ratio() -> None:
    """By the id's random bits, so that whoever sees the id can decide alike."""
    tracer = a_tracer(0.1)
    sampled = sum(tracer.begin({}, is_trusted=False).is_sampled for _ in range(20_000))
    assert 1_850 < sampled < 2_150
    assert all(a_tracer(1.0).begin({}, is_trusted=False).is_sampled for _ in range(100))
    assert not any(a_tracer(0.0).begin({}, is_trusted=False).is_sampled for _ in range(100))


def test_an_invalid_context_begins_a_trace() -> None:
    """It is nobody's parent."""
    trace = a_tracer().begin({b"traceparent": b"00-0-0-01"}, is_trusted=True)
    assert trace.parent_id is None
    assert len(trace.trace_id) == 32


def test_sampled_requests_are_exported() -> None:
    """What is sent on a request's behalf after its end has the request's own span as its parent."""
    exported: list[Outcome] = []
    tracer = a_tracer(exported=exported)
    sampled, other = RequestTrace(TRACE, root=7, flags=1, attempt=2), RequestTrace(TRACE, root=8, attempt=1)
    for trace in (sampled, other, RequestTrace(TRACE, SPAN, flags=1), None):
        tracer.on_outcome(an_outcome(trace=trace))
    assert [outcome.trace for outcome in exported] == [sampled]
    assert (sampled.attempt, other.attempt) == (0, 0)


def test_a_new_trace_that_is_not_sampled_has_its_header_line() -> None:
    """One for all attempts, which have no spans. A sampled one makes a line for each."""
    trace = a_tracer(0.0).begin({}, is_trusted=False)
    assert trace.line == trace.header_lines()
    trace.attempt = 2
    assert trace.line != trace.header_lines()
    assert a_tracer(1.0).begin({}, is_trusted=False).line == ""

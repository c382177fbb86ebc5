"""W3C Trace Context: what is accepted of a caller, and what pods are sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.runtime.trace_context import ID_MASK, RequestTrace, SpanRole, received_trace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{SPAN}-01".encode()


def test_a_valid_context_is_read() -> None:
    """Ids, the sampled and the random flag, and the vendors' state."""
    trace = received_trace({b"traceparent": VALID, b"tracestate": b"a=1,b=2"})
    assert trace == RequestTrace(TRACE, SPAN, flags=1, state="a=1,b=2")
    assert trace.is_sampled
    assert trace.span_id is None
    unsampled = received_trace({b"traceparent": f"00-{TRACE}-{SPAN}-fe".encode()})
    assert unsampled is not None
    assert (unsampled.flags, unsampled.is_sampled, unsampled.state) == (2, False, None)


def test_a_later_version_may_have_more_fields() -> None:
    """What follows the flags is left out."""
    trace = received_trace({b"traceparent": b"cc" + VALID[2:] + b"-more"})
    assert trace is not None
    assert trace.trace_id == TRACE


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nonsense",
        VALID + b"-more",
        b"ff" + VALID[2:],
        VALID.upper().replace(b"00-", b"00-"),
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE}-{SPAN}-1".encode(),
        VALID + b", " + VALID,
        VALID + b"\n",
        b"cc" + VALID[2:] + b"-" + b"x" * 512,
    ],
)
def test_an_invalid_context_is_none(value: bytes) -> None:
    """Neither a wrong form nor an id of zeros is continued, nor one that was sent twice."""
    assert received_trace({b"traceparent": value, b"tracestate": b"a=1"}) is None


@pytest.mark.parametrize("state", [b"x" * 513, b"a=\xff", b"a=1\r\nx: y", b""])
def test_an_invalid_state_is_left_out(state: bytes) -> None:
    """The trace is continued without it."""
    trace = received_trace({b"traceparent": VALID, b"tracestate": state})
    assert trace is not None
    assert trace.state is None


def test_a_pod_is_sent_the_span_of_its_attempt() -> None:
    """Another one per attempt and role; without an attempt that of the request."""
    trace = RequestTrace(TRACE, SPAN, root=0xFFFF, flags=1, state="a=1")
    sent = {}
    for attempt in (0, 1, 2):
        trace.attempt = attempt
        sent[attempt] = trace.fields()
    assert sent[0] == [("traceparent", f"00-{TRACE}-000000000000ffff-01"), ("tracestate", "a=1")]
    assert len({str(fields) for fields in sent.values()}) == 3
    assert trace.fields(SpanRole.PREFILL)[0] != trace.fields()[0]
    assert trace.fields(SpanRole.PREFILL)[0][1] == f"00-{TRACE}-{trace.child(2, SpanRole.PREFILL):016x}-01"


@given(st.integers(1, ID_MASK))
def test_spans_of_a_request_have_ids_of_their_own(root: int) -> None:
    """None is zero, none is another's."""
    trace = RequestTrace(TRACE, root=root)
    ids = {trace.child(attempt, role) for attempt in range(1, 40) for role in SpanRole} | {root}
    assert len(ids) == 39 * len(SpanRole) + 1
    assert all(0 < each <= ID_MASK for each in ids)


@given(st.binary(max_size=600), st.binary(max_size=600))
def test_any_header_can_be_read(parent: bytes, state: bytes) -> None:
    """What is accepted can be sent in a header: no line break gets through."""
    trace = received_trace({b"traceparent": parent, b"tracestate": state})
    if trace is not None:
        assert all(value.isprintable() and value.isascii() for _, value in trace.fields())

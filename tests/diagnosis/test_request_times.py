"""Where the seconds of requests went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.request_times import MAX_KEYS, Phase, RequestMoments, TimesBuilder, TrafficKey, joined, split

TIMES = st.floats(0.0, 100.0)


@given(
    TIMES,
    TIMES,
    TIMES,
    st.none() | TIMES,
    st.none() | TIMES,
    st.none() | st.floats(-50, 50),
    st.none() | TIMES,
    TIMES,
)
def test_the_phases_add_up_to_the_time_of_the_request(
    wait: float,
    until_first: float,
    stream: float,
    queue: float | None,
    prefilled: float | None,
    shift: float | None,
    transfer: float | None,
    stall: float,
) -> None:
    """None is negative, whatever was seen."""
    sent, first = wait, wait + until_first
    moments = RequestMoments(
        arrived_s=0.0,
        sent_s=sent,
        ended_s=first + stream,
        first_token_s=first,
        queue_s=queue if shift is None else (queue or 0.0) + shift,
        prefilled_s=None if prefilled is None else sent + prefilled,
        transfer_s=transfer,
        stall_s=stall,
    )
    seconds = split(moments)
    assert min(seconds.values()) >= -1e-9
    assert sum(seconds.values()) == pytest.approx(first + stream, abs=1e-6)


def test_a_pair_has_its_hand_over_apart() -> None:
    """What lies between the end of prefill and the first token is transfer."""
    seconds = split(RequestMoments(0.0, 0.1, 5.0, 1.5, queue_s=0.2, prefilled_s=1.1, stall_s=0.5))
    assert seconds == pytest.approx(
        {
            Phase.GATEWAY: 0.1,
            Phase.QUEUE: 0.2,
            Phase.PREFILL: 0.8,
            Phase.TRANSFER: 0.4,
            Phase.DECODE: 3.0,
            Phase.STALL: 0.5,
        }
    )


def test_a_request_without_tokens_has_no_decode() -> None:
    """All behind the gateway is queue and prefill."""
    seconds = split(RequestMoments(0.0, 1.0, 4.0))
    assert seconds[Phase.PREFILL] == 3.0
    assert seconds[Phase.DECODE] == 0.0


def test_windows_are_closed_and_joined() -> None:
    """Each window has its own requests; joined they have all."""
    builder, key = TimesBuilder(0.0), TrafficKey("m", "p")
    builder.observe(key, {Phase.PREFILL: 0.5}, 100, 60, 20)
    first = builder.close(10.0)
    builder.observe(key, {Phase.PREFILL: 1.5, Phase.DECODE: 2.0}, 300)
    second = builder.close(20.0)
    assert builder.close(30.0) == {}
    times = joined((first, second))[key]
    assert (times.start_s, times.end_s, times.requests) == (0.0, 20.0, 2)
    assert times.phases[Phase.PREFILL].mean == 1.0
    assert times.prompt_tokens is not None
    assert times.prompt_tokens.mean == 200
    assert times.cold_tokens is not None
    assert times.cold_tokens.count == 1


def test_kinds_of_traffic_are_bounded() -> None:
    """What is beyond the bound is counted together."""
    builder = TimesBuilder(0.0)
    for number in range(MAX_KEYS + 10):
        builder.observe(TrafficKey(f"m{number}"), {})
    closed = builder.close(1.0)
    assert len(closed) == MAX_KEYS + 1
    assert closed[TrafficKey()].requests == 10

"""A stream that is mute for good is found however few others there are, and no living engine pays for it."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.stall_detection import StallBounds, StallVerdict, StreamWatch
from tests.routing.listening import BOUNDS, LOOK_S, Watch

USUAL = StallBounds()


def answered(watch: Watch, silent: StreamWatch, apart_s: float) -> StallVerdict | None:
    """Another answer of a second, and nothing until so many seconds after it began: what `silent` turned out to be."""
    other = watch.asks()
    late = watch.silent_for(1.0, silent, flowing=(other,))
    other.stop()
    return (late or watch.silent_for(apart_s - 1.0, silent)).get(0)


@pytest.mark.parametrize("apart_s", [1.5, 3.0, 6.0, 12.0, 20.0, 60.0])
@pytest.mark.parametrize("pauses_s", [0.0, 3.0, 7.0])
def test_a_mute_stream_is_found_however_few_others_there_are(apart_s: float, pauses_s: float) -> None:
    """In 40 s, also on an engine that now and then says nothing for a while."""
    watch = Watch(bounds=USUAL)
    for _ in range(int(900 / apart_s)):
        stream = watch.streams()
        watch.silent_for(pauses_s, stream)
        watch.flows(stream, seconds=1.0)
        stream.stop()
        watch.now_s += max(0.0, apart_s - pauses_s)
    for _ in range(3):  # The next waits no longer than the last has.
        mute, late, began_s = watch.streams(), None, watch.now_s
        while late is None:
            late = answered(watch, mute, apart_s)
        mute.stop()
        assert watch.now_s - began_s < 40.0 + apart_s


def test_whom_others_outrun_is_found_in_the_least_time() -> None:
    """Six seconds apart are enough to know that the engine is alive, from the first request on."""
    watch = Watch(bounds=USUAL)
    mute, found = watch.streams(), list[StallVerdict | None]()
    while not any(found):
        found.append(answered(watch, mute, 6.0))
    assert found == [None, None, None, StallVerdict.STREAM]


def test_a_mute_stream_teaches_nothing_of_its_engine() -> None:
    """What it was silent for before others asked was its own."""
    watch = Watch(bounds=USUAL)
    watch.flows(watch.streams(), seconds=1200)
    mute = watch.streams()
    assert answered(watch, mute, 9.0) is None
    assert answered(watch, mute, 3.0) is None
    assert watch.bound_s() == USUAL.engine_min_s


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_a_silence_is_as_long_as_whoever_waited_longest_knows(order: tuple[int, ...]) -> None:
    """In whatever order they are looked at."""
    watch = Watch()
    first = watch.streams()
    watch.silent_for(6.0, first)
    second = watch.asks()
    watch.silent_for(2.0, first, second)
    received = first, second, watch.asks()
    watch.flows(*(received[which] for which in order), seconds=LOOK_S)
    assert watch.bound_s() == pytest.approx(4 * 8.5)


def test_who_receives_a_moment_after_others_was_not_alone() -> None:
    """An engine was silent for longer than the last who asked knows; its other streams are heard in the next look."""
    watch = Watch()
    first, second = watch.streams(), watch.streams()
    watch.flows(first, second, seconds=600)
    waiting = watch.asks(expected_s=20.0)
    watch.silent_for(30.0, first, second, waiting)
    last = watch.asks()
    watch.silent_for(5.0, first, second, waiting, last)
    assert watch.silent_for(LOOK_S, first, second, flowing=(waiting, last)) == {}
    watch.flows(first, second, seconds=LOOK_S)
    assert watch.silent_for(BOUNDS.stream_min_s + 2 * LOOK_S, first, flowing=(second,)) == {0: StallVerdict.STREAM}


def test_who_is_put_aside_behind_a_silence_of_all_has_its_time_yet() -> None:
    """What the engine was silent for counts for a look and no more."""
    watch = Watch()
    aside, other = watch.streams(), watch.streams()
    watch.flows(aside, other, seconds=600)
    waiting = watch.asks(expected_s=10.0)
    watch.silent_for(35.0, aside, other, waiting)
    assert watch.silent_for(7.5, aside, flowing=(other, waiting)) == {}
    assert watch.silent_for(1.0, aside, flowing=(other, waiting)) == {0: StallVerdict.STREAM}


def test_who_reads_on_has_its_time_yet() -> None:
    """What others show of the time in which its client did not read is not held against it."""
    watch = Watch()
    slow, complete = watch.streams(), watch.asks(streams_tokens=False)
    for _ in range(60):
        watch.now_s += LOOK_S
        slow.paused(watch.now_s)
        complete.check_silence(watch.now_s)
    other = watch.asks()
    assert watch.silent_for(7.5, slow, flowing=(other,)) == {}
    assert watch.silent_for(1.5, slow, flowing=(other,)) == {0: StallVerdict.STREAM}


def test_bytes_that_lay_behind_a_pause_report_nothing_of_now() -> None:
    """A client that reads on shows no engine to be alive, nor others on it to be lost."""
    watch = Watch()
    slow, other = watch.streams(), watch.streams()
    watch.flows(slow, other, seconds=600)
    waiting = watch.asks(expected_s=10.0)
    for _ in range(60):
        watch.now_s += LOOK_S
        slow.paused(watch.now_s)
        assert (other.check_silence(watch.now_s), waiting.check_silence(watch.now_s)) == (None, None)
    watch.flows(slow, seconds=LOOK_S)
    assert watch.silent_for(9.0, other, waiting) == {}
    assert watch.silent_for(2.0, other, waiting) == {0: StallVerdict.ENGINE, 1: StallVerdict.ENGINE}


def test_one_stream_that_falls_silent_with_no_one_next_to_it_is_no_reason_to_bear_with_the_next() -> None:
    """It alone may have been lost."""
    watch = Watch()
    first = watch.streams()
    watch.flows(first, seconds=600)
    first.stop()
    for _ in range(5):
        stream = watch.streams()
        assert watch.silent_for(2.5, stream) == {0: StallVerdict.ENGINE}
        stream.stop()


@given(
    holds=st.lists(
        st.tuples(st.integers(0, 18), st.lists(st.integers(0, 17), max_size=4), st.permutations(range(8))),
        min_size=1,
        max_size=12,
    )
)
def test_whoever_receives_again_with_all_others_is_never_given_up(
    holds: list[tuple[int, list[int], list[int]]],
) -> None:
    """However often an engine holds all of them, whoever comes meanwhile, and in whatever order they are told again."""
    watch = Watch(bounds=USUAL)
    streams = [watch.streams() for _ in range(4)]
    for looks, arrivals, order in holds:
        for look in range(looks):
            streams += [watch.asks() for arrival in arrivals if arrival == look]
            assert watch.silent_for(LOOK_S, *streams) == {}
        first = [streams[which] for which in order if which < len(streams)][: len(streams) // 2]
        assert watch.silent_for(LOOK_S, *(one for one in streams if one not in first), flowing=tuple(first)) == {}
        watch.flows(*streams, seconds=LOOK_S)
        for one in streams[4:]:
            one.stop()
        del streams[4:]
    assert watch.lateness.watch("e", "m", 0.1, watch.now_s)._pulse.max_stream_silence_s() == USUAL.stream_min_s

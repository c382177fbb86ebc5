"""An engine is late by its own measure: what it was ever silent for, and what its prompts are expected to take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.stall_detection import EngineActivity, StallVerdict
from tests.routing.listening import LOOK_S, Watch


def test_an_engine_of_which_nothing_is_known_has_time() -> None:
    """Four times what any engine is taken to be silent for."""
    watch = Watch()
    vigil = watch.streams()
    assert watch.silent_for(11.0, vigil) == {}
    assert watch.silent_for(2.0, vigil) == {0: StallVerdict.ENGINE}


def test_an_engine_that_never_pauses_is_found_soon() -> None:
    """Listening makes sure; nobody is given up below the least, however steady it was."""
    watch = Watch()
    vigil = watch.streams()
    watch.flows(vigil, seconds=600)
    assert watch.bound_s() == 2.0
    assert watch.silent_for(1.5, vigil) == {}
    assert watch.silent_for(1.0, vigil) == {0: StallVerdict.ENGINE}


def test_bursts_are_no_silence() -> None:
    """Who sends every five seconds is borne for four times as long."""
    watch = Watch()
    vigil = watch.streams()
    for _ in range(60):
        assert watch.silent_for(5.0, vigil) == {}
        watch.flows(vigil, seconds=LOOK_S)
    assert watch.bound_s() >= 20.0
    assert watch.silent_for(19.0, vigil) == {}


def test_a_long_prompt_keeps_its_neighbours_silent() -> None:
    """While it is computed nothing may come for several times as long as that was predicted to take."""
    watch = Watch()
    vigil = watch.streams()
    watch.flows(vigil, seconds=600)
    waiting = watch.asks(expected_s=10.0)
    assert watch.silent_for(38.0, vigil, waiting) == {}
    watch.flows(vigil, waiting, seconds=1.0)
    assert watch.bound_s() > 38.0
    watch.flows(vigil, waiting, seconds=600)
    assert watch.silent_for(3.0, vigil, waiting) == {0: StallVerdict.ENGINE, 1: StallVerdict.ENGINE}


def test_a_client_that_does_not_read_says_nothing_of_its_engine() -> None:
    """Neither that it is silent, nor that it is not: others on it are judged as if the paused one were not there."""
    watch = Watch()
    paused, other = watch.streams(), watch.streams()
    watch.flows(paused, other, seconds=600)
    for _ in range(200):
        watch.now_s += LOOK_S
        paused.paused(watch.now_s)
    assert watch.silent_for(1.5, paused) == {}
    late = None
    for _ in range(10):
        watch.now_s += LOOK_S
        paused.paused(watch.now_s)
        late = late or other.check_silence(watch.now_s)
    assert late is StallVerdict.ENGINE


def test_a_stream_that_is_put_aside_has_more_time_than_an_engine() -> None:
    """Engines without room for all let some wait; for ever is another matter."""
    watch = Watch()
    aside, flowing = watch.streams(), watch.streams()
    watch.flows(aside, flowing, seconds=600)
    assert watch.silent_for(7.5, aside, flowing=(flowing,)) == {}
    assert watch.silent_for(1.0, aside, flowing=(flowing,)) == {0: StallVerdict.STREAM}


def test_streams_that_are_put_aside_often_get_more_time() -> None:
    """Learned from those that came back."""
    watch = Watch()
    aside, flowing = watch.streams(), watch.streams()
    watch.flows(aside, flowing, seconds=600)
    assert watch.silent_for(6.0, aside, flowing=(flowing,)) == {}
    watch.flows(aside, flowing, seconds=1.0)
    assert watch.silent_for(15.0, aside, flowing=(flowing,)) == {}
    assert watch.silent_for(9.0, aside, flowing=(flowing,)) == {0: StallVerdict.STREAM}


def test_streams_that_are_stuck_one_after_another_are_all_given_up_in_time() -> None:
    """The tenth waits no longer than the first has."""
    watch = Watch()
    flowing = watch.streams()
    for _ in range(10):
        assert watch.silent_for(13.0, watch.streams(), flowing=(flowing,)) == {0: StallVerdict.STREAM}


def test_what_an_engine_is_silent_for_altogether_is_no_stream_put_aside() -> None:
    """Neither learned from, nor held against a stream: nobody had anything meanwhile."""
    watch = Watch()
    first, second = watch.streams(), watch.streams()
    watch.flows(first, second, seconds=600)
    waiting = watch.asks(expected_s=10.0)
    assert watch.silent_for(38.0, first, second, waiting) == {}
    watch.flows(second, waiting, seconds=LOOK_S)
    watch.flows(first, second, waiting, seconds=1.0)
    assert watch.silent_for(7.0, first, flowing=(second,)) == {}
    assert watch.silent_for(2.0, first, flowing=(second,)) == {0: StallVerdict.STREAM}


def test_all_who_wait_for_a_hung_engine_are_notified_at_once() -> None:
    """Also those who came last, and those whose own silence says nothing; not those who come after it was found."""
    watch = Watch()
    stream = watch.streams()
    watch.flows(stream, seconds=600)
    complete = watch.asks(streams_tokens=False)
    assert watch.silent_for(2.0, stream, complete) == {0: StallVerdict.ENGINE, 1: StallVerdict.ENGINE}
    watch.now_s += LOOK_S
    after = watch.asks()
    assert watch.silent_for(1.5, after) == {}


def test_what_an_engine_may_be_silent_for_is_reckoned_once_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait for it: thousands may, and each of them is looked at every time."""
    watch, looks, bound_s = Watch(), list[float](), EngineActivity.max_silence_s
    vigils = [watch.asks(expected_s=60.0) for _ in range(50)]

    def reckoned(pulse: EngineActivity) -> float:
        looks.append(watch.now_s)
        return bound_s(pulse)

    monkeypatch.setattr(EngineActivity, "max_silence_s", reckoned)
    assert watch.silent_for(6.0, *vigils) == {}
    assert len(looks) == len(set(looks)) > 0


def test_a_head_is_no_pulse() -> None:
    """A server that answers before its engine does is well, and its engine may be hung."""
    watch = Watch()
    watch.flows(watch.streams(), seconds=600)
    vigil = watch.asks()
    watch.now_s += LOOK_S
    vigil.data_received(watch.now_s, has_started=False)
    assert watch.silent_for(3.0, vigil) == {0: StallVerdict.ENGINE}


@pytest.mark.parametrize("streams_tokens", [True, False])
def test_answers_between_two_looks_are_signs_of_life(streams_tokens: bool) -> None:
    """Streams that wait for long do not condemn an engine that answers others meanwhile, streams or whole answers."""
    watch = Watch()
    quiet = watch.asks(), watch.asks()
    found: dict[int, StallVerdict] = {}
    for _ in range(120):
        other = watch.asks(streams_tokens=streams_tokens)
        watch.now_s += 0.1
        other.finished(watch.now_s)
        found |= watch.silent_for(LOOK_S, *quiet)
    assert found == {}
    assert watch.silent_for(20.0, *quiet) == {0: StallVerdict.ENGINE, 1: StallVerdict.ENGINE}


def test_answers_of_another_model_are_signs_of_life_of_the_engine() -> None:
    """An adapter beside its base, say: it is one engine that computes both."""
    watch = Watch()
    quiet = watch.streams()
    for _ in range(60):
        other = watch.lateness.watch("e", "adapter", 0.1, watch.now_s)
        watch.now_s += 0.1
        other.finished(watch.now_s)
        assert quiet.check_silence(watch.now_s + 0.4) is not StallVerdict.ENGINE
        watch.now_s += 0.4


def test_what_others_received_from_an_engine_is_a_sign_of_life() -> None:
    """By other gateways: what is heard of them counts as what comes by our own connections."""
    watch = Watch()
    waiting = watch.asks()
    for _ in range(60):
        watch.lateness.engine_alive("e", watch.now_s)
        watch.lateness.engine_alive("unknown", watch.now_s)
        assert watch.silent_for(LOOK_S, waiting) == {}
    assert watch.silent_for(12.5, waiting) == {0: StallVerdict.ENGINE}


def test_a_unary_answer_teaches_nothing_of_silences() -> None:
    """It says nothing before it is whole: how long that took is no pause of the engine."""
    watch = Watch()
    watch.flows(watch.streams(), seconds=600)
    assert watch.bound_s() == 2.0
    complete = watch.asks(streams_tokens=False)
    assert watch.silent_for(60.0, complete) == {}
    complete.finished(watch.now_s)
    assert watch.bound_s() == 2.0


def test_a_unary_answer_may_take_its_time() -> None:
    """It says nothing before its last token, so its own silence is no sign."""
    watch = Watch()
    watch.flows(watch.streams(), seconds=600)
    assert watch.silent_for(290.0, watch.asks(streams_tokens=False)) == {}


def test_time_in_which_no_one_listened_does_not_count() -> None:
    """Neither what we were held up for, nor what nobody asked in."""
    watch = Watch()
    vigil = watch.streams()
    watch.flows(vigil, seconds=600)
    watch.now_s += 60.0
    assert vigil.check_silence(watch.now_s) is None
    watch.flows(vigil, seconds=LOOK_S)
    vigil.stop()
    watch.now_s += 600.0
    assert watch.silent_for(1.5, watch.asks()) == {}


def test_an_engine_among_slow_ones_is_borne_as_they_are() -> None:
    """What keeps the others of its model silent may come to it as well."""
    watch = Watch()
    steady, slow = watch.streams("a"), (watch.streams("b"), watch.streams("c"))
    watch.flows(steady, *slow, seconds=600)
    assert watch.silent_for(1.5, *slow, flowing=(steady,)) == {}
    watch.flows(steady, *slow, seconds=LOOK_S)
    assert watch.bound_s("a") > 2.0


def test_one_that_is_given_up_in_vain_is_borne_for_longer() -> None:
    """Twice as long as it had been silent for."""
    watch = Watch()
    several = watch.streams(), watch.streams()
    watch.flows(*several, seconds=600)
    assert watch.silent_for(2.0, *several) == {0: StallVerdict.ENGINE, 1: StallVerdict.ENGINE}
    assert 3.5 < watch.bound_s() <= 4.0


@given(
    gaps=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40),
    max_s=st.floats(3.0, 300.0),
    expected_s=st.floats(0.0, 1000.0),
)
def test_bounds_stay_between_the_least_and_the_most(gaps: list[float], max_s: float, expected_s: float) -> None:
    """Whatever was seen and predicted."""
    watch = Watch(max_s)
    vigil = watch.asks(expected_s=expected_s)
    for gap in gaps:
        watch.now_s += gap
        vigil.data_received(watch.now_s, has_started=gap > 50)
        assert 2.0 <= watch.bound_s() <= max_s


@given(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_who_is_never_silent_for_longer_than_before_is_never_given_up(gaps: list[int]) -> None:
    """However its tokens come in bursts."""
    watch = Watch()
    vigil = watch.streams()
    for gap in gaps:
        assert watch.silent_for(gap * LOOK_S, vigil) == {}
        watch.flows(vigil, seconds=LOOK_S)


def test_engines_that_no_one_calls_any_more_are_forgotten() -> None:
    """Pods come and go; what is known stays bounded."""
    watch = Watch()
    for number in range(50):
        watch.asks(f"e{number}").stop()
        watch.now_s += 600.0
    assert watch.lateness.max_silence_s("e0", "m") is None
    assert watch.lateness.max_silence_s("e49", "m") is not None

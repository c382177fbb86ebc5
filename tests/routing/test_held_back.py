"""A stream of which an engine may hold something back: its silence is no sign for long, and none of its engine."""

from __future__ import annotations

from routing.stall_detection import StallVerdict
from tests.routing.listening import BOUNDS, LOOK_S, Watch


def test_one_that_may_be_held_back_has_time_of_its_own() -> None:
    """A call that is made for as long as this is told when it is whole, whether others flow or nobody else asks."""
    for late, flowing in (StallVerdict.STREAM, 1), (StallVerdict.ENGINE, 0):
        watch = Watch()
        others = tuple(watch.streams() for _ in range(flowing))
        held = watch.streams(holds_back=True)
        watch.flows(held, *others, seconds=600)
        assert watch.silent_for(19.5, held, flowing=others) == {}
        assert watch.silent_for(1.0, held, flowing=others) == {0: late}


def test_what_is_held_back_says_nothing_of_others() -> None:
    """Neither is their engine taken for slow, nor are they given more time than before."""
    watch = Watch()
    held = watch.streams(holds_back=True)
    watch.flows(held, seconds=600)
    watch.silent_for(18.0, held)
    watch.flows(held, seconds=LOOK_S)
    assert watch.bound_s() == BOUNDS.engine_min_s
    flowing = watch.streams()
    watch.silent_for(18.0, held, flowing=(flowing,))
    watch.flows(held, flowing, seconds=LOOK_S)
    assert watch.silent_for(8.5, watch.streams(), flowing=(flowing,)) == {0: StallVerdict.STREAM}


def test_an_engine_of_which_only_such_are_called_becomes_known_too() -> None:
    """While they flow they show that it is not silent; before its first token each is as any other."""
    watch = Watch()
    watch.flows(watch.streams(holds_back=True), seconds=600)
    assert watch.bound_s() == BOUNDS.engine_min_s
    assert watch.silent_for(2.0, watch.asks(holds_back=True)) == {0: StallVerdict.ENGINE}


def test_they_leave_an_engine_that_others_show_to_hang() -> None:
    """In the same moment as those."""
    watch = Watch()
    held, other = watch.streams(holds_back=True), watch.streams()
    watch.flows(held, other, seconds=600)
    assert watch.silent_for(2.5, other, held) == {0: StallVerdict.ENGINE, 1: StallVerdict.ENGINE}

"""Runs of ids are a shorter way to write lists of ids, and traces are cut and sped up without losing anything."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.traces import Arrival, Trace, count_runs, cut_runs, gather_runs, make_trace, spread_runs

ids = st.lists(st.integers(0, 30), max_size=40)


@given(ids)
def test_runs_hold_the_very_ids(numbers: list[int]) -> None:
    """Gathered and spread again, a list is what it was."""
    runs = gather_runs(numbers)
    assert list(spread_runs(runs)) == numbers
    assert count_runs(runs) == len(numbers)
    assert len(runs) <= len(numbers)


@given(ids, st.integers(0, 45))
def test_cutting_runs_cuts_the_list(numbers: list[int], most: int) -> None:
    """The first ids of runs are the first ids of their list."""
    assert list(spread_runs(cut_runs(gather_runs(numbers), most))) == numbers[:most]


@given(ids, st.integers(1, 4))
def test_finer_blocks_are_equal_where_the_coarse_ones_are(numbers: list[int], factor: int) -> None:
    """Each id becomes `factor` ids of its own."""
    finer = spread_runs(gather_runs(numbers), factor)
    assert [number // factor for number in finer[::factor]] == numbers
    assert len(finer) == factor * len(numbers)


def test_a_trace_begins_at_zero_and_in_order() -> None:
    """Recorded clocks start anywhere and rows come in any order."""
    trace = make_trace("t", [Arrival(9.0, 2, 1), Arrival(7.0, 1, 1), Arrival(9.0, 3, 1)], None)
    assert [(one.at_s, one.prompt_tokens) for one in trace.arrivals] == [(0.0, 1), (2.0, 2), (2.0, 3)]
    assert repr(trace) == "<Trace t: 3 requests in 2 s>"


def test_faster_and_first() -> None:
    """Speed presses arrivals together; a limit takes the first of them."""
    trace = make_trace("t", [Arrival(at, 1, 1) for at in (0.0, 1.0, 3.0)], None)
    assert [one.at_s for one in trace.faster(2.0).arrivals] == [0.0, 0.5, 1.5]
    assert len(trace.first(2).arrivals) == 2
    assert trace.first(None) is trace
    assert trace.faster(1.0) is trace
    assert Trace("none", ()).length_s == 0.0

"""The bench of splits, small: every way plays, figures are sound, and a line falls short where it should."""

from __future__ import annotations

from dataclasses import replace
from gzip import compress
from pathlib import Path

import pytest

from bench.pd.figures import Figures, middle
from bench.pd.prices import Kept, Layout, cheapest, cold_tokens
from bench.pd.targets import targets_of
from bench.pd.traffic import ANSWERS, FILES, PROMPTS, Recorded, full_trace
from bench.pd.ways import (
    ALWAYS,
    CHOICE,
    COLOCATED,
    KNOWING,
    SOFT,
    Way,
    central_way,
    fixed_ways,
    knowing_ways,
    play_way,
    soft_way,
)
from bench.pd.workloads import ENGINES, LARGE, Day, Workload, alone
from simulator.split import Split
from simulator.traces import Arrival, make_trace

SMALL = Day("small", (PROMPTS, ANSWERS), 6.0, 2, 8.0, 0.065, LARGE).workload(seed=3)

GOOD = Figures(0.9, 0.1, 0.2, 0.3, 0.02, 0.03, 1.0)


def test_ways_play_a_turning_day() -> None:
    """Colocated splits nothing, a fixed split everything; goodput is told by kind."""
    colocated = play_way(Way(COLOCATED, None), SMALL, 0)
    split = play_way(Way("4P:4D", Split(4, is_forced=True)), SMALL, 0)
    soft = play_way(soft_way(), SMALL, 0)
    assert colocated.split == 0
    assert split.split == soft.split == 1
    assert set(split.by_kind) == {"long prompts", "long answers"}
    assert 0 < soft.goodput <= 1


def test_the_same_seed_gives_the_same_figures() -> None:
    """Virtual time."""
    kind = alone("long prompts", SMALL, seed=1)
    short = replace(kind, trace=kind.trace.first(10))
    assert play_way(soft_way(), short, 0) == play_way(soft_way(), short, 0)


def test_who_knows_beforehand_changes_at_the_turn() -> None:
    """One way for each choice of splits."""
    ways = knowing_ways({"long prompts": [7, 6], "long answers": [1]}, SMALL)
    assert [way.name for way in ways] == [f"{KNOWING} 7P, 1P", f"{KNOWING} 6P, 1P"]
    assert ways[0].split is not None
    assert ways[0].split.shifts == ((6.0, 1),)
    assert len(fixed_ways()) == ENGINES


def test_targets_fall_short_where_they_should() -> None:
    """Worse than the clairvoyant, worse than colocated, and flapping."""
    workload: Workload = SMALL
    rows = {COLOCATED: GOOD, "1P:7D": GOOD, SOFT: replace(GOOD, goodput=0.8, flaps=1), f"{KNOWING} 7P, 1P": GOOD}
    verdicts = [target.is_met for target in targets_of(workload, rows)]
    assert verdicts == [False, False, False, False, True]
    met = {**rows, SOFT: replace(GOOD, goodput=0.95)}
    assert all(target.is_met for target in targets_of(workload, met))
    assert middle([GOOD, replace(GOOD, goodput=0.7), replace(GOOD, goodput=0.8)]).goodput == 0.8


def test_a_steady_load_is_held_to_both_extremes() -> None:
    """The better of never and always, fixed splits in hindsight among the latter, at each point by itself."""
    steady = replace(SMALL, phases=())
    late = replace(GOOD, goodput=0.95, ttft_p90=0.4)
    rows = {COLOCATED: GOOD, "7P:1D": late, ALWAYS: replace(GOOD, goodput=0.1), CHOICE: replace(GOOD, goodput=0.95)}
    assert all(target.is_met for target in targets_of(steady, rows))
    short = {**rows, CHOICE: replace(late, goodput=0.9)}
    assert [target.is_met for target in targets_of(steady, short)] == [True, False, True, False]


def test_each_phase_plays_what_follows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a recording, in its own time, its blocks apart from those of others."""
    lines = [f"2023-11-16 18:00:{second:02}.0,100,10" for second in range(40)]
    (tmp_path / FILES["azure-code"]).write_bytes(
        compress("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]).encode())
    )
    monkeypatch.setenv("TRACES", str(tmp_path))
    full_trace.cache_clear()
    try:
        day = Day("day", (Recorded("azure-code", 2.0), ANSWERS), 5.0, 4, 1.0, 0.05, LARGE)
        alone_day = replace(day, kinds=(Recorded("azure-code", 2.0),), phases=3).workload(0)
    finally:
        full_trace.cache_clear()
    assert day.is_drawn
    assert [arrival.at_s for arrival in alone_day.trace.arrivals] == [number / 2 for number in range(30)]


def test_an_hour_is_held_to_every_fixed_split_and_to_few_changes() -> None:
    """Phases of one kind are counted for the changes of role."""
    hour = replace(SMALL, phases=((0.0, "code"), (3.0, "code")))
    rows = {COLOCATED: GOOD, "5P:3D": GOOD, "6P:2D": replace(GOOD, goodput=0.92), SOFT: replace(GOOD, goodput=0.93)}
    assert hour.is_hour
    assert all(target.is_met for target in targets_of(hour, rows))
    poor = {**rows, SOFT: replace(GOOD, goodput=0.91, changes=17)}
    assert [target.is_met for target in targets_of(hour, poor)] == [False, False]


def test_a_central_queue_plays_and_loses_no_request() -> None:
    """All requests are prefilled by a prefill engine, in turn."""
    played = play_way(central_way(4), alone("long prompts", SMALL, seed=1), 0)
    assert played.split == 1
    assert played.goodput > 0


def test_the_cheapest_fleet_is_one_that_no_engine_can_leave() -> None:
    """Made-up results of fleets: three prefill and two decode engines are enough."""

    def kept(layout: Layout) -> Kept:
        late, slow = 0.3 * (layout.prefill < 3), 0.3 * (layout.decode < 2)
        return Kept(1 - late - slow, late, slow)

    for begin in (Layout(("compute", "memory"), 1, 1), Layout(("compute", "memory"), 6, 5)):
        found, result = cheapest(begin, kept)
        assert (found.prefill, found.decode) == (3, 2)
        assert result.goodput == 1.0
    alone_found, _ = cheapest(Layout(("memory", "memory"), 6), lambda layout: kept(replace(layout, decode=2)))
    assert (alone_found.prefill, alone_found.decode) == (3, 0)


def test_offered_work_counts_a_block_once() -> None:
    """Of two prompts that share their first block the second brings the rest only."""
    arrivals = [Arrival(0.0, 1_000, 10, runs=((1, 2),)), Arrival(10.0, 1_000, 10, runs=((1, 1), (9, 1)))]
    trace = make_trace("shared", arrivals, 400)
    assert cold_tokens(trace) == [1_000, 600]

"""The bench of splits, small: every way plays, figures are sound, and a line falls short where it should."""

from __future__ import annotations

from dataclasses import replace

from bench.pd.figures import Figures, middle
from bench.pd.targets import targets_of
from bench.pd.ways import COLOCATED, KNOWING, SOFT, Way, fixed_ways, knowing_ways, play_way, soft_way
from bench.pd.workloads import ENGINES, Workload, alone, turning
from simulator.split import Split

SMALL = turning("small", 6.0, 2, seed=3)

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

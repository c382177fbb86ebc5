"""What is wanted beside what was measured, and the table it stands under."""

from __future__ import annotations

from dataclasses import replace

from bench.slo.best import Best
from bench.slo.figures import Figures, TierFigures
from bench.slo.rows import Block, tabulate
from bench.slo.targets import targets_of
from tests.bench.slo.small import SMALL

KEPT = TierFigures(0.995, 0.99, 0.0, 1.0, 3.0, 0.0)
POOR = TierFigures(0.02, 0.02, 0.5, 0.9, 70.0, 2.0)
OURS = Figures({"gold": KEPT, "bronze": POOR}, 28.8, 29_000.0, 0.06, 0.2, 0.0, {"overloaded": 1.5, "pod_lost": 0.001})
SCENARIO = replace(SMALL, wanted={"gold": 0.99, "bronze": 0.03, "of_best": 0.95, "refused": 0.0})
BLOCK = Block(SCENARIO, 60.0, Best(30.0, 30.0, 30_000.0), {"hearth": OURS})


def test_each_thing_wanted_is_judged() -> None:
    """By the scenario's own words, and what is wanted everywhere."""
    reported = [str(target) for target in targets_of(BLOCK)]
    assert reported == [
        "ok    small, gold attainment: wanted at least 0.99, found 0.995",
        "SHORT small, bronze attainment: wanted at least 0.03, found 0.020",
        "ok    small, goodput by the best: wanted at least 0.95, found 0.960",
        "SHORT small, share refused, all tiers together: wanted at most 0, found 0.500",
        "SHORT small, median time to refusal, s: wanted at most 0.05, found 0.060",
        "SHORT small, refusals of tenants that ask for less than their part: wanted at most 0, found 2.000",
        "SHORT small, Jain index inside each tier: wanted at least 0.95, found 0.900",
    ]


def test_others_are_not_judged() -> None:
    """Nor is goodput where nobody knows the best."""
    assert not targets_of(replace(BLOCK, figures={"fcfs": OURS}))
    assert not any("best" in str(target) for target in targets_of(replace(BLOCK, best=None)))


def test_the_block_reports_load_figures_and_reasons() -> None:
    """A line a policy; reasons that are next to none are left out."""
    head, heads, row, _, reasons = str(BLOCK).splitlines()
    assert "60.0 requests/s = 2 x the best load of small" in head
    assert "attainment gold/bronze" in heads
    assert row.split()[:6] == ["hearth", "0.995", "0.020", "0.990", "0.020", "0.000"]
    assert reasons == "  hearth: overloaded 1.50"


def test_columns_are_aligned() -> None:
    """The first to the left, figures to the right."""
    assert tabulate([["", "ab"], ["xyz", "1"]]) == "     ab\nxyz   1"

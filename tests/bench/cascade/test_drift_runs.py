"""Runs of shadow samples: what a perfect comparison stops and notices on a population after the model of difficulty."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from bench.cascade import drift_runs
from bench.cascade.drift_runs import COMPARISONS, ComparisonModel, DriftCell, drift_targets
from bench.cascade.populations import DifficultyModel, by_difficulty
from cascade.calibration_file import Comparison


def test_a_comparison_errs_as_stated() -> None:
    """Missed and false outcomes by their shares; without a direction a gain is a difference."""
    random = Random(1)
    judge = ComparisonModel("", Comparison.JUDGE, True, missed=0.2, false_worse=0.1, false_better=0.1)
    assert 0.76 < sum(judge.outcome(1.0, random) == 1 for _ in range(2_000)) / 2_000 < 0.88
    assert 0.08 < sum(judge.outcome(0.0, random) == -1 for _ in range(2_000)) / 2_000 < 0.12
    plain = ComparisonModel("", Comparison.JUDGE, True, is_directed=False)
    assert {plain.outcome(truth, random) for truth in (1.0, -1.0)} == {1}
    assert plain.outcome(0.0, random) == 0


def test_a_cell_counts_runs() -> None:
    """Of a perfect comparison with a large allowance: nothing is stopped, nearly every break is noticed (seeded)."""
    population = by_difficulty("hard", DifficultyModel(-0.4, 1.0, blur=0.5), seed=3, size=2_000)
    cells = drift_runs._cells_of((population, 0.06, 4))
    assert [cell.comparison for cell in cells] == [each.name for each in COMPARISONS]
    perfect = cells[0]
    assert (perfect.runs, perfect.stopped) == (4, 0)
    assert perfect.noticed >= 3


def test_targets_pool_runs_by_comparison() -> None:
    """Noticed breaks of all of them, and of those where the controller states that it notices them."""

    def cell(predicted: float) -> DriftCell:
        return DriftCell("p", 0.03, "perfect", 0.1, 20, 1, 2, 19, 15, 90.0, predicted)

    stopped, of_all, where_stated = drift_targets([cell(0.99), replace(cell(0.5), noticed=9)])
    assert (stopped.found, stopped.is_met) == (0.05, True)
    assert (of_all.found, of_all.is_met) == (0.7, False)
    assert (where_stated.found, where_stated.is_met) == (0.95, True)

"""The cascade bench's verdicts: what is wanted, truth against replay, and a cell from end to end."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cascade.__main__ import given, main
from bench.cascade.guarantees import Cell, judge_cell, targets
from bench.cascade.population_loss import PopulationLoss
from bench.cascade.populations import benefit_auroc, made_up, of_file, three_models, tied
from cascade.calibration.calibrate import calibrate
from cascade.calibration.replay import replay
from cascade.calibration_file import QualityGuarantee

CELL = Cell("made up", 0.8, 0.03, 1_000, 200, 200, 10, 0.8, 90, 1.0, None, None)


def short(*cells: Cell) -> list[str]:
    return [str(target) for target in targets(cells) if not target.is_met]


def complete(cell: Cell) -> list[Cell]:
    """With a cell of the other promise beside it, as a run always has."""
    return [cell, replace(cell, max_loss=0.01, broken=0)]


def test_broken_guarantees_fall_short() -> None:
    """Nineteen of 200 may be, twenty may not."""
    assert not short(*complete(replace(CELL, broken=19)))
    assert len(short(*complete(replace(CELL, broken=20)))) == 1
    assert len(short(*complete(replace(CELL, broken=11, draws=100)))) == 1


def test_an_informative_signal_must_save() -> None:
    """Made too seldom or saving too little falls short, but only where the signal tells."""
    assert len(short(*complete(replace(CELL, made=189)))) == 1
    assert len(short(*complete(replace(CELL, saved=0.69)))) == 1
    assert not short(*complete(replace(CELL, saved=0.1, auroc=0.74)))


def test_what_was_named_as_enough_must_be() -> None:
    """By the draws of that size."""
    assert len(short(*complete(replace(CELL, size=300, needs=900, enough=0.5)))) == 2
    assert not short(*complete(replace(CELL, size=300, needs=900, enough=0.8)))


@pytest.mark.parametrize("change", [None, tied, three_models])
def test_truth_is_what_replay_says(change: object) -> None:
    """The short way through sums gives what production's verdicts give."""
    population = made_up("short way", 0.85, change)  # type: ignore[arg-type]
    file = calibrate(population.examples[:900], population.subject, QualityGuarantee(0.03, 0.95)).file
    assert file.is_promised
    played, effect = replay(file, population.examples), PopulationLoss(population.examples).of(file)
    assert (effect.loss, effect.saved) == pytest.approx((played.loss, played.saved), abs=0.003)
    assert PopulationLoss(population.examples).best(0.03).saved >= effect.saved - 0.05


def test_made_up_signals_inform_as_much_as_stated() -> None:
    """The AUROC of the benefit, and none where nobody gains."""
    assert made_up("plain", 0.9).auroc == pytest.approx(0.9, abs=0.02)
    assert benefit_auroc([]) == 0.5


def test_a_cell_from_end_to_end() -> None:
    """Draws, files, truth; few are broken and the plain rule breaks many (seeded)."""
    cell = judge_cell(made_up("plain", 0.85), 0.03, 300, 30)
    assert cell.made >= 25
    assert cell.broken <= 5
    assert cell.plain_broken >= 8
    assert 0.3 < cell.saved < 1.0


def test_a_file_is_a_population(tmp_path: Path) -> None:
    """By each of its signals."""
    lines = ["score@small,score@large,margin@small,mean@small"]
    lines += [f"{at % 2},1,{at % 2},{-at}" for at in range(50)]
    file = tmp_path / "ours.csv"
    file.write_text("\n".join(lines))
    assert of_file(file).name == "ours by margin"
    assert of_file(file).auroc == 1.0
    assert [one.name for one in given(file)] == ["ours by margin", "ours by mean"]


def test_a_file_that_is_none_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, and which file."""
    assert main(["--data", "nowhere.csv", "--only", "nowhere"]) == 1
    assert "nowhere.csv" in capsys.readouterr().err

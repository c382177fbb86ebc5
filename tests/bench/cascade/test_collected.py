"""The bench from an empty file: truth stays hidden from collect, and a guarantee that labels do not carry is found."""

from __future__ import annotations

import json
from random import Random

from bench.cascade.collected import (
    CollectedCell,
    HiddenSet,
    JudgeErrors,
    calibrated,
    collect_all,
    collected_targets,
    difficult,
    serve,
    truth_of,
)
from bench.cascade.population_loss import PopulationLoss
from cascade.calibration.labelled_file import read_labelled
from cascade.calibration_file import QualityGuarantee

GUARANTEE = QualityGuarantee(0.03, 0.95)


def test_collect_sees_what_it_would_see() -> None:
    """Scores where an expected answer or a scorer gives them, and nowhere else; signals of every answer."""
    data = HiddenSet("judged", list(difficult("judged", 400, expected=0.3)), judge=JudgeErrors())
    rows = [json.loads(line) for line in collect_all(data)]
    assert len(rows) == 400
    labels = {row["label"] for row in rows}
    assert labels == {"expected", "agreement", "judge"}
    assert all(("score" in row["rungs"]["small"]) == (row["label"] == "expected") for row in rows)
    margins = [row["rungs"]["small"]["margin"] for row in rows]
    assert max(abs(found - prompt.margin) for found, prompt in zip(margins, data.prompts, strict=True)) < 1e-4


def test_a_guarantee_on_wrong_labels_is_broken_by_the_truth() -> None:
    """Labels that call every answer right carry a guarantee; the hidden scores contradict it."""
    data = HiddenSet("scored", list(difficult("scored", 800)), has_scorer=True)
    examples, lines = truth_of(data), collect_all(data)
    truth = PopulationLoss(examples)
    honest = calibrated(data, read_labelled(b"\n".join(lines)), GUARANTEE)
    assert honest is not None
    assert honest.is_promised
    assert truth.of(serve(data, honest, examples, Random(1))).loss <= GUARANTEE.max_loss
    wrong = [line.replace(b'"score": 0.0', b'"score": 1.0') for line in lines]
    misled = calibrated(data, read_labelled(b"\n".join(wrong)), GUARANTEE)
    assert misled is not None
    assert misled.is_promised
    assert truth.of(misled).loss > GUARANTEE.max_loss


def test_targets_name_what_falls_short() -> None:
    """Broken guarantees, one without a row, and a saving that is too small."""
    cells = [
        CollectedCell("set", 0.8, 0, 1, 1, 0, 0, 0.0, 1.0),
        CollectedCell("set", 0.8, 1_000, 200, 200, 11, 0, 0.59, 1.0),
    ]
    assert [target.is_met for target in collected_targets(cells)] == [False, False, False]
    cells = [
        CollectedCell("set", 0.8, 0, 1, 0, 0, 0, 0.0, 1.0),
        CollectedCell("set", 0.8, 1_000, 200, 200, 10, 0, 0.6, 1.0),
    ]
    assert all(target.is_met for target in collected_targets(cells))

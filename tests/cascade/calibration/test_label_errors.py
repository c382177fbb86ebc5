"""Collected rows to scores: what a judge may miss and what nothing labels counts as lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cascade.calibration.label_errors import with_true_labels, without_judged
from cascade.calibration.labelled_file import InvalidLabelledFile, read_labelled
from cascade.calibration.labelling import AUDIT_ERROR, JudgeAudit, audit_bound
from cascade.calibration.report import describe_labels
from cascade.calibration_file import QualityGuarantee, SignalStage


def line(label: str, small: dict[str, Any] | None = None, large: dict[str, Any] | None = None, **more: Any) -> str:
    """A collected line of two models."""
    answers = {
        "small": {"output_tokens": 3, "margin": 0.5} | (small or {}),
        "large": {"output_tokens": 4} | (large or {}),
    }
    return json.dumps({"label": label, "stage": "window", "rungs": answers} | more)


def read(lines: list[str]) -> Any:
    return read_labelled("\n".join(lines).encode())


AUDITED = [line("expected", {"score": 1, "verdict": 0}, {"score": 1})] * 60
MISSED = [line("expected", {"score": 0, "verdict": 0}, {"score": 1})] * 3


def test_what_nothing_labels_counts_as_lost() -> None:
    """So that leaving it out cannot make the rest look good."""
    found = read([line("none"), line("agreement", {"loss": 0})])
    assert [row.scores for row in found.rows] == [(0.0, 1.0), (1.0, 1.0)]
    assert (found.labels.unlabelled, found.labels.error) == (1, 0.0)
    assert (found.signals, found.default_stage("margin")) == (("margin",), SignalStage.WINDOW)


def test_a_judge_without_an_audit_labels_nothing() -> None:
    """Its verdicts then count as losses, whatever they are; without truth nothing bounds its errors."""
    found = read([line("judge", {"verdict": 0})] * 50 + AUDITED[:20])
    assert {row.scores for row in found.rows[:50]} == {(0.0, 1.0)}
    assert (found.labels.judge_losses, found.labels.audited, found.labels.error) == ((1.0,), (20,), 0.0)


def test_an_audited_judge_counts_with_its_errors() -> None:
    """An answer that it does not call worse loses what the audit does not rule out; the guarantee's error shrinks."""
    found = read([line("judge", {"verdict": verdict}) for verdict in (1, 0, -1)] + AUDITED + MISSED)
    bound = audit_bound(JudgeAudit(not_worse=63, missed=3))
    assert bound > 3 / 63
    losses = [row.scores[1] - row.scores[0] for row in found.rows[:3]]
    assert losses == pytest.approx([1.0, bound, bound])
    assert found.labels.error == AUDIT_ERROR


def test_answers_known_to_be_alike_are_no_audit() -> None:
    """The judge is not asked about them in other rows either."""
    found = read([line("expected", {"score": 1, "verdict": 0, "loss": 0}, {"score": 1})] * 60)
    assert found.labels.audited == (0,)


def test_true_scores_stay() -> None:
    """Gains included; the share that the largest model has right is stated."""
    found = read([line("expected", {"score": 1}, {"score": 0}), line("expected", {"score": 0}, {"score": 1})])
    assert [row.scores for row in found.rows] == [(1.0, 0.0), (0.0, 1.0)]
    assert found.labels.expected_share == 0.5


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        (line("guess"), "label must be one of"),
        (line("none", {"loss": 2}), "loss@small must be from 0 to 1"),
        (line("judge", {"verdict": 4}), "verdict@small must be -1, 0 or 1"),
        (line("expected"), "score@small must be from 0 to 1"),
        (line("none", stage="whole"), "stage is whole, and window before"),
        (line("none", stage="late"), "stage must be one of"),
    ],
)
def test_wrong_labels_are_named(wrong: str, reported: str) -> None:
    """With their line."""
    with pytest.raises(InvalidLabelledFile, match=f"line 2: {reported}"):
        read([line("none"), wrong])


def test_true_labels_may_count_alone() -> None:
    """Nothing is folded in for a judge, the whole error is the test's; files without labels stay as they are."""
    found = with_true_labels(read([line("judge", {"verdict": 0}), line("none"), *AUDITED]))
    assert len(found.rows) == 60
    assert found.labels is not None
    assert (found.labels.sources, found.labels.error) == ({"expected": 60}, 0.0)
    plain = read_labelled(b"score@a,score@b\n1,0\n")
    assert with_true_labels(plain) is plain


def test_enough_true_labels_count_without_the_judge() -> None:
    """From one and a half times the fewest that carry the guarantee on, whatever they say; below that the judge counts.

    299 faultless labels are the fewest for one point at 95 %, 59 for five points.
    """
    found = read([line("judge", {"verdict": 0}), line("none"), *AUDITED * 2, *MISSED])
    assert without_judged(found, QualityGuarantee(0.01, 0.95)) is found
    alone = without_judged(found, QualityGuarantee(0.05, 0.95))
    assert len(alone.rows) == 123
    assert alone.labels is not None
    assert (alone.labels.error, alone.labels.left_out) == (0.0, 2)
    assert "left out" in describe_labels(alone.labels, alone.models)
    assert found.labels is not None
    assert "left out" not in describe_labels(found.labels, found.models)


def test_agreement_counts_beside_true_labels() -> None:
    """It holds whichever rows have a true label, so leaving it out is the user's decision."""
    found = read([line("agreement", {"loss": 0}), line("none"), *AUDITED * 3])
    assert without_judged(found, QualityGuarantee(0.05, 0.95)) is found

"""Labels by scorer, expected answer, schema, agreement and judge, and the bound of a judge's errors."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest

from cascade.calibration.labelling import (
    MIN_AUDIT,
    CollectedAnswer,
    CollectedRow,
    InvalidScores,
    JudgeAudit,
    LabelSource,
    audit_bound,
    checked_scores,
    expected_scores,
    known_losses,
    relative_scores,
)
from cascade.signals.tokens import TokenSignals, read_signals

MODELS = ("small", "large")


@pytest.mark.parametrize(
    "found",
    [
        None,
        [1, 1],
        {"small": 1},
        {"small": 1, "large": 1, "other": 1},
        {"small": 1.5, "large": 1},
        {"small": float("nan"), "large": 1},
        {"small": "good", "large": 1},
    ],
)
def test_scores_of_a_scorer_are_checked(found: Any) -> None:
    """All models, and nothing but numbers from 0 to 1."""
    with pytest.raises(InvalidScores):
        checked_scores(found, MODELS)
    assert checked_scores({"large": True, "small": 0.25}, MODELS) == (0.25, 1.0)


def test_an_expected_answer_is_compared_normalised() -> None:
    """Case, outer punctuation, spaces, thousands separators and the order of keys aside; words within count."""
    assert expected_scores(["  PARIS. ", "Paris, France"], "Paris") == (1.0, 0.0)
    assert expected_scores(["1,200", "1.200"], "1200") == (1.0, 0.0)
    assert expected_scores(['{"b": 1, "a": 2}', "{broken"], '{"a":2,"b":1}') == (1.0, 0.0)


def test_a_pattern_takes_the_final_answer() -> None:
    """Its last match, and of that the first group; an answer without a match equals nothing."""
    pattern = re.compile(r"#### (\S+)")
    assert expected_scores(["12 eggs\n#### 7\n#### 9", "9"], "9", pattern) == (1.0, 0.0)
    assert known_losses(["first 3, #### 9", "so it is #### 9"], pattern=pattern) == (0.0,)
    assert known_losses(["none", "none"], pattern=pattern) == (None,)
    assert expected_scores(["so 3 or 4"], "4", re.compile(r"\d+")) == (1.0,)


def test_a_schema_shows_losses_and_no_gains() -> None:
    """An answer that breaks it is lost beside one of the largest model that does not; conforming proves nothing."""
    schema = {"type": "object", "required": ["a"]}
    assert known_losses(['{"a": 1}', '{"a": 2}'], schema) == (None,)
    assert known_losses(["no JSON", '{"a": 2}'], schema) == (1.0,)
    assert known_losses(['{"a": 1}', "{}"], schema) == (0.0,)


def test_agreement_is_with_the_last_model() -> None:
    """Empty answers agree with nothing."""
    assert known_losses(["Yes.", "no", "yes"]) == (0.0, None)
    assert known_losses(["", ""]) == (None,)
    assert known_losses(["no " + "x" * 70_000, "yes " + "x" * 70_000]) == (None,)


def test_scores_keep_the_losses() -> None:
    """Also expected ones."""
    scores = relative_scores((1.0, 0.05, 0.0))
    assert [scores[-1] - score for score in scores[:-1]] == pytest.approx([1.0, 0.05, 0.0])


def test_an_audit_bounds_what_a_judge_misses() -> None:
    """Without misses about 3.7 of n at 97.5 %; more than is seen, less with more audited, also of very many."""
    assert audit_bound(JudgeAudit()) == 1.0
    assert audit_bound(JudgeAudit(not_worse=100)) == pytest.approx(0.0362, abs=1e-3)
    assert audit_bound(JudgeAudit(not_worse=100, missed=5)) == pytest.approx(0.1128, abs=1e-3)
    assert audit_bound(JudgeAudit(not_worse=1_000, missed=50)) < 0.07
    assert 0.2 < audit_bound(JudgeAudit(not_worse=20_000, missed=4_000)) < 0.21
    assert audit_bound(JudgeAudit(not_worse=3, missed=3)) == 1.0


def test_the_bound_of_an_audit_holds() -> None:
    """A judge that misses a tenth: in at least 97.5 % of 300 audits the bound is not below it (seeded)."""
    random, below = Random(4), 0
    for _ in range(300):
        missed = sum(random.random() < 0.1 for _ in range(80))
        below += audit_bound(JudgeAudit(not_worse=80, missed=missed)) < 0.1
    assert below <= 14


def test_verdicts_are_counted_beside_the_truth() -> None:
    """By what the judge called worse, and what was."""
    audit = JudgeAudit()
    for outcome, loss in ((1, 1.0), (1, 0.0), (0, 1.0), (-1, 0.0), (0, -1.0)):
        audit = audit.with_verdict(outcome, loss)
    assert (audit.worse, audit.false_worse, audit.not_worse, audit.missed) == (2, 1, 3, 1)
    assert not audit.is_enough
    assert JudgeAudit(not_worse=MIN_AUDIT).is_enough


def row(**changes: Any) -> CollectedRow:
    """A row of two models."""
    sure = read_signals([(-0.1, (-0.1, -3.0))])
    answers = (CollectedAnswer("ours", sure, 9, 4), CollectedAnswer("theirs", TokenSignals(), 9, 5))
    return CollectedRow("chat", answers, **({"losses": (None,)} | changes))


def test_a_row_is_labelled_by_its_weakest_method() -> None:
    """Truth, then what is known, then a verdict; a verdict that is missing labels nothing."""
    assert row(scores=(0.0, 1.0), source=LabelSource.EXPECTED).label is LabelSource.EXPECTED
    assert row(losses=(0.0,)).label is LabelSource.AGREEMENT
    assert row(losses=(1.0,)).label is LabelSource.SCHEMA
    assert row(verdicts=(0,)).label is LabelSource.JUDGE
    assert row(verdicts=(None,)).label is LabelSource.NONE
    assert row().label is LabelSource.NONE


def test_answers_that_agree_are_no_reference_of_a_judge_that_sees_no_others() -> None:
    """Its outcomes are written for rows that it would have seen had they differed; those of texts always."""

    def outcomes(**changes: Any) -> tuple[Any, Any]:
        small = json.loads(row(**changes).line(MODELS))["rungs"]["small"]
        return small["text_outcome"], small.get("judge_outcome")

    assert outcomes(text_outcomes=(0,)) == (0, None)
    assert outcomes(text_outcomes=(0,), is_for_judge=True) == (0, 0)
    assert outcomes(text_outcomes=(1,), is_for_judge=True, verdicts=(-1,)) == (1, -1)
    assert outcomes(text_outcomes=(1,), is_for_judge=True) == (1, None)


def test_a_line_has_signals_and_no_text() -> None:
    """Of all models but the largest; what is not known is left out."""
    line = row(verdicts=(1,), text_outcomes=(1,), is_for_judge=True, group="line 3").line(MODELS)
    assert "ours" not in line
    found = json.loads(line)
    assert (found["label"], found["group"], found["bucket"]) == ("judge", "line 3", "chat")
    small, large = found["rungs"]["small"], found["rungs"]["large"]
    assert (small["verdict"], small["judge_outcome"], small["output_tokens"]) == (1, 1, 4)
    assert small["margin"] == pytest.approx(0.855, abs=1e-3)
    assert "score" not in small
    assert large == {"output_tokens": 5}

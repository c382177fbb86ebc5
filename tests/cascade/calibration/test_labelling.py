"""Labels by scorer, expected answer, schema, agreement and judge, and the bound of a judge's errors."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cascade.calibration.labelling import (
    MIN_AUDIT,
    InvalidScores,
    JudgeAudit,
    agreeing,
    audit_bound,
    checked_scores,
    expected_scores,
    judged_outcomes,
    relative_scores,
    schema_scores,
)

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


def test_a_schema_labels_only_what_breaks_it() -> None:
    """That all conform says nothing of what they say."""
    schema = {"type": "object", "required": ["a"]}
    assert schema_scores(['{"a": 1}', '{"a": 2}'], schema) is None
    assert schema_scores(["no JSON", '{"a": 2}'], schema) == (0.0, 1.0)
    assert schema_scores(['{"a": 1}', "{}"], schema) == (1.0, 0.0)


def test_agreement_is_with_the_largest_model() -> None:
    """Empty answers agree with nothing."""
    assert agreeing(["Yes.", "no", "yes"]) == (True, False)
    assert agreeing(["", ""]) == (False,)


def test_scores_keep_the_losses_of_outcomes() -> None:
    """Also expected ones; a gain beside a loss counts as alike, so that no loss shrinks."""
    for outcomes in ((1.0,), (0.0,), (0.05,), (-1.0,), (1.0, 0.05), (0.0, -1.0)):
        scores = relative_scores(outcomes)
        assert [scores[-1] - score for score in scores[:-1]] == pytest.approx(list(outcomes))
        assert all(0.0 <= score <= 1.0 for score in scores)
    assert relative_scores((1.0, -1.0)) == (0.0, 1.0, 1.0)


def test_an_audit_bounds_what_a_judge_misses() -> None:
    """Without misses about 3.7 of n at 97.5 %; more than is seen, less with more audited."""
    assert audit_bound(JudgeAudit()) == 1.0
    assert audit_bound(JudgeAudit(not_worse=100)) == pytest.approx(0.0362, abs=1e-3)
    assert audit_bound(JudgeAudit(not_worse=100, missed=5)) == pytest.approx(0.1128, abs=1e-3)
    assert audit_bound(JudgeAudit(not_worse=1_000, missed=50)) < 0.07
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


def test_verdicts_become_expected_losses() -> None:
    """Gains count as the bound; a missing verdict leaves the row without a label."""
    assert judged_outcomes((1, 0, -1), 0.04) == (1.0, 0.04, 0.04)
    assert judged_outcomes((1, None), 0.04) is None

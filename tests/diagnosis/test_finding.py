"""What diagnosis answers."""

from __future__ import annotations

from diagnosis.finding import SEVERITY_ORDER, Diagnosis, FirstAnswer, Gap, Question, Severity

ANSWER = FirstAnswer(Question.UNKNOWN, "")


def test_unknown_is_an_answer() -> None:
    """Nothing found while something could not be checked."""
    assert Diagnosis(0.0, ANSWER, gaps=(Gap("kv_pressure", "p", (), "missing"),)).is_unknown
    assert not Diagnosis(0.0, ANSWER).is_unknown


def test_severities_have_an_order() -> None:
    """Worst first."""
    assert sorted(Severity, key=SEVERITY_ORDER.__getitem__) == [Severity.FAILING, Severity.DEGRADING, Severity.ADVICE]

"""Labels for the answers of all models to one prompt, without a person: by the first method that applies.

Methods, first that applies: the user's scorer; an expected answer; a JSON Schema that some answers break; agreement
with the largest model's answer; a judge model that compares each answer with the largest model's. The first three are
taken as the truth. Agreement loses nothing against the largest model, whether both are right or wrong. A judge errs:
what is lost where it sees no loss is bounded by an audit, prompts that have a true label as well (`audit_bound`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite

from cascade.signals.json_schema import conforms

MIN_AUDIT = 30
"""Prompts with a true label and a verdict, below which a judge's verdicts are not used."""
AUDIT_ERROR = 0.025
"""Probability that the bound of an audit is too low; the confidence of a guarantee falls by as much."""


class LabelSource(StrEnum):
    """Method that gave a label."""

    SCORER = "scorer"
    EXPECTED = "expected"
    SCHEMA = "schema"
    AGREEMENT = "agreement"
    JUDGE = "judge"


TRUE_SOURCES = frozenset({LabelSource.SCORER, LabelSource.EXPECTED, LabelSource.SCHEMA})


class InvalidScores(ValueError):  # noqa: N818 - what a scorer returned
    """Scores that are no mapping of all models to numbers from 0 to 1."""


def checked_scores(found: object, models: Sequence[str]) -> tuple[float, ...]:
    """Return a scorer's scores by model. Raises `InvalidScores`."""
    if not isinstance(found, Mapping) or set(found) != set(models):
        raise InvalidScores(f"must be a mapping of {', '.join(models)} to scores, and of nothing else")
    scores = []
    for model in models:
        score = found[model]
        if not isinstance(score, bool | int | float) or not isfinite(score) or not 0.0 <= score <= 1.0:
            raise InvalidScores(f"the score of {model} must be a number from 0 to 1")
        scores.append(float(score))
    return tuple(scores)


def normalized(text: str) -> str:
    """Return a text without case, outer punctuation, thousands separators and repeated spaces; JSON in one form."""
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        try:
            return json.dumps(json.loads(stripped), sort_keys=True)
        except (ValueError, RecursionError):
            pass
    words = re.sub(r"(?<=\d),(?=\d{3}\b)", "", stripped.casefold()).split()
    return " ".join(words).strip(" .,;:!?\"'`*()")


def expected_scores(texts: Sequence[str], expected: str) -> tuple[float, ...]:
    """Return 1 for each text that equals the expected one, normalized; else 0."""
    wanted = normalized(expected)
    return tuple(float(normalized(text) == wanted) for text in texts)


def schema_scores(texts: Sequence[str], schema: object) -> tuple[float, ...] | None:
    """Return 0 for each text that breaks the JSON Schema, else 1; None where none does: that shows nothing."""
    scores = tuple(float(_fits(text, schema)) for text in texts)
    return None if all(scores) else scores


def _fits(text: str, schema: object) -> bool:
    try:
        return conforms(json.loads(text), schema)
    except (ValueError, RecursionError):
        return False


def agreeing(texts: Sequence[str]) -> tuple[bool, ...]:
    """Return for each but the last text, the largest model's, whether it is the same, normalized, and not empty."""
    largest = normalized(texts[-1])
    return tuple(bool(largest) and normalized(text) == largest for text in texts[:-1])


def relative_scores(outcomes: Sequence[float]) -> tuple[float, ...]:
    """Return scores by outcome against the largest model: 1 worse, 0 alike, -1 better, or an expected loss between.

    The loss of each model is its outcome; where some are worse and others better, the better ones count as alike.
    """
    if any(outcome > 0.0 for outcome in outcomes):
        return (*(1.0 - max(0.0, outcome) for outcome in outcomes), 1.0)
    if any(outcome < 0.0 for outcome in outcomes):
        best = max(-outcome for outcome in outcomes)
        return (*((1.0 - best) - outcome for outcome in outcomes), 1.0 - best)
    return (*(1.0 for _ in outcomes), 1.0)


@dataclass(frozen=True, slots=True)
class JudgeAudit:
    """A judge's verdicts beside true labels, over all answers but the largest model's."""

    not_worse: int = 0
    """Answers that the judge did not call worse."""
    missed: int = 0
    """Of them, answers that are worse."""
    worse: int = 0
    """Answers that it called worse."""
    false_worse: int = 0
    """Of them, answers that are not."""

    def with_verdict(self, outcome: int, loss: float) -> JudgeAudit:
        """Add a verdict beside the true loss of the same answer."""
        if outcome > 0:
            return replace(self, worse=self.worse + 1, false_worse=self.false_worse + (loss <= 0.0))
        return replace(self, not_worse=self.not_worse + 1, missed=self.missed + (loss > 0.0))

    @property
    def is_enough(self) -> bool:
        """Whether the judge's verdicts may be used."""
        return self.not_worse >= MIN_AUDIT


def audit_bound(audit: JudgeAudit, error: float = AUDIT_ERROR) -> float:
    """Return the highest share of losses among answers not called worse that the audit does not rule out.

    Clopper and Pearson's one-sided bound; 1 without an audit.
    """
    if audit.missed >= audit.not_worse:
        return 1.0
    low, high = audit.missed / audit.not_worse, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if _probability_up_to(audit.missed, audit.not_worse, middle) > error:
            low = middle
        else:
            high = middle
    return high


def _probability_up_to(successes: int, trials: int, share: float) -> float:
    chance = total = (1.0 - share) ** trials
    for at in range(successes):
        chance *= (trials - at) / (at + 1) * share / (1.0 - share)
        total += chance
    return total


def judged_outcomes(verdicts: Iterable[int | None], bound: float) -> tuple[float, ...] | None:
    """Return expected losses by verdict: 1 where worse, `bound` where not; None where a verdict is missing.

    Gains are not counted: nothing bounds them from below.
    """
    found = tuple(verdicts)
    if any(verdict is None for verdict in found):
        return None
    return tuple(1.0 if verdict is not None and verdict > 0 else bound for verdict in found)

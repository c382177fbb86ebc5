"""Labels for the answers of all models to one prompt, without a person: by the first method that applies.

Methods, first that applies: the user's scorer; an expected answer; a unit test; a JSON Schema; agreement with the
largest model's answer; a judge model that compares each answer with the largest model's. The first three are taken as
the truth. A schema and agreement show only whether an answer loses against the largest model's, which is all that a
guarantee is about. A judge errs: what is lost where it sees no loss is bounded by an audit, prompts that have a true
label as well (`audit_bound`). What no method labels counts as lost.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite
from typing import Any

from cascade.loss_bound import probability_up_to
from cascade.signals.json_schema import conforms
from cascade.signals.tokens import SIGNALS, TokenSignals

MIN_AUDIT = 30
"""Prompts with a true label and a verdict, below which a judge's verdicts are not used."""
AUDIT_ERROR = 0.025
"""Probability that the bound of an audit is too low; the error that a test of the labels may make falls by as much."""


MAX_EXAMINED_CHARACTERS = 65_536
"""End of an answer that the pattern of a final answer is searched in."""


class LabelSource(StrEnum):
    """Method that gave a label."""

    SCORER = "scorer"
    EXPECTED = "expected"
    UNIT_TEST = "unit_test"
    SCHEMA = "schema"
    AGREEMENT = "agreement"
    JUDGE = "judge"
    NONE = "none"
    """No method applies: the answers count as lost."""


TRUE_SOURCES = frozenset({LabelSource.SCORER, LabelSource.EXPECTED, LabelSource.UNIT_TEST})


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


def final_answer(text: str, pattern: re.Pattern[str] | None) -> str:
    """Return what is compared of an answer: the last match of the pattern (its first group), normalized.

    Without a pattern it is the whole answer; "" where nothing matches.
    """
    if pattern is None:
        return normalized(text)
    found = deque(pattern.finditer(text[-MAX_EXAMINED_CHARACTERS:]), maxlen=1)
    return normalized(found[0][1 if pattern.groups else 0] or "") if found else ""


def expected_scores(texts: Sequence[str], expected: str, pattern: re.Pattern[str] | None = None) -> tuple[float, ...]:
    """Return 1 for each text whose final answer equals the expected one, normalized; else 0."""
    wanted = normalized(expected)
    return tuple(float(final_answer(text, pattern) == wanted) for text in texts)


def known_losses(
    texts: Sequence[str], schema: object = None, pattern: re.Pattern[str] | None = None
) -> tuple[float | None, ...]:
    """Return for each but the last text, the largest model's, what it loses against that one; None where unknown.

    0 where both have the same final answer, or where the largest model's breaks the JSON Schema; 1 where only this one
    breaks it. Gains are not counted.
    """
    reference = final_answer(texts[-1], pattern)
    reference_fits = schema is None or _fits(texts[-1], schema)
    found: list[float | None] = []
    for text in texts[:-1]:
        if not reference_fits or (reference and final_answer(text, pattern) == reference):
            found.append(0.0)
        else:
            found.append(None if schema is None or _fits(text, schema) else 1.0)
    return tuple(found)


def _fits(text: str, schema: object) -> bool:
    try:
        return conforms(json.loads(text), schema)
    except (ValueError, RecursionError):
        return False


def relative_scores(losses: Sequence[float]) -> tuple[float, ...]:
    """Return scores of all models by what each but the largest loses against it, 0 to 1; the largest has 1."""
    return (*(1.0 - loss for loss in losses), 1.0)


@dataclass(frozen=True, slots=True)
class CollectedAnswer:
    """One model's answer."""

    text: str
    signals: TokenSignals
    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class CollectedRow:
    """One request that all models answered, and what labels it. Tuples are by model, cheapest first."""

    bucket: str
    answers: tuple[CollectedAnswer, ...]
    group: str = ""
    """Rows of one group depend on each other."""
    scores: tuple[float, ...] | None = None
    """True scores; None where no method gave them."""
    source: LabelSource = LabelSource.NONE
    losses: tuple[float | None, ...] = ()
    """As `known_losses` returns them."""
    verdicts: tuple[int | None, ...] = ()
    """By a judge, of each model but the largest: 1 worse than it, 0 alike, -1 better; empty where it was not asked."""
    text_outcomes: tuple[int, ...] = ()
    """Of each model but the largest: 1 where its text differs from the next model's, else 0."""
    is_for_judge: bool = False
    """Whether a judge compares those of its answers whose loss nothing else shows."""
    plain: dict[str, Any] = field(default_factory=dict)
    """Further columns of the row."""

    @property
    def label(self) -> LabelSource:
        """The method that labels the row, the weakest where it takes several."""
        if self.scores is not None:
            return self.source
        if all(loss is not None for loss in self.losses):
            return LabelSource.SCHEMA if 1.0 in self.losses else LabelSource.AGREEMENT
        unknown = [at for at, loss in enumerate(self.losses) if loss is None]
        is_judged = bool(self.verdicts) and all(self.verdicts[at] is not None for at in unknown)
        return LabelSource.JUDGE if is_judged else LabelSource.NONE

    def line(self, models: Sequence[str]) -> str:
        """Return the row as a line of a labelled file, without the answers' text."""
        row: dict[str, Any] = {"bucket": self.bucket, "input_tokens": self.answers[0].input_tokens}
        row |= {"label": self.label.value} | ({"group": self.group} if self.group else {}) | self.plain
        answers: dict[str, Any] = {}
        for index, (model, answer) in enumerate(zip(models, self.answers, strict=True)):
            entry: dict[str, Any] = {"output_tokens": answer.output_tokens}
            if self.scores is not None:
                entry["score"] = self.scores[index]
            if index + 1 < len(models):
                entry |= self._entry(index, answer.signals, is_next_last=index + 2 == len(models))
            answers[model] = entry
        return json.dumps(row | {"rungs": answers}, ensure_ascii=False)

    def _entry(self, index: int, signals: TokenSignals, *, is_next_last: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        if signals.tokens:
            entry |= {name: round(signals.value_of(name), 6) for name in SIGNALS} | {"tokens": signals.tokens}
        if self.losses and (loss := self.losses[index]) is not None:
            entry["loss"] = loss
        verdict = self.verdicts[index] if self.verdicts else None
        if verdict is not None:
            entry["verdict"] = verdict
        if self.text_outcomes:
            differs = self.text_outcomes[index]
            entry["text_outcome"] = differs
            # Drift control asks its judge where the texts differ, and compares with the next model. Of rows that no
            # judge sees those that agree would stand for all: its reference would know no loss.
            if is_next_last and self.is_for_judge and (verdict is not None or not differs):
                entry["judge_outcome"] = verdict if differs else 0
        return entry


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
        if probability_up_to(audit.missed, audit.not_worse, middle) > error:
            low = middle
        else:
            high = middle
    return high

"""Compares two answers: as normalised text, or by a judge model's verdict that is asked for and read here.

Pure: who asks the judge, and how often, is the caller's.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

WORDS = re.compile(r"[^\W_]+", re.UNICODE)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

MAX_SHORT_WORDS = 12
"""Answers of at most this many words agree only if they have the same words."""

MIN_COMMON_SHARE = 0.6
"""Longer ones agree if they have this share of their words in common, and end on the same number where both do."""


class ComparisonVerdict(StrEnum):
    """Verdict of a judge model on two answers."""

    FIRST = "first"
    """The first one is better."""
    SECOND = "second"
    SAME = "same"
    DIFFERENT = "different"
    """They differ, and neither is named."""


OUTCOMES = {ComparisonVerdict.FIRST: -1, ComparisonVerdict.SECOND: 1, ComparisonVerdict.SAME: 0}
"""By verdict, the outcome where the accepted answer is the first one."""

VERDICT = re.compile(r"\b(first|second|same|different)\b", re.IGNORECASE)


def answers_agree(ours: str, theirs: str) -> bool:
    """Return whether two answers agree as normalised text: case, punctuation and order of phrases aside."""
    left, right = _json(ours), _json(theirs)
    if left is not None or right is not None:
        return left == right
    mine, other = WORDS.findall(ours.lower()), WORDS.findall(theirs.lower())
    if max(len(mine), len(other)) <= MAX_SHORT_WORDS:
        return mine == other
    if (last := _last_number(ours)) is not None and (end := _last_number(theirs)) is not None and last != end:
        return False
    common = len(set(mine) & set(other))
    return common >= MIN_COMMON_SHARE * max(1, min(len(set(mine)), len(set(other))))


def comparison_prompt(question: str, first: str, second: str) -> str:
    """Return the prompt for a judge model: the question and both answers, in one turn."""
    return (
        "Two answers to the same question follow. Say FIRST if the first one serves a reader better, SECOND if the "
        "second one does, or SAME if a reader would be served equally well by either. Answer with that one word.\n\n"
        f"Question:\n{question}\n\nFirst answer:\n{first}\n\nSecond answer:\n{second}\n"
    )


def read_comparison(answer: str) -> ComparisonVerdict | None:
    """Return a judge model's verdict; None where its answer has none."""
    found = VERDICT.search(answer)
    return None if found is None else ComparisonVerdict(found[1].lower())


def outcome_of_orders(ours_first: ComparisonVerdict | None, ours_second: ComparisonVerdict | None) -> int | None:
    """Return the outcome of a judge that was asked in both orders: 1 where our answer is worse, -1 better, 0 alike.

    Verdicts that contradict each other follow the order, not the answers: neither is better. None where one is missing.
    """
    if ours_first is None or ours_second is None:
        return None
    if ComparisonVerdict.DIFFERENT in (ours_first, ours_second):  # Neither is named: as answers that differ.
        return 1
    first, second = OUTCOMES[ours_first], -OUTCOMES[ours_second]
    return first if first == second else 0


def _json(text: str) -> object:
    held = text.strip()
    if not held.startswith(("{", "[")):
        return None
    try:
        return msgspec.json.decode(held.encode())
    except msgspec.MsgspecError:
        return None


def _last_number(text: str) -> float | None:
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None

"""Comparing two answers as text, and reading what a judge model says of them."""

from __future__ import annotations

import pytest

from cascade.answer_comparison import ComparisonVerdict, answers_agree, comparison_prompt, read_comparison


@pytest.mark.parametrize(
    ("ours", "theirs", "agrees"),
    [
        ("Paris.", "paris", True),
        ("Paris", "Rome", False),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', True),
        ('{"a": 1}', '{"a": 2}', False),
        ("So the total of all the apples in both of the baskets is 12", "In all baskets the total is 13 apples", False),
        (
            "The cat sat on the mat all day long and then it slept there",
            "All day the cat sat on the mat; then it slept",
            True,
        ),
    ],
)
def test_answers_are_compared_as_normalised_text(ours: str, theirs: str, agrees: bool) -> None:
    """Short ones word by word, JSON by value, long ones by common words and their last number."""
    assert answers_agree(ours, theirs) is agrees
    assert answers_agree(theirs, ours) is agrees


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("FIRST", ComparisonVerdict.FIRST),
        ("The second.", ComparisonVerdict.SECOND),
        ("same", ComparisonVerdict.SAME),
        ("DIFFERENT", ComparisonVerdict.DIFFERENT),
        ("I cannot tell", None),
        ("", None),
    ],
)
def test_a_verdict_is_read(text: str, verdict: ComparisonVerdict | None) -> None:
    """Of an older prompt too; anything else gives None."""
    assert read_comparison(text) is verdict


def test_the_prompt_holds_both_answers_in_order() -> None:
    """So that asking in both orders is asking twice."""
    prompt = comparison_prompt("Q?", "one answer", "another answer")
    assert prompt.index("Q?") < prompt.index("one answer") < prompt.index("another answer")

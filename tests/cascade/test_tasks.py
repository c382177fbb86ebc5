"""Counts over prompts, of the last text and bounded, and the buckets of tasks, one plain prompt for each."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from cascade.tasks import (
    BUCKET_RULES,
    MAX_CHARACTERS,
    PromptFeatures,
    TaskBucket,
    bucket_of,
    difficulty,
    prompt_features,
)

PROMPTS = {
    TaskBucket.CODE: "Fix this:\n```python\ndef f(x):\n    return x+\n```",
    TaskBucket.CHOICE: "Which gas do plants take in?\nA) Oxygen\nB) Nitrogen\nC) Carbon dioxide\nD) Neon",
    TaskBucket.MATHS: "Natalia sold 48 clips in April and half as many in May. How many did she sell in both? 48 + 24",
    TaskBucket.EXTRACTION: "Extract all names and dates from the following text as fields: Ada was born in 1815.",
    TaskBucket.REWRITING: "Translate to French: the cat is on the table.",
    TaskBucket.WRITING: "Write a short poem on the sea.",
    TaskBucket.QUESTION: "Who was the first to walk on the moon?",
    TaskBucket.CHAT: "Good morning to you.",
}


@pytest.mark.parametrize(("bucket", "prompt"), PROMPTS.items(), ids=str)
def test_plain_prompts(bucket: TaskBucket, prompt: str) -> None:
    """Each falls into its own bucket."""
    assert bucket_of(prompt_features([prompt])) is bucket


def test_tools_and_pictures_decide_first() -> None:
    """What binds the model binds the bucket, whatever the words."""
    assert bucket_of(prompt_features([PROMPTS[TaskBucket.CODE]], tools=1)) is TaskBucket.TOOLS
    assert bucket_of(prompt_features(["Hi"], tools=1, images=1)) is TaskBucket.VISION
    assert bucket_of(prompt_features(["Hi"], is_json_requested=True)) is TaskBucket.EXTRACTION


def test_every_bucket_can_be_reached() -> None:
    """A bucket without a rule would never be told."""
    assert {bucket for bucket, _ in BUCKET_RULES} | {TaskBucket.CHAT} == set(TaskBucket)


def test_counts() -> None:
    """What stands in a small problem."""
    seen = prompt_features(["Hello", "How many apples are 3 + 4.5?\nWrite JSON: `x == 1;`"], tools=2)
    assert (seen.turns, seen.numbers, seen.tools) == (2, 3, 2)
    assert seen.asking >= 3
    assert seen.extracting == 1
    assert seen.writing == 1


def test_only_the_last_text_is_read() -> None:
    """Of earlier turns only the number counts."""
    assert prompt_features(["1 2 3 4", "Hi"]).numbers == 0
    assert prompt_features(["1 2 3 4", "Hi"]).turns == 2


def test_a_long_prompt_costs_no_more_than_its_end() -> None:
    """A megabyte is looked at like a page."""
    seen = prompt_features(["7 " * 1_000_000])
    assert seen.numbers <= MAX_CHARACTERS // 2


def test_nothing_is_no_fault() -> None:
    """A prompt without text has features too."""
    assert prompt_features([]) == PromptFeatures(turns=0)


def test_features_hold_numbers_only() -> None:
    """No text is kept."""
    seen = prompt_features(["secret"])
    assert all(isinstance(value, int) for value in astuple(seen))


def test_more_of_a_problem_is_harder() -> None:
    """The rule that needs no learning goes the right way."""
    easy, hard = prompt_features(["What is 2 + 2?"]), prompt_features(["If 3 x + 7 = 12 and 5 y - 2 x = 9, " * 5])
    assert difficulty(easy) < difficulty(hard)

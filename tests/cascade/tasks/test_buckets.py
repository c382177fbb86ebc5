"""The buckets of tasks, one plain prompt for each."""

import pytest

from cascade.tasks.buckets import RULES, Bucket, bucket_of
from cascade.tasks.features import features_of

PROMPTS = {
    Bucket.CODE: "Fix this:\n```python\ndef f(x):\n    return x+\n```",
    Bucket.CHOICE: "Which gas do plants take in?\nA) Oxygen\nB) Nitrogen\nC) Carbon dioxide\nD) Neon",
    Bucket.MATHS: "Natalia sold 48 clips in April and half as many in May. How many did she sell in both? 48 + 24",
    Bucket.EXTRACTION: "Extract all names and dates from the following text as fields: Ada was born in 1815.",
    Bucket.CHANGING: "Translate to French: the cat is on the table.",
    Bucket.WRITING: "Write a short poem on the sea.",
    Bucket.QUESTION: "Who was the first to walk on the moon?",
    Bucket.CHAT: "Good morning to you.",
}


@pytest.mark.parametrize(("bucket", "prompt"), PROMPTS.items(), ids=str)
def test_plain_prompts(bucket: Bucket, prompt: str) -> None:
    """Each falls into its own bucket."""
    assert bucket_of(features_of([prompt])) is bucket


def test_tools_and_pictures_decide_first() -> None:
    """What binds the model binds the bucket, whatever the words."""
    assert bucket_of(features_of([PROMPTS[Bucket.CODE]], tools=1)) is Bucket.TOOLS
    assert bucket_of(features_of(["Hi"], tools=1, images=1)) is Bucket.VISION
    assert bucket_of(features_of(["Hi"], is_json_asked=True)) is Bucket.EXTRACTION


def test_every_bucket_can_be_reached() -> None:
    """A bucket without a rule would never be told."""
    assert {bucket for bucket, _ in RULES} | {Bucket.CHAT} == set(Bucket)

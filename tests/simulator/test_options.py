"""Options refuse a pod that could not be."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.options import Options
from simulator.profile import Profile


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": ()},
        {"engines": 0},
        {"tasks": frozenset()},
        {"tasks": frozenset({"dance"})},
        {"min_answer_tokens": 0},
        {"tokens_per_event": 0},
        {"min_answer_tokens": 9, "max_answer_tokens": 8},
    ],
    ids=str,
)
def test_impossible_pods_are_refused(wrong: dict[str, Any]) -> None:
    """Each by the field's name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Options(**wrong)


def test_no_pod_promises_more_context_than_its_cache_holds() -> None:
    """The smaller of the two, in whole blocks."""
    small = Profile(kv_capacity_tokens=100, block_size=16)
    assert Options(profile=small).window_tokens == 96
    assert Options(profile=small, max_model_len=50).window_tokens == 50

"""A profile refuses sizes with which no engine could run."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.profile import Profile


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefill_tokens_per_s": 0},
        {"step_base_s": 0},
        {"step_per_sequence_s": -1},
        {"block_size": 0},
        {"time_scale": 0},
        {"max_num_seqs": 0},
        {"max_num_seqs": 9000},
        {"kv_capacity_tokens": 15},
    ],
    ids=str,
)
def test_impossible_sizes_are_rejected(wrong: dict[str, Any]) -> None:
    """Each with the field's name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Profile(**wrong)


def test_a_block_started_is_a_block_taken() -> None:
    """Capacity counts whole blocks, need counts begun ones."""
    profile = Profile(block_size=16, kv_capacity_tokens=100)
    assert profile.kv_blocks == 6
    assert [profile.blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]

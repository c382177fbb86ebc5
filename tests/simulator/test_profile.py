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
        {"request_s": -1},
        {"request_step_token_s": -1},
        {"step_table": ((2, 0.1), (2, 0.2))},
        {"step_table": ((1, 0.0),)},
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


def test_a_step_without_a_table_is_a_sum() -> None:
    """Base, decodes and chunks add up in this order, so that earlier results keep their last bit."""
    profile = Profile()
    seconds = profile.step_base_s + profile.decode_s(3, 900)
    for start, tokens in [(0, 400), (64, 100)]:
        seconds += profile.prefill_s(start, tokens)
    assert profile.step_s([(0, 400), (64, 100)], 3, 900) == seconds


def test_a_table_counts_decodes_and_chunks_together() -> None:
    """The tokens of a mixed step are looked up once; attention and sequences come on top."""
    profile = Profile(
        step_table=((1, 0.010), (11, 0.020), (111, 0.120)),
        step_per_sequence_s=0.001,
        step_per_kv_token_s=0.0,
        prefill_tokens_per_s=1000.0,
        prefill_quadratic_tokens=100.0,
    )
    assert profile.step_s([], 6, 600) == pytest.approx(0.015 + 6 * 0.001)
    attention_s = 55 * (10 + 55 / 2) / 100 / 1000
    assert profile.step_s([(10, 55)], 6, 600) == pytest.approx(0.070 + attention_s + 7 * 0.001)


def test_a_table_goes_on_beyond_its_ends() -> None:
    """Behind the last point with the last slope; one point alone is a constant."""
    profile = Profile(step_table=((1, 0.010), (11, 0.020)))
    assert profile.forward_s(21) == pytest.approx(0.030)
    assert profile.forward_s(6) == pytest.approx(0.015)
    assert Profile(step_table=((8, 0.25),)).forward_s(800) == 0.25
    assert Profile(step_table=((8, 0.10), (9, 0.20))).forward_s(1) == pytest.approx(0.05)

"""Candidates for the tests of scorers: idle, equal engines, except for the columns that a test names."""

from typing import Any

from routing.candidates import Candidates
from routing.pods import Engine


def candidates_of(count: int, **columns: Any) -> Candidates:
    """Return `count` engines; columns that are not given have the same default for all of them."""
    usual: dict[str, Any] = {
        "engines": [Engine(slot, f"http://pod-{slot}") for slot in range(count)],
        "now_s": 1000.0,
        "prompt_tokens": 1000.0,
        "output_tokens": 256,
        "warm_tokens": [0.0] * count,
        "prefill_work": [1000.0] * count,
        "ahead_s": [0.0] * count,
        "running": [0.0] * count,
        "stalls_s": [0.0] * count,
        "kv_tokens": [0.0] * count,
        "kv_capacity": [100_000.0] * count,
        "prefill_overhead_s": [0.01] * count,
        "seconds_per_token": [0.0001] * count,
        "step_base_s": [0.02] * count,
        "step_per_sequence_s": [0.001] * count,
        "residence_s": [5.0] * count,
        "last_turn": [0] * count,
        "ready_since_s": [0.0] * count,
    }
    assert all(len(column) == count for column in columns.values() if isinstance(column, list) and column)
    usual |= columns
    usual.setdefault(
        "own_s", [work * pace for work, pace in zip(usual["prefill_work"], usual["seconds_per_token"], strict=True)]
    )
    usual.setdefault("min_kv_capacity", min(usual["kv_capacity"]))
    usual.setdefault("newest_since_s", max(usual["ready_since_s"]))
    return Candidates(**usual)

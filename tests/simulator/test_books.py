"""What is counted about finished sequences."""

from __future__ import annotations

import pytest

from simulator.books import Books
from simulator.histogram import Histogram
from simulator.sequence import Milestone, MilestoneKind, Sequence


def test_a_value_is_counted_below_the_limit_it_reaches() -> None:
    """Limits are inclusive, as everywhere with such histograms."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    histogram.observe(2.0, times=3)
    assert histogram.counts == [2, 4, 1]
    assert histogram.total == 18.0


def milestone(kind: MilestoneKind, at: float, tokens: int, reason: str = "") -> Milestone:
    return Milestone(kind, "a", at, tokens, 16, 3.0, 0, reason)


def test_times_are_real_ones() -> None:
    """An engine that runs twice as fast shows half the seconds."""
    books = Books(time_scale=2.0)
    first = milestone(MilestoneKind.FIRST_TOKEN, 5.0, 1)
    books.enter(Sequence("a", 100, 11), 1.0, first, milestone(MilestoneKind.FINISHED, 15.0, 11, "stop"))
    totals = {name: histogram.total for name, histogram in books.histograms.items()}
    assert totals == pytest.approx(
        {
            "time_to_first_token_seconds": 2.0,
            "request_time_per_output_token_seconds": 0.5,
            "e2e_request_latency_seconds": 7.0,
            "request_queue_time_seconds": 1.0,
            "request_inference_time_seconds": 6.0,
            "request_prefill_time_seconds": 1.0,
            "request_decode_time_seconds": 5.0,
            "request_prompt_tokens": 100,
            "request_generation_tokens": 11,
            "request_params_max_tokens": 11,
            "request_prefill_kv_computed_tokens": 84,
        }
    )
    assert books.finished["stop"] == 1


def test_a_prompt_that_was_only_read_has_no_first_token() -> None:
    """Pooling enters the books without token times."""
    books = Books(time_scale=1.0)
    books.enter(Sequence("a", 100, 0), 1.0, None, milestone(MilestoneKind.FINISHED, 4.0, 0, "stop"))
    assert sum(books.histograms["time_to_first_token_seconds"].counts) == 0
    assert sum(books.histograms["request_prompt_tokens"].counts) == 1

"""Prefill keeps away from engines whose streams have been stalled for about as long as their readers bear."""

import pytest

from routing.request import Api, Request
from scorers.stream_stall import StreamStall
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")


def test_a_stall_costs_the_streams_that_it_makes_late() -> None:
    """With the slack of 100 tokens at 0.05 s the share of late streams is the square of the stalls by it."""
    seen = candidates_of(
        3, typical_answer_tokens=100.0, running=[4.0, 4.0, 0.0], stalls_s=[2.0, 0.0, 9.0], own_s=[1.0] * 3
    )
    scores = StreamStall(late_share=0.5, token_slack_s=0.05).score(REQUEST, seen)
    assert scores == [pytest.approx(4 * 0.5 * (2.5 / 5) ** 2), pytest.approx(4 * 0.5 * (0.5 / 5) ** 2), 0.0]


def test_no_stream_is_late_twice() -> None:
    """Beyond all slack own prefill counts once for each stream, not more."""
    seen = candidates_of(1, typical_answer_tokens=10.0, running=[3.0], stalls_s=[60.0], own_s=[2.0])
    assert StreamStall().score(REQUEST, seen) == [pytest.approx(6.0)]


def test_pairs_price_stalls_themselves() -> None:
    """Where another engine could prefill, `prefill_stall` does."""
    columns = {"typical_answer_tokens": 300.0, "running": [9.0, 9.0], "own_s": [0.1, 0.2], "stalls_s": [9.0, 0.0]}
    assert StreamStall().score(REQUEST, candidates_of(2, **columns)) != []
    assert StreamStall().score(REQUEST, candidates_of(2, prefill_shares=[0.5, 0.5], **columns)) == []


def test_before_any_answer_the_requested_length_counts() -> None:
    """And where nothing is known of answers nothing is scored."""
    columns = {"running": [1.0], "own_s": [1.0], "stalls_s": [1.5]}
    scorer = StreamStall(late_share=1.0, token_slack_s=0.04)
    assert scorer.score(REQUEST, candidates_of(1, output_tokens=100, **columns)) == [pytest.approx(0.25)]
    assert scorer.score(REQUEST, candidates_of(1, output_tokens=0, **columns)) == []

"""Prefill keeps away from engines whose streams have been stalled for about as long as their readers bear."""

from math import exp

import pytest

from routing.request import Api, Request
from scorers.stream_stall import StreamStall
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")


def test_a_stall_costs_the_streams_that_it_makes_late() -> None:
    """Half of them where it is as long as the slack of the typical answer that runs, and next to none far below."""
    slack_s = 100 * 0.05 * exp(0.5**2)
    seen = candidates_of(
        4,
        typical_answer_tokens=100.0,
        answer_spread=0.5,
        running=[4.0, 4.0, 4.0, 0.0],
        stalls_s=[slack_s - 0.5, slack_s * exp(-0.5) - 0.5, 0.0, slack_s],
        own_s=[1.0] * 4,
    )
    scores = StreamStall(weight=1.0, token_slack_s=0.05).score(REQUEST, seen)
    assert scores == [pytest.approx(4 * 0.5), pytest.approx(4 * 0.1587, rel=1e-3), pytest.approx(0.0, abs=1e-3), 0.0]


def test_answers_that_differ_more_are_late_sooner() -> None:
    """A short stall finds short answers among them."""
    columns = {"typical_answer_tokens": 200.0, "running": [10.0], "own_s": [1.0], "stalls_s": [2.0]}
    alike, diverse = (
        StreamStall().score(REQUEST, candidates_of(1, answer_spread=spread, **columns)) for spread in (0.4, 1.0)
    )
    assert alike[0] < diverse[0]


def test_no_stream_is_late_twice() -> None:
    """Beyond all slack own prefill counts once for each stream, not more."""
    seen = candidates_of(1, typical_answer_tokens=10.0, running=[3.0], stalls_s=[60.0], own_s=[2.0])
    assert StreamStall(weight=1.0).score(REQUEST, seen) == [pytest.approx(3 * 2.0, rel=1e-2)]


def test_a_cached_prompt_stalls_no_stream() -> None:
    """Without own prefill there is no stall."""
    seen = candidates_of(1, typical_answer_tokens=10.0, running=[3.0], stalls_s=[0.0], own_s=[0.0])
    assert StreamStall().score(REQUEST, seen) == [0.0]


def test_pairs_price_stalls_themselves() -> None:
    """Where another engine could prefill, `prefill_stall` does."""
    columns = {"typical_answer_tokens": 300.0, "running": [9.0, 9.0], "own_s": [0.1, 0.2], "stalls_s": [9.0, 0.0]}
    assert StreamStall().score(REQUEST, candidates_of(2, **columns)) != []
    assert StreamStall().score(REQUEST, candidates_of(2, prefill_shares=[0.5, 0.5], **columns)) == []


def test_before_any_answer_the_requested_length_counts() -> None:
    """And where nothing is known of answers nothing is scored."""
    columns = {"running": [1.0], "own_s": [1.0], "stalls_s": [60.0]}
    scorer = StreamStall(weight=1.0)
    assert scorer.score(REQUEST, candidates_of(1, output_tokens=100, **columns)) == [pytest.approx(1.0, rel=1e-2)]
    assert scorer.score(REQUEST, candidates_of(1, output_tokens=0, **columns)) == []

"""Pods for long and for short prompts, by price."""

import pytest

from routing.facts import PromptLengths
from routing.request import Api, Request
from scorers.prompt_length import PromptLengthAffinity
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")
KINDS = [PromptLengths.ANY, PromptLengths.SHORT, PromptLengths.LONG]


def test_a_long_prompt_stalls_those_a_pod_for_short_ones_is_for() -> None:
    """By as much as it takes; the pods for long and for any prompts mind nothing."""
    seen = candidates_of(3, prompts=KINDS, own_s=[4.5] * 3)
    assert PromptLengthAffinity(max_short_s=0.5, overrun_weight=2.0).score(REQUEST, seen) == [0.0, 8.0, 0.0]


def test_a_short_prompt_may_find_a_long_one_before_it() -> None:
    """The shorter, the more that weighs."""
    seen = candidates_of(3, prompts=KINDS, own_s=[0.1] * 3)
    assert PromptLengthAffinity(max_short_s=0.5, short_penalty_s=0.5).score(REQUEST, seen) == [
        0.0,
        0.0,
        pytest.approx(0.4),
    ]


def test_where_no_pod_is_marked_nothing_is_reported() -> None:
    """As nearly everywhere."""
    assert PromptLengthAffinity().score(REQUEST, candidates_of(3)) == []

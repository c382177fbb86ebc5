"""Streams are kept from where prefill is done, if another engine could do it, the more so the shorter they are."""

import pytest

from routing.facts import Role
from routing.pods import Engine
from routing.request import Api, Request
from scorers.prefill_stall import MAX_PREFILL_SHARE, PrefillStallCost
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")
LEG = {"output_tokens": 1}
"""Columns of the prefill side of a pair."""
SHORT = {"typical_prefill_s": 0.2, "typical_stream_s": 0.4, "median_stream_s": 0.4}
LONG = {"typical_prefill_s": 0.2, "typical_stream_s": 0.4, "median_stream_s": 4.0}


def test_without_pairs_it_says_nothing() -> None:
    """Somebody must then be stalled."""
    assert PrefillStallCost().score(REQUEST, candidates_of(2, running=[3.0, 0.0], **SHORT)) == []


def test_answers_are_taken_to_be_short_until_one_was_seen() -> None:
    """The first burst is placed as that of short answers, also where nothing is known of prompts either."""
    columns = {"prefill_shares": [0.5, 0.0], "running": [0.0, 2.0], "own_s": [0.1, 0.1]}
    score = PrefillStallCost(ttft_equivalent_s=0.4, min_prefill_ratio=0.5).score
    known = score(REQUEST, candidates_of(2, **columns, **SHORT))
    assert score(REQUEST, candidates_of(2, **columns, typical_prefill_s=0.2)) == pytest.approx(known)
    assert score(REQUEST, candidates_of(2, **columns)) == pytest.approx(known)


def test_who_decodes_is_stalled_for_ones_own_prefill() -> None:
    """By as much of its stream as that is, each of them, and by no more than it takes."""
    score = PrefillStallCost(ttft_equivalent_s=0.2, min_prefill_ratio=0.5).score
    columns = {"running": [3.0, 0.0], "own_s": [0.1, 0.1], "prefill_shares": [0.4, 0.4]}
    seconds = score(REQUEST, candidates_of(2, **columns, **LEG, **SHORT))
    assert seconds == pytest.approx([3 * 0.1 * 0.2 / 0.4, 0.0])
    most = PrefillStallCost(ttft_equivalent_s=9.0).score(
        REQUEST, candidates_of(1, running=[2.0], own_s=[0.1], prefill_shares=[0.0], **LEG, **SHORT)
    )
    assert most == pytest.approx([0.2])


def test_a_stream_is_drawn_to_where_little_is_prefilled() -> None:
    """What it would be longer there; a prefill leg has no stream."""
    idle = {"own_s": [0.1] * 3, "prefill_shares": [0.0, 0.25, 5.0]}
    seconds = PrefillStallCost(ttft_equivalent_s=0.3, burst_share=0.0).score(REQUEST, candidates_of(3, **idle, **SHORT))
    assert seconds == pytest.approx([0.0, 0.1, 0.3 * MAX_PREFILL_SHARE / (1 - MAX_PREFILL_SHARE)])
    assert PrefillStallCost().score(REQUEST, candidates_of(3, **idle, **LEG, **SHORT)) == [0.0] * 3


def test_long_streams_hardly_notice() -> None:
    """By the cube of how fine stalls are beside them, whatever a few of them take."""
    columns = {"own_s": [0.1], "prefill_shares": [0.5]}
    short = PrefillStallCost(min_prefill_ratio=0.5).score(REQUEST, candidates_of(1, **columns, **SHORT))
    long = PrefillStallCost(min_prefill_ratio=0.5).score(REQUEST, candidates_of(1, **columns, **LONG))
    assert long == pytest.approx([short[0] * 0.1**3])


def test_an_idle_engine_is_not_taken_to_stay_idle() -> None:
    """A burst takes `burst_share` of it, less where streams keep prefill away, and nothing of a decode engine."""
    columns = {"own_s": [0.0] * 4, "prefill_shares": [0.0, 0.0, 0.5, 0.0], "running": [0.0, 3.0, 3.0, 0.0]}
    seen = candidates_of(4, **columns, **SHORT)
    seen.engines = [*seen.engines[:3], Engine(3, "d", role=Role.DECODE)]
    seen.has_decode_engines = True
    score = PrefillStallCost(ttft_equivalent_s=0.3, burst_share=0.4).score
    assert score(REQUEST, seen) == pytest.approx([0.3 * 0.4 / 0.6, 0.3 * 0.1 / 0.9, 0.3, 0.0])

"""What a request costs those who are there already, those queued beside it, and those who were warm."""

import pytest

from routing.request import Api, Request
from scorers.interference import Interference
from tests.scorers.columns import candidates_of

CHAT = Request("r", Api.CHAT, "m")
NOTHING = {"decode_weight": 0.0, "batch_weight": 0.0, "queue_weight": 0.0, "eviction_weight": 0.0}


def only(**weights: float) -> Interference:
    """One part of it."""
    return Interference(**(NOTHING | weights))


def test_those_who_decode_lose_a_prefill_once_and_a_little_at_every_step() -> None:
    """Own prefill stalls each of them once, own decoding slows each of them at every step."""
    seen = candidates_of(
        3,
        output_tokens=100,
        running=[0.0, 10.0, 20.0],
        prefill_work=[1000.0, 1000.0, 0.0],
        seconds_per_token=[0.001] * 3,
    )
    scores = only(decode_weight=0.1).score(CHAT, seen)
    assert scores == [0.0, pytest.approx(0.1 * 10 * (1.0 + 0.1)), pytest.approx(0.1 * 20 * 0.1)]


def test_who_decodes_nothing_slows_no_step() -> None:
    """An embedding costs its prefill only."""
    seen = candidates_of(1, output_tokens=0, running=[10.0], prefill_work=[0.0])
    assert Interference().score(Request("r", Api.EMBEDDINGS, "m"), seen) == [0.0]


def test_those_who_share_a_step_wait_for_what_fits_into_it() -> None:
    """As many as end there, for as much of this prompt as has room; engines whose last step has begun lose nothing."""
    seen = candidates_of(
        3,
        prefill_work=[1000.0, 1000.0, 0.0],
        seconds_per_token=[0.001] * 3,
        open_steps=[(0, 2, 400.0), (1, 1, 5000.0), (2, 3, 5000.0)],
    )
    assert only(batch_weight=0.5).score(CHAT, seen) == [pytest.approx(0.5 * 2 * 0.4), pytest.approx(0.5 * 1.0), 0.0]


def test_those_who_come_later_lose_a_little_by_all_work() -> None:
    """In proportion, so that work which need not be done is not done for next to nothing."""
    seen = candidates_of(2, prefill_work=[1000.0, 0.0], seconds_per_token=[0.001] * 2)
    assert only(queue_weight=0.05).score(CHAT, seen) == [pytest.approx(0.05), 0.0]


def test_what_is_computed_again_counts_as_far_as_it_displaces_what_is_wanted() -> None:
    """In proportion to what must be computed again; at most once more, and a long cold prompt is not made to wait for
    the good of the cache.
    """
    columns = {"prefill_work": [100.0, 900.0, 90_000.0], "seconds_per_token": [0.001] * 3}
    some = candidates_of(3, displaced_share=0.25, **columns)
    assert only(eviction_weight=2.0, max_eviction_s=1.0).score(CHAT, some) == [
        pytest.approx(0.05),
        pytest.approx(0.45),
        0.5,
    ]
    much = candidates_of(3, displaced_share=0.9, **columns)
    assert only(eviction_weight=2.0, max_eviction_s=1.0).score(CHAT, much) == [
        pytest.approx(0.1),
        pytest.approx(0.9),
        1.0,
    ]


def test_where_nothing_that_is_wanted_is_displaced_a_cold_prompt_costs_nothing_more() -> None:
    """An empty cache, or one that forgets what nobody asks for: copies of a hot prefix are made as soon as they pay."""
    seen = candidates_of(3, prefill_work=[0.0, 900.0, 90_000.0], seconds_per_token=[0.001] * 3)
    assert only(eviction_weight=7.0).score(CHAT, seen) == [0.0, 0.0, 0.0]

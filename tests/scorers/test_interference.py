"""What a request costs those who are there already, those queued beside it, and those who come later."""

import pytest

from routing.request import Api, Request
from scorers.interference import BUSIEST, Interference
from tests.scorers.columns import candidates_of

CHAT = Request("r", Api.CHAT, "m", max_tokens=100)
NOTHING = {"weight": 0.0, "sharing": 0.0, "crowding": 0.0, "displacing": 0.0}


def only(**weights: float) -> Interference:
    """One part of it."""
    return Interference(**(NOTHING | weights))


def test_those_who_decode_lose_a_prefill_once_and_a_little_at_every_step() -> None:
    """Own prefill stalls each of them once, own decoding slows each of them at every step."""
    seen = candidates_of(
        3, running=[0.0, 10.0, 20.0], prefill_work=[1000.0, 1000.0, 0.0], seconds_per_token=[0.001] * 3
    )
    scores = only(weight=0.1).score(CHAT, seen)
    assert scores == [0.0, pytest.approx(0.1 * 10 * (1.0 + 0.1)), pytest.approx(0.1 * 20 * 0.1)]


def test_who_decodes_nothing_slows_no_step() -> None:
    """An embedding costs its prefill only."""
    seen = candidates_of(1, running=[10.0], prefill_work=[0.0])
    assert Interference().score(Request("r", Api.EMBEDDINGS, "m"), seen) == [0.0]


def test_those_who_share_a_step_wait_for_what_fits_into_it() -> None:
    """As many as end there, for as much of this prompt as has room; engines whose last step has begun lose nothing."""
    seen = candidates_of(
        3,
        prefill_work=[1000.0, 1000.0, 0.0],
        seconds_per_token=[0.001] * 3,
        open_steps=[(0, 2, 400.0), (1, 1, 5000.0), (2, 3, 5000.0)],
    )
    assert only(sharing=0.5).score(CHAT, seen) == [pytest.approx(0.5 * 2 * 0.4), pytest.approx(0.5 * 1.0), 0.0]


def test_those_who_come_later_wait_longer_behind_long_prompts_and_long_queues() -> None:
    """Half of the prompt on average, all of it behind a queue, and more where engines are rarely idle."""
    columns = {"prefill_work": [1000.0, 4000.0, 1000.0], "seconds_per_token": [0.001] * 3, "ahead_s": [0.0, 0.0, 3.0]}
    calm = only(crowding=1.0).score(CHAT, candidates_of(3, arrivals_per_s=0.5, busy_share=0.0, **columns))
    assert calm == [pytest.approx(0.5 * 0.5), pytest.approx(0.5 * 4 * 2), pytest.approx(0.5 * (3 + 0.5))]
    busy = only(crowding=1.0).score(CHAT, candidates_of(3, arrivals_per_s=0.5, busy_share=0.75, **columns))
    assert busy == [pytest.approx(4 * each) for each in calm]
    full = only(crowding=1.0).score(CHAT, candidates_of(3, arrivals_per_s=0.5, busy_share=7.0, **columns))
    assert full == [pytest.approx(each / (1 - BUSIEST)) for each in calm]


def test_where_nobody_comes_long_prompts_cost_no_more_than_short_ones() -> None:
    """The price of work is the fleet's load, not the prompt's length."""
    assert only(crowding=1.0).score(CHAT, candidates_of(2, prefill_work=[10.0, 1e6])) == [0.0, 0.0]


def test_what_is_computed_anew_counts_again_up_to_a_bound() -> None:
    """A warm engine gains by it, a long cold prompt is not made to wait for the good of the cache."""
    seen = candidates_of(3, prefill_work=[100.0, 900.0, 90_000.0], seconds_per_token=[0.001] * 3)
    assert only(displacing=2.0, most_s=1.0).score(CHAT, seen) == [pytest.approx(0.2), pytest.approx(1.8), 2.0]

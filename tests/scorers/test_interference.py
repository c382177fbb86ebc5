"""What a request costs those who are there already."""

import pytest

from routing.request import Api, Request
from scorers.interference import Interference
from tests.scorers.columns import candidates_of


def test_it_is_what_all_others_lose() -> None:
    """Own prefill stalls each of them once, own decoding slows each of them at every step."""
    seen = candidates_of(
        3, running=[0.0, 10.0, 20.0], prefill_work=[1000.0, 1000.0, 0.0], seconds_per_token=[0.001] * 3
    )
    request = Request("r", Api.CHAT, "m", max_tokens=100)
    scores = Interference(weight=0.1).score(request, seen)
    assert scores == [0.0, pytest.approx(0.1 * 10 * (1.0 + 0.1)), pytest.approx(0.1 * 20 * 0.1)]


def test_who_decodes_nothing_slows_no_step() -> None:
    """An embedding costs its prefill only."""
    seen = candidates_of(1, running=[10.0], prefill_work=[0.0])
    assert Interference().score(Request("r", Api.EMBEDDINGS, "m"), seen) == [0.0]

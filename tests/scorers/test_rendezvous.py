"""The common engine of gateways that cannot exchange updates, in seconds."""

import pytest

from routing.request import Api, Request
from scorers.rendezvous import Rendezvous
from tests.scorers.columns import candidates_of

CHAT = Request("r", Api.CHAT, "m", max_tokens=100)


def test_without_a_common_engine_it_is_silent() -> None:
    """As in every decision while updates arrive."""
    assert Rendezvous().score(CHAT, candidates_of(3)) == []


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_the_common_engine_is_worth_a_part_of_the_prefill(weight: float) -> None:
    """Of what this request would compute there."""
    candidates = candidates_of(
        3, rendezvous_at=1, prefill_work=[1_000.0, 2_000.0, 1_000.0], seconds_per_token=[0.001] * 3
    )
    assert Rendezvous(weight=weight).score(CHAT, candidates) == [0.0, -weight * 2.0, 0.0]

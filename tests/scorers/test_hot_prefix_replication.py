"""Copies of hot prefixes, made on purpose."""

import pytest

from routing.request import Api, Request
from scorers.hot_prefix_replication import HotPrefixReplication
from tests.scorers.columns import candidates_of

CHAT = Request("r", Api.CHAT, "m", max_tokens=100)
WORK = {"prefill_work": [100.0, 2_000.0, 4_000.0], "seconds_per_token": [0.001] * 3}


def test_where_no_one_has_waited_it_is_silent() -> None:
    """No account, no copy."""
    assert HotPrefixReplication().score(CHAT, candidates_of(3, **WORK)) == []


def test_what_was_waited_pays_for_a_copy() -> None:
    """For as much of it as there is on the account, of each engine's own price; the holder gains nothing."""
    assert HotPrefixReplication().score(CHAT, candidates_of(3, waited_s=1.5, **WORK)) == [0.0, -1.5, -1.5]


def test_no_more_is_paid_than_a_copy_costs() -> None:
    """Then a cold engine counts as one that holds it: the shorter queue decides."""
    seconds = HotPrefixReplication(weight=2.0).score(CHAT, candidates_of(3, waited_s=50.0, **WORK))
    assert seconds == [0.0, pytest.approx(-1.9), pytest.approx(-3.9)]

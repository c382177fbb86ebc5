"""A round trip counts like any other second before the first token."""

from routing.request import Api, Request
from scorers.distance import Distance
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")


def test_a_round_trip_is_added() -> None:
    """Per engine, by the weight."""
    seen = candidates_of(2, distances_s=[0.0, 0.2])
    assert Distance(weight=2.0).score(REQUEST, seen) == [0.0, 0.4]


def test_where_none_is_far_nothing_is_reported() -> None:
    """No pod has a distance."""
    assert Distance().score(REQUEST, candidates_of(2)) == []

"""Round robin."""

from routing.request import Api, Request
from scorers.round_robin import RoundRobin
from tests.scorers.columns import candidates_of


def test_who_was_chosen_longest_ago_comes_first() -> None:
    """The count of choices, whatever else there is to know."""
    seen = candidates_of(3, last_turn=[7, 2, 9], running=[0.0, 100.0, 0.0], warm_tokens=[1000.0, 0.0, 0.0])
    assert RoundRobin().score(Request("r", Api.CHAT, "m"), seen) == [7.0, 2.0, 9.0]

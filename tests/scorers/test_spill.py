"""The cloud stays cold while engines on premises answer in time."""

from routing.request import Api, Request
from scorers.spill import COLD_S, SpillPenalty
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")


def test_a_higher_rank_is_put_behind_while_the_first_pool_is_in_time() -> None:
    """Its best engine counts, however busy the others are."""
    seen = candidates_of(3, spill_ranks=[0, 0, 1], ahead_s=[60.0, 1.0, 0.0])
    assert SpillPenalty(max_ttft_s=5.0).score(REQUEST, seen) == [0.0, 0.0, COLD_S]


def test_a_late_first_pool_leaves_the_price_of_a_rank() -> None:
    """Both of its engines begin after five seconds."""
    seen = candidates_of(3, spill_ranks=[1, 1, 3], ahead_s=[6.0, 7.0, 0.0])
    assert SpillPenalty(max_ttft_s=5.0, per_rank_s=0.5).score(REQUEST, seen) == [0.0, 0.0, 1.0]


def test_where_all_ranks_are_equal_nothing_is_reported() -> None:
    """Or where no pod has one."""
    assert SpillPenalty().score(REQUEST, candidates_of(2)) == []
    assert SpillPenalty().score(REQUEST, candidates_of(2, spill_ranks=[1, 1])) == []

"""The cloud stays cold while engines on premises answer in time."""

from routing.request import Api, Request
from scorers.spill import COLD_S, SpillPenalty, leaves
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


def test_a_share_leaves_before_the_first_pool_is_late() -> None:
    """By session, the same way each time; about as many as the share says."""
    seen = candidates_of(2, spill_ranks=[0, 1], spill_share=0.25)
    left = 0
    for number in range(400):
        request = Request(f"r{number}", Api.CHAT, "m", session=f"s{number // 2}")
        scores = SpillPenalty(per_rank_s=0.5).score(request, seen)
        assert scores in ([0.0, COLD_S], [COLD_S, 0.5])
        assert (scores[0] > 0) == leaves(request, 0.25)
        left += scores[0] > 0
    assert 70 <= left <= 130


def test_nothing_leaves_for_a_cloud_that_would_be_late() -> None:
    """Its engine begins after a minute: the first pool, however busy, is not put behind."""
    seen = candidates_of(2, spill_ranks=[0, 1], spill_share=1.0, ahead_s=[1.0, 60.0])
    assert SpillPenalty(max_ttft_s=5.0).score(REQUEST, seen) == [0.0, COLD_S]

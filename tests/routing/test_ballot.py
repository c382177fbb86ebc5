"""What a receipt shows of a decision: the best few, with each scorer's word."""

import pytest

from routing.ballot import SHOWN_CANDIDATES, Ballot, Scored
from tests.scorers.columns import candidates_of


def ballot(totals: list[float], at: int) -> Ballot:
    scored = Scored(("prefill", "lora"), (totals, [0.0] * len(totals)), totals)
    running = [float(number) for number in range(len(totals))]
    return Ballot(candidates_of(len(totals), running=running, warm_tokens=[15.7] * len(totals)), scored, at)


def test_the_best_are_shown_in_order() -> None:
    """Few of many, best first, the chosen one marked."""
    shown = list(ballot([5.0, 1.0, 3.0, 2.0], at=1).few())
    assert [each.engine for each in shown] == [f"http://pod-{slot}" for slot in (1, 3, 2, 0)]
    assert [each.chosen for each in shown] == [True, False, False, False]
    assert [each.running for each in shown] == [1, 3, 2, 0]


@pytest.mark.parametrize("at", [0, 7, 8, 49])
def test_the_chosen_one_is_always_shown(at: int) -> None:
    """Even where it was not among the best (a tie broken, a rule of its own)."""
    shown = list(ballot([float(number) for number in range(50)], at).few())
    assert len(shown) == SHOWN_CANDIDATES
    assert [each.engine for each in shown if each.chosen] == [f"http://pod-{at}"]


def test_every_scorers_seconds_are_told_by_name() -> None:
    """Rounded to microseconds and whole tokens."""
    (shown,) = ballot([0.12345678], at=0).few()
    assert shown.seconds == {"prefill": 0.123457, "lora": 0.0}
    assert shown.total_s == 0.123457
    assert shown.warm_tokens == 16

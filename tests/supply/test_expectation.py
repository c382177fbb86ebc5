"""What is expected at the horizon, and what met objectives teach."""

from __future__ import annotations

from supply.load import ModelLoad, PoolLoad, TierLoad
from tests.supply.builders import GOLD, SILVER, decide, load_of, work


def test_a_slow_start_is_learned_before_it_has_ended() -> None:
    """The horizon is the age of an engine that is still starting, where that is longer than the estimate."""
    terms = {
        oldest: {
            term.name: term.value
            for term in decide([load_of(10, PoolLoad(ready=2, starting=1, start_s=60, oldest_start_s=oldest))])[0][0]
            .pools[0]
            .terms
        }
        for oldest in (10.0, 200.0)
    }
    assert terms[10.0]["horizon_s"] == 90.0
    assert terms[200.0]["horizon_s"] == 230.0


def test_attainment_below_the_estimate_adds_engines_within_bounds() -> None:
    """What was missed on enough engines raises the work; full attainment lowers it to its bound."""

    def figure(attained: float) -> float:
        tier = TierLoad(GOLD, work(20), attained=attained, finished=1_000)
        answers, _ = decide([ModelLoad("m", (tier,), (PoolLoad(ready=9),))] * 200)
        return next(term.value for term in answers[-1].pools[0].terms if term.name == "needed_alone")

    plain = figure(0.999)
    assert 1.05 * plain < figure(0.8) < 1.45 * plain


def test_a_rise_that_no_tier_shows_by_itself_is_followed_where_all_have_risen() -> None:
    """Both tiers have half as much again: within the noise of each one's requests, beyond that of both together."""

    def prefill(gold: float, silver: float) -> float:
        tiers = TierLoad(GOLD, work(1.0)), TierLoad(SILVER, work(1.0))
        now = TierLoad(GOLD, work(gold)), TierLoad(SILVER, work(silver))
        pools = (PoolLoad(ready=9),)
        answers, _ = decide([ModelLoad("m", tiers, pools)] * 40 + [ModelLoad("m", now, pools)])
        return next(term.value for term in answers[-1].pools[0].terms if term.name == "gold.prefill")

    assert prefill(1.47, 1.47) > 1.1 * prefill(1.47, 1.0)


def test_few_finished_requests_teach_less() -> None:
    """A fifth of the requests in a window moves the factor by less than all of them."""

    def figure(finished: float) -> float:
        tier = TierLoad(GOLD, work(20), attained=0.8, finished=finished)
        answers, _ = decide([ModelLoad("m", (tier,), (PoolLoad(ready=9),))] * 20)
        return next(term.value for term in answers[-1].pools[0].terms if term.name == "needed_alone")

    assert figure(0.0) < figure(10.0) < figure(50.0) == figure(500.0)

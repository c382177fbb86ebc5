"""What is expected at the horizon, and what met objectives teach."""

from __future__ import annotations

from supply.load import ModelLoad, PoolLoad, TierLoad
from tests.supply.builders import GOLD, decide, load_of, work


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

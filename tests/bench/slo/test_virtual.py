"""Runs in virtual time: the same every time, and what overload and loss must show."""

from __future__ import annotations

from dataclasses import replace

from bench.slo.figures import Figures
from bench.slo.policies import CAPS, FCFS, HEARTH, STRICT, Policy
from bench.slo.scenario import Loss, Scenario
from bench.slo.virtual import Job, play
from tests.bench.slo.small import GOLD, SMALL


def run(policy: Policy, load: float, scenario: Scenario = SMALL) -> Figures:
    """The figures of one run."""
    return play(Job(scenario, policy, load, seed=3))


def test_a_seed_gives_the_same_figures() -> None:
    """To the last digit, refusals and retries included."""
    assert run(CAPS, 80.0) == run(CAPS, 80.0)


def test_little_load_meets_all_objectives() -> None:
    """Whoever comes first: nothing is refused and nothing is wasted."""
    reported = run(FCFS, 4.0)
    assert [tier.attainment for tier in reported.tiers.values()] == [1.0, 1.0]
    assert (reported.reasons, reported.wasted) == ({}, 0.0)


def test_strict_priority_serves_gold_first() -> None:
    """Its first tokens come in time where coming first breaks all promises; how fast it then goes is not looked at."""
    tiers = {**SMALL.tiers, "gold": replace(GOLD, tpot_s=1.0)}
    overload = replace(SMALL, until=("gold", 400), tiers=tiers)
    strict, fcfs = (run(policy, 30.0, overload).tiers["gold"].attainment for policy in (STRICT, FCFS))
    assert (strict > 0.9, fcfs < 0.2) == (True, True)


def test_capped_tiers_are_rejected_and_retry() -> None:
    """At once, and three times each."""
    reported = run(CAPS, 80.0)
    assert reported.tiers["gold"].rejected == 0.0 < reported.tiers["bronze"].rejected
    assert reported.reasons["overloaded"] > reported.tiers["bronze"].rejected
    assert reported.rejection_p99_s == 0.0


def test_a_lost_engine_loses_what_is_on_it() -> None:
    """What had begun there is lost and wasted, what had not goes on elsewhere."""
    reported = run(FCFS, 12.0, replace(SMALL, until=("gold", 200), loss=Loss(engine=0, at=0.3, back=0.6)))
    assert set(reported.reasons) == {"pod_lost"}
    assert 0.9 < reported.tiers["bronze"].attainment < 1.0
    assert reported.tiers["bronze"].rejected == 0.0
    assert reported.wasted > 0.0


def test_we_meet_golds_objective_where_others_miss_it() -> None:
    """The policy of ours goes through the real admission: gold first, and not only gold."""
    reported = run(HEARTH, 40.0, replace(SMALL, until=("gold", 200)))
    assert reported.tiers["gold"].attainment > 2 * run(FCFS, 40.0).tiers["gold"].attainment
    assert reported.tiers["bronze"].attainment > 0.1
    assert reported.reasons["overloaded"] > 0.0

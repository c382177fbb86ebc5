"""Several gateways in virtual time: who receives what, and that they admit as one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from bench.slo.best import Best
from bench.slo.gateways import LAYOUTS, ONE, Gateways, Link, fault_of
from bench.slo.policies import HEARTH
from bench.slo.reading import load_scenario
from bench.slo.rows import Block
from bench.slo.targets import gateway_targets
from bench.slo.virtual import Job, play

BEST = 32.1


def test_requests_arrive_by_the_shares_of_the_gateways() -> None:
    """Equal ones, or one that has most of the traffic."""
    draw = Random(1).random
    equal = Counter(Gateways(4).pick(draw()) for _ in range(4_000))
    assert all(900 < equal[number] < 1_100 for number in range(4))
    counts = Counter(Gateways(3, first_share=0.8).pick(draw()) for _ in range(4_000))
    assert 3_000 < counts[0] < 3_400
    assert 300 < counts[1] < 500
    assert len(counts) == 3


def test_layouts_have_names_of_their_own() -> None:
    """They are the rows of one table."""
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)
    assert Gateways(4, Link.DIES, 0.8).name == "4 gateways, redis dies, one has 80%"


def test_faults_last_for_thirty_seconds() -> None:
    """Less in a short run, so that there is something before and behind."""
    assert fault_of(100.0) == (35.0, 65.0)
    assert fault_of(10.0) == (3.5, 7.5)


def test_two_gateways_admit_as_one() -> None:
    """At twice the best load; without updates each admits as if it were alone, and gold is no longer met."""
    scenario = load_scenario("overload-2").lasting(250)
    one, two, apart = (
        play(Job(scenario, HEARTH, 2 * BEST, 1, gateways=layout))
        for layout in (ONE, Gateways(2), Gateways(4, Link.NONE))
    )
    assert two.tiers["gold"].attainment >= 0.99
    assert two.tiers["silver"].attainment >= one.tiers["silver"].attainment - 0.05
    assert two.met_per_s >= 0.9 * one.met_per_s
    assert apart.tiers["gold"].attainment < 0.95


def test_targets_hold_several_gateways_against_one() -> None:
    """Only those that are linked and were played."""
    scenario = load_scenario("overload-2").lasting(40)
    figures = play(Job(scenario, HEARTH, 20.0, 1))
    block = Block(scenario, 20.0, Best(20.0, 1.0, 1.0), {ONE.name: figures, Gateways(2).name: figures})
    assert [target.is_met for target in gateway_targets(block)] == [True, True, True]
    worse = replace(figures, met_per_s=0.9 * figures.met_per_s)
    worst = Block(scenario, 20.0, None, {ONE.name: figures, Gateways(2).name: worse})
    assert [target.is_met for target in gateway_targets(worst)] == [True, True, False]

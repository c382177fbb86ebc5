"""Several gateways live: engines that are slowed down, and which rows count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.slo.best import Best
from bench.slo.live_gateways import LIVE_LAYOUTS, LIVE_ONE, MAX_BUSY, LiveBlock, slowed
from bench.slo.policies import HEARTH
from bench.slo.reading import load_scenario
from bench.slo.rows import Block
from bench.slo.virtual import Job, play


def test_a_slowed_scenario_is_the_same_at_another_clock() -> None:
    """At half the load as many requests meet objectives that are twice as long."""
    scenario = load_scenario("overload-2").lasting(40)
    figures = play(Job(scenario, HEARTH, 64.0, 1))
    slow = play(Job(slowed(scenario, 2.0), HEARTH, 32.0, 1))
    assert slow.met_per_s == pytest.approx(figures.met_per_s / 2, rel=0.1)
    assert slow.tiers["gold"].attainment == pytest.approx(figures.tiers["gold"].attainment, abs=0.05)


def test_a_row_on_a_busy_machine_does_not_count() -> None:
    """Neither where one gateway, by which it is judged, was played on a busy machine."""
    scenario = load_scenario("overload-2").lasting(10)
    figures = play(Job(scenario, HEARTH, 20.0, 1))
    names = [layout.name for layout in LIVE_LAYOUTS]
    block = Block(scenario, 20.0, Best(20.0, 1.0, 1.0), dict.fromkeys(names, figures))
    idle = LiveBlock(block, dict.fromkeys(names, 0.5))
    assert len(list(idle.targets())) == 3 * (len(names) - 1)
    assert len(list(replace(idle, busy={**idle.busy, names[-1]: MAX_BUSY}).targets())) == 3 * (len(names) - 2)
    assert not list(replace(idle, busy={**idle.busy, LIVE_ONE.name: MAX_BUSY}).targets())
    assert "4 processes 50%" in str(idle)

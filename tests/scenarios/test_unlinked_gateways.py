"""Gateways without a Redis that know how many they are: gold keeps its objective, as it does behind one gateway."""

from __future__ import annotations

import pytest

from bench.slo.gateways import Gateways, Link
from bench.slo.policies import HEARTH
from bench.slo.reading import load_scenario
from bench.slo.virtual import Job, play

LOAD = 64.2
"""Requests a second: twice what the four engines of `chat` can serve."""


@pytest.mark.parametrize("count", [4, 8])
def test_gold_is_kept_by_gateways_that_are_counted(count: int) -> None:
    """Each takes its part. Without the number each takes all of every engine, and gold misses its objective."""
    scenario = load_scenario("overload-2").lasting(150)

    def gold(link: Link) -> float:
        return play(Job(scenario, HEARTH, LOAD, 0, gateways=Gateways(count, link))).tiers["gold"].attainment

    assert gold(Link.COUNTED) >= 0.97
    assert gold(Link.NONE) < 0.9

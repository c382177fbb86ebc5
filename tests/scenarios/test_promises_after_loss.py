"""A fleet at one and a half times its load loses a pod: what was promised to the highest tier is kept all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.slo.fates import RequestResult
from bench.slo.policies import HEARTH
from bench.slo.reading import load_scenario
from bench.slo.scenario import Loss, Scenario
from bench.slo.virtual import Job, fates_of

BEST = 32.1
"""Requests a second that the four engines of `chat` can serve at their best, as `bench/slo` measures it."""

CHAT = load_scenario("chat")
LOST_AT = 0.6
AFTER_S = 4.0


def played(seed: int) -> tuple[Scenario, list[RequestResult], float]:
    """What became of all requests, and when the pod was lost; it does not come back."""
    scenario = replace(CHAT.lasting(250), loss=Loss(0, LOST_AT, 2.0))
    fates = fates_of(Job(scenario, HEARTH, 1.5 * BEST, seed, resumes=True))
    return scenario, fates, LOST_AT * fates[-1].offered.at_s


@pytest.mark.parametrize("seed", [0, 1])
def test_gold_is_served_as_promised_after_a_pod_is_lost(seed: int) -> None:
    """Its demand fits what is left: streams of lower tiers that lost their pod wait behind it, and none is cut."""
    scenario, fates, lost_s = played(seed)
    gold = [fate for fate in fates if fate.offered.tenant.tier == "gold"]
    after = [fate for fate in gold if lost_s <= fate.offered.at_s < lost_s + AFTER_S]
    met = sum(fate.is_met(scenario.tiers["gold"], scenario.profile) for fate in after)
    assert len(after) > 25
    assert met / len(after) > 0.9
    assert not [no for fate in gold for no in fate.noes if no.reason in ("pod_lost", "pod_unreachable")]
    assert not [fate for fate in fates if fate.noes and fate.noes[-1].started]
    running = [fate for fate in fates if fate.first_token_s and fate.first_token_s < lost_s < (fate.end_s or 0.0)]
    assert all(fate.is_answered for fate in running)

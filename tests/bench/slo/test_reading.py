"""Scenario files: what they say, what they take over, and what is wrong with them."""

from __future__ import annotations

import pytest

from bench.slo.lengths import LogNormal, Quantiles
from bench.slo.reading import known_scenarios, load_scenario, read_scenario
from bench.slo.scenario import Bursts, Loss
from tenancy.document import InvalidDocument

BASE = """
about: two tenants
load: 1.5
until: {tier: gold, requests: 10}
engine: {by_priority: true}
prompt: {mean: 100, sigma: 0.5, most: 400}
answer: {quantiles: [[0, 1], [1, 9]]}
tiers:
  gold: {priority: 5, ttft_s: 0.5, ttft_uncached_factor: 2, tpot_s: 0.04, guaranteed_share: 0.5}
  bronze: {}
tenants:
  ann: {tier: gold, share: 0.25, weight: 2}
  bob: {tier: bronze, share: 0.75, prompt: {mean: 7}, bursts: {every_s: 10, for_s: 2, times: 4}}
"""


def faults(text: str) -> list[str]:
    """What is wrong with a text."""
    with pytest.raises(InvalidDocument) as reported:
        read_scenario("it", {"it": text, "base": BASE}.__getitem__)
    return [fault.path for fault in reported.value.errors]


def test_says_all() -> None:
    """Every word of a file arrives."""
    scenario = read_scenario("it", {"it": BASE}.__getitem__)
    ann, bob = scenario.tenants
    assert (scenario.base, scenario.load, scenario.until) == ("it", 1.5, ("gold", 10))
    assert scenario.profile.by_priority
    assert scenario.engines == 4
    assert (ann.prompt, ann.answer) == (LogNormal(100, 0.5, 400), Quantiles(((0.0, 1.0), (1.0, 9.0))))
    assert (ann.tier, ann.share, ann.weight, ann.bursts) == ("gold", 0.25, 2.0, None)
    assert (bob.prompt, bob.bursts) == (LogNormal(7, 0.0), Bursts(10, 2, 4))
    gold = scenario.tiers["gold"]
    assert (gold.name, gold.priority, gold.ttft_s, gold.ttft_uncached_factor, gold.tpot_s) == (
        "gold",
        5,
        0.5,
        2.0,
        0.04,
    )


def test_takes_over_what_it_does_not_report() -> None:
    """`like` means the same but for what is said here; what is wanted is never taken over."""
    text = """
    like: base
    load: 3
    wanted: {gold: 0.9, of_best: 0.8}
    loss: {engine: 1, at: 0.2, back: 0.4}
    tenants: {ann: {share: 2}, carl: {tier: gold, share: 1}}
    """
    scenario = read_scenario("it", {"it": text, "base": BASE}.__getitem__)
    ann, bob, carl = scenario.tenants
    assert (scenario.name, scenario.base, scenario.load) == ("it", "base", 3.0)
    assert (ann.share, ann.weight, bob.share, carl.weight) == (2.0, 2.0, 0.75, 1.0)
    assert scenario.loss == Loss(1, 0.2, 0.4)
    assert scenario.wanted == {"gold": 0.9, "of_best": 0.8}
    again = read_scenario("again", {"again": "like: it", "it": text, "base": BASE}.__getitem__)
    assert (again.base, dict(again.wanted)) == ("base", {})


def test_reports_all_faults_with_their_places() -> None:
    """One reading finds every mistake."""
    assert faults("like: base\nlaod: 2\ntenants: {bob: {tier: iron, shar: 1}}\nuntil: {tier: tin, requests: 0}") == [
        "tenants.bob.shar",
        "tenants.bob.tier",
        "until.requests",
        "until.tier",
        "laod",
    ]


@pytest.mark.parametrize("points", ["[[0, 1]]", "[[0.1, 1], [1, 2]]", "[[0, 2], [1, 2], [0.5, 3]]", "[[0, 1, 2]]"])
def test_wants_quantiles_from_none_to_all(points: str) -> None:
    """A distribution begins at share 0 and ends at share 1, and rises."""
    assert faults(f"like: base\nprompt: {{quantiles: {points}}}")


@pytest.mark.parametrize("name", known_scenarios())
def test_what_ships_can_be_read(name: str) -> None:
    """Each file, with somebody to count and tenants of known tiers."""
    scenario = load_scenario(name)
    assert scenario.about
    assert scenario.until[0] in {one.tier for one in scenario.tenants if one.share}
    assert load_scenario(scenario.base).base == scenario.base

"""How gateways are told who asks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from bench.slo.contenders import policy_of, smg_classes, smg_header
from bench.slo.live import headers_by_name
from bench.slo.reading import known_scenarios, load_scenario
from tenancy.policy import InlineFiles
from tenancy.reading.policy import read_policy
from tests.bench.slo.small import ANN, BOB, CARL, SMALL


def test_a_tenants_own_headers_stand_before_its_tiers() -> None:
    """Keys and any other headers, by tenant or by tier."""
    headers_of = headers_by_name(["ann=k1", "bronze=k2", "carl=k3"], ["bronze=X-SMG-Priority: bulk"])
    assert headers_of(ANN) == {"authorization": "Bearer k1"}
    assert headers_of(BOB) == {"authorization": "Bearer k2", "X-SMG-Priority": "bulk"}
    assert headers_of(CARL)["authorization"] == "Bearer k3"


def test_classes_of_smg_go_from_the_top() -> None:
    """The best tier is interactive, the last ones are bulk."""
    tiers = {**SMALL.tiers, "tin": replace(SMALL.tiers["bronze"], name="tin", priority=-20)}
    tiers["ore"] = replace(tiers["tin"], name="ore", priority=-30)
    tenants = [replace(ANN, tier=name) for name in ("gold", "bronze", "tin", "ore")]
    scenario = replace(SMALL, tiers=tiers)
    reported = [smg_header(scenario, tenant)["x-smg-priority"] for tenant in tenants]
    assert reported == ["interactive", "default", "bulk", "bulk"]
    reserving = {name: one["reserved_per_slot"] for name, one in smg_classes(load_scenario("chat")).items()}
    assert reserving == {"interactive": 0.5, "default": 0.2, "bulk": 0.03, "system": 0.0}


@pytest.mark.parametrize("name", known_scenarios())
def test_a_scenario_is_a_policy_of_ours(name: str) -> None:
    """Its tiers and tenants are read as they stand in the scenario."""
    scenario = load_scenario(name)
    policy = read_policy(yaml.safe_dump(policy_of(scenario)), {}, InlineFiles())
    assert dict(policy.tiers) == {tier.name: tier for tier in scenario.tiers.values()}
    reported = {name: (tenant.tier, tenant.weight) for name, tenant in policy.tenants.items()}
    assert reported == {one.name: (scenario.tiers[one.tier], one.weight) for one in scenario.tenants}

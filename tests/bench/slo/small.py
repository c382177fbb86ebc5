"""A small scenario for tests."""

from __future__ import annotations

from dataclasses import replace

from bench.slo.lengths import LogNormal
from bench.slo.scenario import Customer, Scenario
from simulator.profile import Profile
from tenancy.objective import Tier

GOLD = Tier("gold", priority=10, ttft_s=1.0, ttft_uncached_factor=2.0, tpot_s=0.05)
BRONZE = Tier("bronze", priority=-10, ttft_s=15.0, tpot_s=0.15)

ANN = Customer("ann", "gold", 0.3, 1.0, LogNormal(800, 0.8), LogNormal(50, 0.5))
BOB = replace(ANN, name="bob", tier="bronze", share=0.4, weight=3.0)
CARL = replace(ANN, name="carl", tier="bronze", share=0.3)

SMALL = Scenario(
    name="small",
    about="for tests",
    base="small",
    load=1.0,
    tiers={"gold": GOLD, "bronze": BRONZE},
    tenants=(ANN, BOB, CARL),
    until=("gold", 60),
    engines=2,
    profile=Profile(by_priority=True),
)

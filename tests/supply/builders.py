"""Short ways to loads and decisions for the tests."""

from __future__ import annotations

from collections.abc import Iterable

from supply.desired import EMPTY_STATE, DesiredFleet, SupplyState, desired_engines
from supply.load import ModelLoad, OfferedWork, PoolLoad, TierLoad, TierObjective
from supply.policy import GuardRails, SupplyPolicy

MONDAY_S = 1_800_230_400.0
GOLD = TierObjective("gold", 100, ttft_s=2.0, ttft_uncached_factor=1.0, tpot_s=0.05)
SILVER = TierObjective("silver", 50, ttft_s=10.0, ttft_uncached_factor=2.0, tpot_s=0.1)
BATCH = TierObjective("batch", 0, is_best_effort=True)
ADVISE = SupplyPolicy()


def work(requests: float, prefill: float = 4_000.0, output: float = 250.0) -> OfferedWork:
    """Return work of like requests."""
    return OfferedWork(requests, requests * prefill, requests * output)


def load_of(
    requests: float,
    *pools: PoolLoad,
    objective: TierObjective = GOLD,
    age_s: float = 0.0,
    completeness: float = 1.0,
    held: int = 0,
) -> ModelLoad:
    """Return the load of one tier."""
    tiers = (TierLoad(objective, admitted=work(requests)),)
    return ModelLoad("m", tiers, pools or (PoolLoad(ready=2),), age_s=age_s, completeness=completeness, held=held)


def decide(
    loads: Iterable[ModelLoad],
    policy: SupplyPolicy = ADVISE,
    state: SupplyState = EMPTY_STATE,
    begin_s: float = MONDAY_S,
    step_s: float = 15.0,
) -> tuple[list[DesiredFleet], SupplyState]:
    """Return the answers to loads that come one after another."""
    answers = []
    for at, load in enumerate(loads):
        answer, state = desired_engines(load, policy, state, begin_s + at * step_s)
        answers.append(answer)
    return answers, state


def rails(lowest: int = 0, highest: int = 100, step: int = 100, hours: float = 1e6) -> SupplyPolicy:
    """Return a policy with guard rails for all pools."""
    return SupplyPolicy(pools={"default": GuardRails(lowest, highest, step, hours)})

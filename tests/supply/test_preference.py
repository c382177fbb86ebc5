"""The order of pools and the decision to spill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supply.load import EngineSpeed, ModelLoad, PoolLoad, TierLoad
from supply.policy import SupplyPolicy
from supply.preference import CONFIRM_S, SpillDecision, SpillMemory, SpillReason, order_pools, spill_decision
from tests.supply.builders import GOLD, MONDAY_S, SILVER, work

HOME, CLOUD = PoolLoad("home", ready=6), PoolLoad("cloud", ready=2, rank=1, price_per_hour=4.0)
POLICY = SupplyPolicy()


def fleet(gold: float, silver: float, *pools: PoolLoad) -> ModelLoad:
    return ModelLoad("m", (TierLoad(GOLD, work(gold)), TierLoad(SILVER, work(silver))), pools or (HOME, CLOUD))


def decide_spill(load: ModelLoad, memory: SpillMemory, at_s: float = 0.0) -> tuple[SpillDecision, SpillMemory]:
    """A decision that is due: where more has to leave, that is confirmed."""
    _, memory = spill_decision(load, POLICY, memory, MONDAY_S + at_s - CONFIRM_S)
    return spill_decision(load, POLICY, memory, MONDAY_S + at_s)


def test_pools_are_ordered_by_rank_region_price_of_work_and_distance() -> None:
    """Twice the speed makes up for less than twice the price."""
    fast = replace(EngineSpeed(), prefill_tokens_per_s=24_000)
    pools = [
        PoolLoad("far", rank=1, region="eu", distance_s=0.2),
        PoolLoad("near", rank=1, region="eu", distance_s=0.01),
        PoolLoad("other", rank=1, region="us", price_per_hour=0.1),
        PoolLoad("fast", rank=1, region="eu", speed=fast, price_per_hour=1.8),
        PoolLoad("home", rank=0, region="us", price_per_hour=50.0),
    ]
    assert [pool.pool for pool in order_pools(pools, region="eu")] == ["home", "fast", "near", "far", "other"]


def test_nothing_leaves_while_home_keeps_its_objectives() -> None:
    """The cloud stays cold."""
    decision, _ = decide_spill(fleet(6, 6), SpillMemory())
    assert (decision.share, decision.leaving, decision.reason) == (0.0, (), SpillReason.HOME)


def test_only_as_much_leaves_as_has_to() -> None:
    """At twice the load about half of it; what stays keeps the objectives."""
    decision, memory = decide_spill(fleet(14, 14), SpillMemory())
    assert decision.reason is SpillReason.OVERLOAD
    assert 0.2 < decision.share < 0.7
    less, _ = decide_spill(fleet(10, 10), memory)
    assert less.share == decision.share


def test_it_is_taken_back_after_a_calm_time() -> None:
    """Home has to be able to carry it for two minutes, with a margin."""
    _, memory = decide_spill(fleet(14, 14), SpillMemory())
    shares = []
    for at in range(12):
        decision, memory = spill_decision(fleet(5, 5), POLICY, memory, MONDAY_S + 15.0 * at)
        shares.append(decision.share)
    assert shares[7] > 0
    assert shares[-1] == 0.0
    assert decision.reason is SpillReason.HOME


def test_residency_is_absolute() -> None:
    """Overload by a tier that may not leave sends the other tier away and no more."""
    tiers = (TierLoad(GOLD, work(40), pools=frozenset(("home",))), TierLoad(SILVER, work(2)))
    decision, _ = decide_spill(ModelLoad("m", tiers, (HOME, CLOUD)), SpillMemory())
    assert decision.leaving == ("silver",)
    assert decision.reason is SpillReason.RESIDENCY
    bound = (replace(tiers[0], pools=frozenset(("home",))), replace(tiers[1], pools=frozenset(("home",))))
    decision, _ = decide_spill(ModelLoad("m", bound, (HOME, CLOUD)), SpillMemory())
    assert (decision.share, decision.leaving) == (0.0, ())


def test_without_another_pool_or_with_stale_figures_nothing_changes() -> None:
    """A cloud without ready engines takes nothing; stale figures keep the share."""
    decision, _ = decide_spill(fleet(40, 40, HOME, replace(CLOUD, ready=0)), SpillMemory())
    assert decision.reason is SpillReason.NO_OTHER_POOL
    stale = replace(fleet(1, 1), age_s=1e4)
    decision, memory = decide_spill(stale, SpillMemory(0.5))
    assert decision.share == 0.5
    assert memory == SpillMemory(0.5)


def resident(share: float) -> ModelLoad:
    """Twice the load that home carries, of which a share may not leave."""
    total = work(28)
    tier = TierLoad(GOLD, total, resident=((frozenset({"home"}), total.scaled(share)),))
    return ModelLoad("m", (tier,), (HOME, CLOUD))


def test_resident_work_of_a_tier_stays_and_the_rest_makes_room() -> None:
    """The more of it may not leave, the larger a share of the rest does; where all of it stays nothing leaves."""
    none, _ = decide_spill(resident(0.0), SpillMemory())
    some, _ = decide_spill(resident(0.3), SpillMemory())
    everything, _ = decide_spill(resident(1.0), SpillMemory())
    assert 0.2 < none.share < some.share < 1.0
    assert some.leaving == ("gold",)
    assert (everything.share, everything.leaving, everything.reason) == (0.0, (), SpillReason.RESIDENCY)
    assert [tier for tier, _ in some.missed] == ["gold"]


def test_a_tier_in_parts_is_the_tier() -> None:
    """Work is divided, not changed; a tier without resident work is one part."""
    (tier,) = resident(0.3).tiers
    kept, free = tier.by_residency()
    assert (kept.offered + free.offered).prefill_tokens == pytest.approx(tier.offered.prefill_tokens)
    assert kept.offered.requests == pytest.approx(0.3 * tier.offered.requests)
    assert (kept.pools, free.pools) == (frozenset({"home"}), None)
    assert TierLoad(GOLD, work(1)).by_residency() == [TierLoad(GOLD, work(1))]


def test_a_moment_of_more_work_moves_nothing() -> None:
    """The share rises to the least that was needed for long enough, and not where a calm moment came between."""
    memory = SpillMemory()
    for at_s, gold in ((0.0, 14.0), (20.0, 20.0), (CONFIRM_S - 1, 14.0)):
        decision, memory = spill_decision(fleet(gold, gold), POLICY, memory, MONDAY_S + at_s)
        assert decision.share == 0.0
    decision, _ = spill_decision(fleet(20.0, 20.0), POLICY, memory, MONDAY_S + CONFIRM_S)
    lower, _ = decide_spill(fleet(14.0, 14.0), SpillMemory())
    assert decision.share == lower.share > 0
    _, memory = spill_decision(fleet(2.0, 2.0), POLICY, memory, MONDAY_S + CONFIRM_S)
    decision, _ = spill_decision(fleet(20.0, 20.0), POLICY, memory, MONDAY_S + CONFIRM_S + 5.0)
    assert decision.share == 0.0

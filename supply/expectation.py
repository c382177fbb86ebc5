"""What each tier is expected to offer once an engine that is requested now serves, and what the past has taught."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt

from routing.facts import Role
from supply.forecast import WorkForecast, figure_of, forecast, is_shift, observe
from supply.load import ModelLoad, PoolLoad, TierLoad
from supply.policy import SupplyPolicy
from supply.requirement import TierNeed, missed_by_tier, spread_of_counts
from supply.state import SupplyState, TierMemory

REACTION_S = 30.0
"""From offered work to a request of an engine: half a window, and the scaler's poll."""

CATCH_UP_S = 60.0
"""Time in which queued work shall be caught up, at least; a start-up time where that is longer."""

FULL_FINISHED = 50.0
"""Finished requests from which on a share of met objectives counts in full; fewer count less."""
STRAIN_GAIN = 0.1
"""Per minute and per unit of difference between actual and expected misses."""
MIN_STRAIN, MAX_STRAIN = 0.85, 1.3
STRAIN_DECAY_S = 6 * 3_600.0
MAX_LEARNED_MISS = 0.3
"""Above it the fleet is short, and misses do not correct the estimate."""
MAX_DIFFERENCE = 0.2


DOUBT_DEVIATIONS = 1.0
"""Standard deviations of the measured work by which it is taken to be less where only what is sure counts."""


@dataclass(frozen=True, slots=True)
class ExpectedTier:
    """One tier as it is expected at the horizon."""

    tier: TierLoad
    need: TierNeed
    forecast: WorkForecast
    backlog: float
    """Share of the expected work that is queued work."""


def tier_key(load: ModelLoad, tier: TierLoad) -> str:
    """Return the key of a tier's memory."""
    return f"{load.model}|{tier.objective.name}"


def pool_key(load: ModelLoad, pool: PoolLoad) -> str:
    """Return the key of a pool's memory."""
    return f"{load.model}|{pool.pool}|{pool.role}"


def horizon_of(load: ModelLoad, policy: SupplyPolicy) -> float:
    """Return the seconds until an engine that is requested now serves: of the pools that are filled first and have
    room, the slowest. An engine that takes longer than its pool's figure counts with its own time.
    """

    def has_room(pool: PoolLoad) -> bool:
        highest = policy.rails(pool.pool).max_engines
        return highest is None or pool.engines < highest

    pools = [pool for pool in load.pools if has_room(pool)] or list(load.pools)
    rank = min((pool.rank for pool in pools), default=0)
    starts = (max(pool.start_s, pool.oldest_start_s if pool.starting else 0.0) for pool in pools if pool.rank == rank)
    return REACTION_S + max(starts, default=0.0)


def remember_tiers(
    load: ModelLoad, state: SupplyState, now_s: float, elapsed_s: float, horizon_s: float, *, is_usable: bool
) -> dict[str, TierMemory]:
    """Return the tiers' memories with the figures of now, by key; stale and partial figures leave them as they were."""
    found = {tier_key(load, tier): state.tiers.get(tier_key(load, tier), TierMemory()) for tier in load.tiers}
    noises = [spread_of_counts(tier.offered.requests * load.window_s, tier.prefill_scv) for tier in load.tiers]
    values = [figure_of(tier.offered) for tier in load.tiers]
    level = sum(figure_of(memory.history.level) for memory in found.values())
    is_rise = level > 0 and is_shift(sum(values), level, joint_noise(values, noises))
    for tier, noise in zip(load.tiers, noises, strict=True):
        key = tier_key(load, tier)
        memory = found[key]
        if is_usable or memory.history.last_s is None:
            history = observe(
                memory.history, tier.offered, now_s, horizon_s, noise, window_s=load.window_s, is_rise=is_rise
            )
            found[key] = TierMemory(history, memory.strain)
    return _strained(load, found, elapsed_s) if is_usable else found


def expect(tier: TierLoad, memory: TierMemory, policy: SupplyPolicy, now_s: float, horizon_s: float) -> ExpectedTier:
    """Return what a tier needs at the horizon: its forecast, its queue, and what was learned of the estimate."""
    expected = forecast(memory.history, now_s, horizon_s, use_profiles=policy.use_forecast)
    queued = tier.queued.scaled(1 / max(horizon_s, CATCH_UP_S))
    total = figure_of(expected.work) + figure_of(queued)
    need = TierNeed(
        replace(tier.objective, probability=min(tier.objective.probability, 0.9999)),
        (expected.work + queued).scaled(memory.strain),
        expected.spread,
        tier.context_tokens,
        tier.arrival_scv,
        tier.prefill_scv,
    )
    return ExpectedTier(tier, need, expected, figure_of(queued) / total if total else 0.0)


def joint_noise(values: Sequence[float], noises: Sequence[float]) -> float:
    """Return the relative standard deviation of a sum, by those of its independent parts; 0 where it is 0."""
    total = sum(values)
    return (
        sqrt(sum((value * noise) ** 2 for value, noise in zip(values, noises, strict=True))) / total if total else 0.0
    )


def surely_expected(expected: Sequence[ExpectedTier]) -> list[ExpectedTier]:
    """Return the tiers with the work that is there beyond the noise of its measurement: few requests say little.

    What waits is there for sure.
    """
    doubt = joint_noise([figure_of(one.forecast.work) for one in expected], [one.forecast.noise for one in expected])
    less = min(DOUBT_DEVIATIONS * doubt, 1.0)
    return [
        replace(one, need=replace(one.need, work=one.need.work.scaled(1 - less * (1 - one.backlog))))
        for one in expected
    ]


def _strained(load: ModelLoad, memories: dict[str, TierMemory], elapsed_s: float) -> dict[str, TierMemory]:
    """Return the memories with the factor that is learned from met objectives.

    The share of misses that the estimate gives for the present load on the present engines is compared with the actual
    one. Requests that no number of engines could serve in time must not be part of `TierLoad.attained`.
    """
    if not 0 < elapsed_s <= 600:
        return memories
    missed = _missed_at_present(load, memories)
    found = dict(memories)
    for tier, expected in zip(load.tiers, missed, strict=True):
        key = tier_key(load, tier)
        strain = 1 + (found[key].strain - 1) * exp(-elapsed_s / STRAIN_DECAY_S)
        if tier.attained is not None and expected < MAX_LEARNED_MISS:
            difference = min(max(1 - tier.attained - expected, -MAX_DIFFERENCE), MAX_DIFFERENCE)
            evidence = min(tier.finished / FULL_FINISHED, 1.0)
            strain *= exp(STRAIN_GAIN * evidence * difference * elapsed_s / 60)
        found[key] = replace(found[key], strain=min(max(strain, MIN_STRAIN), MAX_STRAIN))
    return found


def _missed_at_present(load: ModelLoad, memories: dict[str, TierMemory]) -> list[float]:
    """Return the misses that the estimate gives now: of a split fleet, the larger of both sides; 1 without engines."""
    needs = [
        TierNeed(
            tier.objective,
            tier.offered.scaled(memories[tier_key(load, tier)].strain),
            0.0,
            tier.context_tokens,
            tier.arrival_scv,
            tier.prefill_scv,
        )
        for tier in load.tiers
    ]
    worst = [0.0] * len(needs)
    for role, pools in _ready_by_role(load.pools):
        reference = pools[0].speed
        engines = sum(pool.ready * pool.speed.prefill_tokens_per_s / reference.prefill_tokens_per_s for pool in pools)
        missed = missed_by_tier(needs, reference, role, engines) if engines else [1.0] * len(needs)
        worst = [max(one, other) for one, other in zip(worst, missed, strict=True)]
    return worst


def _ready_by_role(pools: Iterable[PoolLoad]) -> list[tuple[Role, list[PoolLoad]]]:
    by_role: dict[Role, list[PoolLoad]] = {}
    for pool in pools:
        by_role.setdefault(pool.role, []).append(pool)
    return list(by_role.items())

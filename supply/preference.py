"""The order of pools, and whether work leaves the first of them: on premises first, residency always, back soon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from routing.facts import Role
from supply.load import ModelLoad, PoolLoad, TierLoad
from supply.policy import SupplyPolicy
from supply.requirement import TierNeed, missed_by_tier

TAKE_BACK_S = 120.0
"""For this long the home pools must be able to carry all work again before it is taken back."""

TAKE_BACK_MARGIN = 1.1
"""Factor on the work when that is judged."""

CONFIRM_S = 45.0
"""For this long more must have to leave before more does: single requests leave at once where home would be late."""

SHARE_STEP = 1 / 32


class SpillReason(StrEnum):
    """Why work leaves the home pools, or stays; stable codes."""

    HOME = "home"
    """The pools of the lowest rank meet all objectives."""
    OVERLOAD = "overload"
    """The pools of the lowest rank cannot meet all objectives without the spilled share."""
    RECOVERING = "recovering"
    """The pools of the lowest rank could meet all objectives again, but not for long enough yet."""
    RESIDENCY = "residency"
    """Objectives are missed, and the remaining requests may not leave their region."""
    NO_OTHER_POOL = "no_other_pool"
    """No pool of higher rank serves the model."""


@dataclass(frozen=True, slots=True)
class SpillMemory:
    """What is remembered between decisions about one model."""

    share: float = 0.0
    calm_since_s: float | None = None
    rising: float = 0.0
    """Smallest share that was needed since `rising_since_s`, larger than `share`."""
    rising_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class SpillDecision:
    """How much of the work that may leave goes to pools beyond the home pools."""

    share: float
    """Of the work of tiers that may leave, 0 to 1."""
    home: tuple[str, ...]
    """Pools of the lowest rank."""
    beyond: tuple[str, ...]
    """Ready pools of higher ranks, in the order in which they are used."""
    leaving: tuple[str, ...]
    """Tiers of which work leaves."""
    reason: SpillReason
    missed: tuple[tuple[str, float], ...] = ()
    """Share of misses at home by tier, if nothing left."""


def order_pools(pools: Iterable[PoolLoad], *, region: str = "") -> tuple[PoolLoad, ...]:
    """Return the pools in the order in which they are used: rank, region (`region` first), price per work, distance.

    The price of a pool's work is that of an engine over its prefill speed.
    """
    return tuple(
        sorted(
            pools,
            key=lambda pool: (
                pool.rank,
                bool(region) and pool.region != region,
                pool.price_per_hour / pool.speed.prefill_tokens_per_s,
                pool.distance_s,
                pool.pool,
            ),
        )
    )


def spill_decision(
    load: ModelLoad, policy: SupplyPolicy, memory: SpillMemory, now_s: float, *, role: Role = Role.EITHER
) -> tuple[SpillDecision, SpillMemory]:
    """Return the share of the work that may leave and has to, so that the ready home engines keep all objectives.

    Only as much leaves as has to, and has had to for `CONFIRM_S`. It is taken back step by step: the share falls when
    the home pools have been able to carry more for `TAKE_BACK_S`. Stale or partial figures leave the share as it is.
    Of a tier with resident work only the rest may leave.
    """
    load = replace(load, tiers=tuple(part for tier in load.tiers for part in tier.by_residency()))
    pools = order_pools(pool for pool in load.pools if pool.role is role)
    home = tuple(pool for pool in pools if pool.rank == pools[0].rank)
    names = tuple(pool.pool for pool in home)
    beyond = tuple(pool.pool for pool in pools if pool.rank > pools[0].rank and pool.ready)
    movable = [_may_leave(tier, beyond) for tier in load.tiers]
    leaving = tuple(dict.fromkeys(tier.objective.name for tier, may in zip(load.tiers, movable, strict=True) if may))
    if load.age_s > policy.max_age_s or load.completeness < policy.min_completeness:
        reason = SpillReason.RECOVERING if memory.share else SpillReason.HOME
        return SpillDecision(memory.share, names, beyond, leaving if memory.share else (), reason), memory
    missed = _missed(load, home, role, movable, 0.0)
    shown = _by_name(load, missed)
    needed = _min_share(load, home, role, movable)
    if not beyond or not any(movable):
        reason = SpillReason.HOME if needed == 0 else SpillReason.RESIDENCY if beyond else SpillReason.NO_OTHER_POOL
        return SpillDecision(0.0, names, beyond, (), reason, shown), SpillMemory()
    share, memory = _held(load, home, role, movable, needed, memory, now_s)
    kept = _keeps(load, _missed(load, home, role, movable, share))
    reason = SpillReason.RESIDENCY if not kept else SpillReason.OVERLOAD if needed else SpillReason.RECOVERING
    reason = reason if share or not kept else SpillReason.HOME
    return SpillDecision(share, names, beyond, leaving if share else (), reason, shown), memory


def _held(
    load: ModelLoad,
    home: Sequence[PoolLoad],
    role: Role,
    movable: Sequence[bool],
    needed: float,
    memory: SpillMemory,
    now_s: float,
) -> tuple[float, SpillMemory]:
    """Return the share with its hysteresis: up when it is sure that it has to be, down after a calm time."""
    if needed > memory.share:
        since_s, rising = memory.rising_since_s, min(memory.rising, needed)
        if since_s is None or since_s > now_s:
            return memory.share, SpillMemory(memory.share, None, needed, now_s)
        if now_s - since_s < CONFIRM_S:
            return memory.share, SpillMemory(memory.share, None, rising, since_s)
        return rising, SpillMemory(rising)
    memory = replace(memory, rising=0.0, rising_since_s=None)
    if needed == memory.share:
        return needed, SpillMemory(needed)
    with_margin = _min_share(load, home, role, movable, TAKE_BACK_MARGIN)
    if with_margin >= memory.share:
        return memory.share, replace(memory, calm_since_s=None)
    since_s = memory.calm_since_s
    if since_s is None or since_s > now_s:
        return memory.share, replace(memory, calm_since_s=now_s)
    if now_s - since_s < TAKE_BACK_S:
        return memory.share, memory
    return with_margin, SpillMemory(with_margin)


def _min_share(
    load: ModelLoad, home: Sequence[PoolLoad], role: Role, movable: Sequence[bool], factor: float = 1.0
) -> float:
    """Return the least share, in steps, with which home keeps its objectives; 1 where none does."""
    for step in range(int(1 / SHARE_STEP) + 1):
        if _keeps(load, _missed(load, home, role, movable, step * SHARE_STEP, factor)):
            return step * SHARE_STEP
    return 1.0


def _by_name(load: ModelLoad, missed: Sequence[float]) -> tuple[tuple[str, float], ...]:
    """Return the misses by tier: of a tier in parts the largest."""
    found: dict[str, float] = {}
    for tier, share in zip(load.tiers, missed, strict=True):
        found[tier.objective.name] = max(share, found.get(tier.objective.name, 0.0))
    return tuple(found.items())


def _may_leave(tier: TierLoad, beyond: Sequence[str]) -> bool:
    """Return whether residency and isolation allow a pool beyond the home pools."""
    return bool(beyond) and (tier.pools is None or any(pool in tier.pools for pool in beyond))


def _keeps(load: ModelLoad, missed: Sequence[float]) -> bool:
    return all(
        share <= 1 - tier.objective.probability or tier.objective.is_best_effort
        for tier, share in zip(load.tiers, missed, strict=True)
    )


def _missed(
    load: ModelLoad,
    home: Sequence[PoolLoad],
    role: Role,
    movable: Sequence[bool],
    share: float,
    factor: float = 1.0,
) -> list[float]:
    """Return the misses at home by tier with a share of the movable work gone."""
    reference = home[0].speed
    engines = sum(pool.ready * pool.speed.prefill_tokens_per_s / reference.prefill_tokens_per_s for pool in home)
    needs = [
        TierNeed(
            tier.objective,
            tier.offered.scaled(factor * (1 - share if may else 1.0)),
            0.0,
            tier.context_tokens,
            tier.arrival_scv,
            tier.prefill_scv,
        )
        for tier, may in zip(load.tiers, movable, strict=True)
    ]
    if not engines:
        return [1.0 if need.counts else 0.0 for need in needs]
    return missed_by_tier(needs, reference, role, engines)

"""Desired engines of each pool: the cheapest mix that keeps each tier's objectives with its probability.

`desired_engines` reads top down: what is expected, what it needs, which mix carries it, and what the bounds allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from routing.facts import Role
from supply.bounds import BoundFigure, account, bound_figure, engine_hours_left, lacks_grant
from supply.expectation import (
    ExpectedTier,
    expect,
    horizon_of,
    pool_key,
    remember_tiers,
    surely_expected,
    tier_key,
)
from supply.load import ModelLoad, PoolLoad, TierLoad
from supply.mix import PoolOption, cheapest_mix
from supply.policy import ControlMode, SupplyPolicy
from supply.requirement import TierNeed, engines_needed, missed_by_tier, needs_by_tier
from supply.state import EMPTY_STATE, PoolMemory, SupplyState, decode_state, encode_state, forget_models

__all__ = [
    "EMPTY_STATE",
    "DesiredFleet",
    "DesiredPool",
    "SupplyReason",
    "SupplyState",
    "SupplyTerm",
    "decode_state",
    "desired_engines",
    "encode_state",
    "explain",
]

UNBOUNDED_ENGINES = 10_000
"""Maximum of a pool without guard rails, in mode `advise`."""

IDLE_ENGINES = 0.02
"""A smaller requirement of a quiet pool is the rest of a decaying mean."""


class SupplyReason(StrEnum):
    """What determined the figure of a pool; stable codes."""

    LOAD = "load"
    """Offered work and the tiers' objectives."""
    FORECAST = "forecast"
    """More than the present load needs, because of the forecast."""
    BACKLOG = "backlog"
    """Queued work has to be caught up."""
    FROM_ZERO = "from_zero"
    """A request waits and the model has no engine."""
    IDLE = "idle"
    """No request for `idle_to_zero_s`: the figure is zero."""
    MIN_ENGINES = "min_engines"
    """The guard rail `min_engines`."""
    MAX_ENGINES = "max_engines"
    """The guard rail `max_engines`."""
    STEP = "max_step_per_minute"
    """The guard rail `max_step_per_minute`."""
    BUDGET = "engine_hours_per_day"
    """The guard rail `engine_hours_per_day`: the engine-hours of the day are used up."""
    MIN_STAY = "min_stay"
    """Engines have not stayed long enough, or the lower figure has not held long enough."""
    STALE = "stale_figures"
    """Figures are too old: the count is held."""
    PARTIAL = "partial_figures"
    """Figures of some gateways are missing: the count is held."""
    NOT_GRANTED = "not_granted"
    """The cluster grants no engines: the figure is not raised further."""
    OFF = "off"
    """`supply.scaling` is off."""


@dataclass(frozen=True, slots=True)
class SupplyTerm:
    """One line of an explanation: a name, a figure and its unit."""

    name: str
    value: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.4g} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class DesiredPool:
    """The figure of one model, pool and role."""

    model: str
    pool: str
    role: Role
    engines: int
    """What the cluster should have, after hysteresis and guard rails."""
    unbounded: int
    """What the load needs, before hysteresis and guard rails."""
    present: int
    """Ready and starting engines when this was computed."""
    reason: SupplyReason
    tiers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Engines by tier; their sum is `engines`. Spare and held engines are the tier `""`."""
    terms: tuple[SupplyTerm, ...] = ()
    """How the figure was made, in the order of the computation."""
    price_per_hour: float = 0.0
    """Of `engines` together."""
    is_active: bool = True
    """Whether the pool is needed at all: KEDA's IsActive."""


@dataclass(frozen=True, slots=True)
class DesiredFleet:
    """The answer for one model."""

    model: str
    pools: tuple[DesiredPool, ...] = ()
    is_known: bool = True
    """False while figures are stale or partial: a scaler is answered UNAVAILABLE then."""
    short: tuple[str, ...] = ()
    """Tiers whose objective the figure cannot keep (maximum, budget, or a cluster that grants nothing)."""
    price_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class _Group:
    """Pools that carry the same kind of work."""

    role: Role
    """The work: what `requirement` computes."""
    pools: tuple[PoolLoad, ...]


def desired_engines(
    load: ModelLoad, policy: SupplyPolicy, state: SupplyState, now_s: float
) -> tuple[DesiredFleet, SupplyState]:
    """Return desired engines by pool and role, and the state for the next call.

    `now_s` is seconds since the epoch (UTC): the forecast uses the time of the week. The same inputs give the same
    answer on every gateway.
    """
    if policy.scaling is ControlMode.OFF:
        return _switched_off(load), state
    hold = _hold_reason(load, policy)
    last_s = state.last_s.get(load.model)
    elapsed_s = now_s - last_s if last_s is not None else 0.0
    horizon_s = horizon_of(load, policy)
    tiers = remember_tiers(load, state, now_s, elapsed_s, horizon_s, is_usable=hold is None)
    expected = [expect(tier, tiers[tier_key(load, tier)], policy, now_s, horizon_s) for tier in load.tiers]
    memories = {
        pool_key(load, pool): account(pool, state.pools.get(pool_key(load, pool), PoolMemory()), now_s, elapsed_s)
        for pool in load.pools
    }
    decision = _Decision(load, policy, now_s, expected, memories, hold, is_gap=_is_gap(policy, last_s, elapsed_s))
    pools = decision.pools()
    fleet = DesiredFleet(
        load.model,
        pools,
        is_known=hold is None,
        short=decision.short_tiers(pools),
        price_per_hour=sum(pool.price_per_hour for pool in pools),
    )
    remembered = SupplyState(
        MappingProxyType({**state.pools, **decision.memories}),
        MappingProxyType({**state.tiers, **tiers}),
        MappingProxyType({**state.last_s, load.model: now_s}),
    )
    return fleet, forget_models(remembered, now_s)


def explain(fleet: DesiredFleet) -> list[str]:
    """Return the lines that explain an answer: for `hearth scale --explain`."""
    lines = []
    for pool in fleet.pools:
        lines.append(
            f"{pool.model} {pool.pool} {pool.role}: {pool.engines} engines (present {pool.present}, "
            f"the load needs {pool.unbounded}), {pool.reason}, {pool.price_per_hour:.2f} per hour"
        )
        lines += [f"  {tier or 'spare'}: {engines:.2f} engines" for tier, engines in pool.tiers.items()]
        lines += [f"  {term}" for term in pool.terms]
    if fleet.short:
        lines.append(f"{fleet.model}: objectives that these engines cannot keep: {', '.join(fleet.short)}")
    if not fleet.is_known:
        lines.append(f"{fleet.model}: figures are stale or partial, counts are held")
    return lines


class _Decision:
    """One decision about one model: the steps share its inputs."""

    def __init__(
        self,
        load: ModelLoad,
        policy: SupplyPolicy,
        now_s: float,
        expected: Sequence[ExpectedTier],
        memories: dict[str, PoolMemory],
        hold: SupplyReason | None,
        *,
        is_gap: bool,
    ) -> None:
        self.load = load
        self.policy = policy
        self.now_s = now_s
        self.expected = expected
        self.memories = memories
        self.hold = hold
        self.is_gap = is_gap
        self.groups, self.resting = _groups(load, policy)
        self.unserved: set[str] = set()
        self._alone: dict[tuple[str, frozenset[str]], float] = {}

    def pools(self) -> tuple[DesiredPool, ...]:
        carried = self._carried_by_resting()
        found: dict[str, DesiredPool] = {}
        for group in self.groups:
            counts = self._counts(group, carried)
            if any(map(self._lacks_grant, group.pools)):
                wanted = self._counts(group, carried, ignores_grants=True)
                counts = {pool.pool: self._kept(pool, counts, wanted) for pool in group.pools}
            counts = self._sure_beyond(group, counts, carried)
            for pool in group.pools:
                found[pool_key(self.load, pool)] = self._desired(pool, group, counts[pool.pool], carried)
        for pool in self.resting:
            last = self.memories[pool_key(self.load, pool)].figure
            count = last if last is not None else pool.engines
            found[pool_key(self.load, pool)] = self._desired(pool, _Group(Role.EITHER, (pool,)), count, 0.0)
        return tuple(found[pool_key(self.load, pool)] for pool in self.load.pools)

    def short_tiers(self, pools: Sequence[DesiredPool]) -> tuple[str, ...]:
        """Return the tiers that these engines do not carry, once all of them that can come serve."""
        figures = {(pool.pool, pool.role): pool.engines for pool in pools}
        short = set(self.unserved)
        carried = self._carried_by_resting()
        for group in self.groups:
            part = 0.0
            everywhere = frozenset(pool.pool for pool in group.pools)
            for pool in group.pools:
                needed = self._needed_alone(pool, group, everywhere, carried)
                count = figures[pool.pool, pool.role]
                count = min(count, pool.engines) if self._lacks_grant(pool) else count
                part += count / needed if needed > 0 else 1.0
            if part < 1 - 1e-6 and group.pools:
                first = group.pools[0]
                engines = max(part * self._needed_alone(first, group, everywhere, carried), 1e-3)
                needs = self._needs(group, everywhere, carried)
                for need, missed in zip(needs, missed_by_tier(needs, first.speed, group.role, engines), strict=True):
                    if need.counts and missed > 1 - need.objective.probability:
                        short.add(need.objective.name)
        return tuple(sorted(short))

    # --- what is needed ---

    def _kept(self, pool: PoolLoad, counts: Mapping[str, int], wanted: Mapping[str, int]) -> int:
        """Return the figure of a pool: one whose cluster grants nothing keeps it as long as it would be needed."""
        if not self._lacks_grant(pool):
            return counts[pool.pool]
        last = self.memories[pool_key(self.load, pool)].figure or pool.engines
        return max(counts[pool.pool], min(last, wanted[pool.pool]))

    def _sure_beyond(self, group: _Group, counts: dict[str, int], carried: float) -> dict[str, int]:
        """Return the counts with those of higher ranks raised only as far as the work is sure to need them.

        Between that and what is expected they stay as they are: noise of the measurement moves no engine of a cloud.
        """
        first = min(pool.rank for pool in group.pools)
        beyond = [pool for pool in group.pools if pool.rank > first]
        if not any(counts[pool.pool] for pool in beyond):
            return counts
        surely = _Decision(
            self.load,
            self.policy,
            self.now_s,
            surely_expected(self.expected),
            self.memories,
            self.hold,
            is_gap=self.is_gap,
        )
        sure = surely._counts(group, carried)
        for pool in beyond:
            last = self.memories[pool_key(self.load, pool)].figure
            kept = last if last is not None else pool.engines
            counts[pool.pool] = min(counts[pool.pool], max(sure[pool.pool], kept))
        return counts

    def _counts(self, group: _Group, carried: float, *, ignores_grants: bool = False) -> dict[str, int]:
        """Return engines by pool: the sets of pools that residency allows, small ones first, then all."""
        everywhere = frozenset(pool.pool for pool in group.pools)
        sets = {self._allowed(one.tier, everywhere) for one in self.expected} | {everywhere}
        counts = {pool.pool: 0 for pool in group.pools}
        for allowed in sorted(sets, key=lambda one: (len(one), sorted(one))):
            if not allowed:
                self.unserved |= {
                    one.tier.objective.name
                    for one in self.expected
                    if one.need.counts and not self._allowed(one.tier, everywhere)
                }
                continue
            options = [
                self._option(pool, group, allowed, carried, ignores_grants=ignores_grants)
                for pool in group.pools
                if pool.pool in allowed
            ]
            counts |= cheapest_mix(options, counts)
        if self._needs_one() and not any(counts.values()) and not carried:
            counts[self._first_pool(group, everywhere).pool] = 1
        return counts

    def _first_pool(self, group: _Group, everywhere: frozenset[str]) -> PoolLoad:
        """Return the pool that serves a model without engines: one that grants and that a waiting tier allows."""
        waiting = [one.tier for one in self.expected if one.tier.offered.requests or one.tier.queued.requests]
        allowed = frozenset[str]().union(*(self._allowed(tier, everywhere) for tier in waiting)) or everywhere
        pools = [pool for pool in group.pools if pool.pool in allowed]
        granting = [pool for pool in pools if not self._lacks_grant(pool)] or pools
        return min(granting, key=lambda pool: (pool.rank, pool.price_per_hour, pool.distance_s, pool.pool))

    def _option(
        self, pool: PoolLoad, group: _Group, allowed: frozenset[str], carried: float, *, ignores_grants: bool
    ) -> PoolOption:
        rails = self.policy.rails(pool.pool)
        highest = rails.max_engines if rails.max_engines is not None else UNBOUNDED_ENGINES
        if not ignores_grants and self._lacks_grant(pool):
            is_stuck = pool.oldest_start_s > 0 and pool.starting > 0
            highest = min(highest, pool.ready if is_stuck else pool.engines)
        return PoolOption(
            pool.pool,
            self._needed_alone(pool, group, allowed, carried),
            min(rails.min_engines or 0, highest),
            highest,
            pool.rank,
            pool.price_per_hour,
            pool.distance_s,
        )

    def _needed_alone(self, pool: PoolLoad, group: _Group, allowed: frozenset[str], carried: float) -> float:
        key = f"{group.role}|{pool.pool}", allowed
        if key not in self._alone:
            needed = engines_needed(self._needs(group, allowed, carried), pool.speed, group.role)
            is_quiet = self._is_quiet() and needed < IDLE_ENGINES
            self._alone[key] = 0.0 if is_quiet else needed
        return self._alone[key]

    def _needs(self, group: _Group, allowed: frozenset[str], carried: float) -> list[TierNeed]:
        everywhere = frozenset(pool.pool for pool in group.pools)
        return [
            replace(one.need, work=one.need.work.scaled(1 - carried)) if carried else one.need
            for one in self.expected
            if self._allowed(one.tier, everywhere) <= allowed and self._allowed(one.tier, everywhere)
        ]

    @staticmethod
    def _allowed(tier: TierLoad, everywhere: frozenset[str]) -> frozenset[str]:
        return everywhere if tier.pools is None else tier.pools & everywhere

    def _carried_by_resting(self) -> float:
        """Return the share of the work that pools of either role carry beside a split fleet."""
        part = 0.0
        for pool in self.resting:
            everywhere = frozenset((pool.pool,))
            needed = engines_needed(
                [one.need for one in self.expected if self._allowed(one.tier, everywhere)], pool.speed, Role.EITHER
            )
            part += pool.ready / needed if needed > 0 else 0.0
        return min(part, 1.0)

    # --- what is answered ---

    def _desired(self, pool: PoolLoad, group: _Group, needed: int, carried: float) -> DesiredPool:
        key = pool_key(self.load, pool)
        memory = self._quiet_memory(self.memories[key])
        needed, reason = self._with_idle(pool, memory, needed)
        is_ungranted = self._lacks_grant(pool)
        bound = bound_figure(
            pool,
            needed,
            self.policy,
            memory,
            self.now_s,
            is_gap=self.is_gap,
            may_fall=self.hold is None,
            may_rise=self.hold is None and not is_ungranted,
        )
        self.memories[key] = bound.memory
        return DesiredPool(
            self.load.model,
            pool.pool,
            pool.role,
            bound.engines,
            needed,
            pool.engines,
            self._reason(bound, reason, is_ungranted=is_ungranted),
            tiers=self._by_tier(pool, group, bound.engines, carried),
            terms=tuple(self._terms(pool, group, bound, carried)),
            price_per_hour=bound.engines * pool.price_per_hour,
            is_active=bound.engines > 0,
        )

    def _reason(self, bound: BoundFigure, reason: SupplyReason, *, is_ungranted: bool) -> SupplyReason:
        if self.hold is not None and bound.bound in {"held", None}:
            return self.hold
        if is_ungranted:
            return SupplyReason.NOT_GRANTED
        return reason if bound.bound is None else SupplyReason(bound.bound)

    def _with_idle(self, pool: PoolLoad, memory: PoolMemory, needed: int) -> tuple[int, SupplyReason]:
        if memory.quiet_s is not None and not needed:
            if self.now_s - memory.quiet_s >= self.policy.idle_to_zero_s and not pool.busy:
                return 0, SupplyReason.IDLE
            present = memory.figure if memory.figure is not None else pool.engines
            return min(present, 1), SupplyReason.LOAD
        if pool.busy and not needed and pool.engines and not self._has_ready_before(pool):
            needed = 1
        if not any(one.engines for one in self.load.pools) and needed:
            return needed, SupplyReason.FROM_ZERO
        if sum(one.forecast.used for one in self.expected) > 1.02 * sum(one.forecast.reactive for one in self.expected):
            return needed, SupplyReason.FORECAST
        if any(one.backlog > 0.1 for one in self.expected):
            return needed, SupplyReason.BACKLOG
        return needed, SupplyReason.LOAD

    def _has_ready_before(self, pool: PoolLoad) -> bool:
        """Return whether a pool of a lower rank serves: then a drained engine's streams are the last that it needs."""
        return any(one.ready and one.rank < pool.rank and one.role is pool.role for one in self.load.pools)

    def _by_tier(self, pool: PoolLoad, group: _Group, engines: int, carried: float) -> Mapping[str, float]:
        everywhere = frozenset(one.pool for one in group.pools)
        needs = [
            need
            for need, one in zip(self._needs(group, everywhere, carried), self._allowed_tiers(everywhere), strict=True)
            if pool.pool in self._allowed(one.tier, everywhere)
        ]
        parts = needs_by_tier(needs, pool.speed, group.role)
        total = sum(parts.values())
        scale = min(engines / total, 1.0) if total > 0 else 0.0
        shares = {name: part * scale for name, part in parts.items()}
        shares[""] = engines - sum(shares.values())
        return MappingProxyType(shares)

    def _allowed_tiers(self, everywhere: frozenset[str]) -> list[ExpectedTier]:
        return [one for one in self.expected if self._allowed(one.tier, everywhere)]

    def _terms(self, pool: PoolLoad, group: _Group, bound: BoundFigure, carried: float) -> Iterable[SupplyTerm]:
        everywhere = frozenset(one.pool for one in group.pools)
        needs = self._needs(group, everywhere, carried)
        yield SupplyTerm("start_s", pool.start_s, "s")
        yield SupplyTerm("horizon_s", horizon_of(self.load, self.policy), "s")
        for one in self._allowed_tiers(everywhere):
            name = one.tier.objective.name
            yield SupplyTerm(f"{name}.prefill", one.need.work.prefill_tokens, "tokens/s")
            yield SupplyTerm(f"{name}.output", one.need.work.output_tokens, "tokens/s")
            yield SupplyTerm(f"{name}.forecast_factor", one.forecast.used / max(one.forecast.present, 1e-9))
            yield SupplyTerm(f"{name}.forecast_weight", one.forecast.weight)
            yield SupplyTerm(f"{name}.spread", one.forecast.spread)
            yield SupplyTerm(f"{name}.backlog_share", one.backlog)
        alone = self._needed_alone(pool, group, everywhere, carried)
        yield SupplyTerm("needed_alone", alone, "engines")
        if bound.engines and alone:
            missed = missed_by_tier(needs, pool.speed, group.role, float(bound.engines))
            for need, share in zip(needs, missed, strict=True):
                yield SupplyTerm(f"{need.objective.name}.missed_alone", share)
        if (left := engine_hours_left(pool, self.policy, bound.memory)) < float("inf"):
            yield SupplyTerm("budget_left", left, "engine-hours")

    # --- what is remembered ---

    def _quiet_memory(self, memory: PoolMemory) -> PoolMemory:
        if not self._is_quiet():
            return replace(memory, quiet_s=None)
        since_s = self.now_s if memory.quiet_s is None or self.is_gap else min(memory.quiet_s, self.now_s)
        return replace(memory, quiet_s=since_s)

    def _is_quiet(self) -> bool:
        return not self.load.held and not any(
            one.tier.offered.requests or one.tier.queued.requests or one.tier.running for one in self.expected
        )

    def _needs_one(self) -> bool:
        return self.load.held > 0 or any(one.tier.offered.requests or one.tier.queued.requests for one in self.expected)

    def _lacks_grant(self, pool: PoolLoad) -> bool:
        return lacks_grant(pool, self.memories[pool_key(self.load, pool)], self.policy, self.now_s)


def _switched_off(load: ModelLoad) -> DesiredFleet:
    pools = (
        DesiredPool(load.model, pool.pool, pool.role, pool.engines, pool.engines, pool.engines, SupplyReason.OFF)
        for pool in load.pools
    )
    return DesiredFleet(load.model, tuple(pools), is_known=False)


def _hold_reason(load: ModelLoad, policy: SupplyPolicy) -> SupplyReason | None:
    if load.age_s > policy.max_age_s:
        return SupplyReason.STALE
    return SupplyReason.PARTIAL if load.completeness < policy.min_completeness else None


def _is_gap(policy: SupplyPolicy, last_s: float | None, elapsed_s: float) -> bool:
    """Return whether the last decision is too long ago, or the clock went back: what was remembered says nothing."""
    return last_s is not None and not -1.0 <= elapsed_s <= max(policy.max_age_s, policy.down_after_s)


def _groups(load: ModelLoad, policy: SupplyPolicy) -> tuple[list[_Group], tuple[PoolLoad, ...]]:
    """Return the pools by the work that they carry, and the pools of either role beside a split fleet.

    Where only one of the two roles has pools of its own, pools of either role carry the other kind of work. Beside
    pools of both roles they keep their engines, and the split pools carry the rest.
    """
    by_role = {
        role: tuple(
            pool
            for pool in load.pools
            if pool.role is role and (policy.rails(pool.pool).max_engines != 0 or pool.engines)
        )
        for role in Role
    }
    prefill, decode, either = by_role[Role.PREFILL], by_role[Role.DECODE], by_role[Role.EITHER]
    idle = tuple(pool for pool in load.pools if pool not in by_role[pool.role])
    if prefill and decode:
        return [_Group(Role.PREFILL, prefill), _Group(Role.DECODE, decode)], (*either, *idle)
    if prefill or decode:
        own, other = (Role.PREFILL, Role.DECODE) if prefill else (Role.DECODE, Role.PREFILL)
        groups = [_Group(own, prefill or decode), _Group(other, either)]
        return [group for group in groups if group.pools], idle
    return ([_Group(Role.EITHER, either)] if either else []), idle

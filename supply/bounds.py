"""From what the load needs to the figure for a cluster: hysteresis, minimum stay, guard rails, missing grants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

from routing.facts import Role
from supply.load import PoolLoad
from supply.policy import GuardRails, SupplyPolicy
from supply.state import PoolMemory

STEP_WINDOW_S = 60.0
HOUR_S = 3_600.0
DAY_HOURS = 24
MAX_ACCOUNTED_S = 300.0
"""Of engine-hours between two decisions: a gap or a jump of the clock costs at most this much budget."""
MIN_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class BoundFigure:
    """The figure of a pool, the bound that determined it (None: none did), and what is remembered."""

    engines: int
    bound: str | None
    memory: PoolMemory


def lacks_grant(pool: PoolLoad, memory: PoolMemory, policy: SupplyPolicy, now_s: float) -> bool:
    """Return whether the cluster is taken to grant no more engines to this pool.

    True after `grant_patience` start-up times in which it had fewer engines than the figure and added none, or in which
    an engine has been starting.
    """
    patience_s = max(policy.grant_patience * pool.start_s, MIN_PATIENCE_S)
    waited_s = now_s - memory.ungranted_s if memory.ungranted_s is not None else 0.0
    return waited_s > patience_s or (pool.starting > 0 and pool.oldest_start_s > patience_s)


def account(pool: PoolLoad, memory: PoolMemory, now_s: float, elapsed_s: float) -> PoolMemory:
    """Return the memory with the engine-hours since the last decision, and with what the cluster has granted."""
    hour = int(now_s // HOUR_S)
    used = pool.engines * min(max(elapsed_s, 0.0), MAX_ACCOUNTED_S) / HOUR_S
    hours = {at: value for at, value in memory.hours if hour - DAY_HOURS < at <= hour}
    hours[hour] = hours.get(hour, 0.0) + used
    memory = replace(memory, hours=tuple(sorted(hours.items())))
    if memory.figure is None or pool.engines >= memory.figure:
        return replace(memory, ungranted_s=None, granted=pool.engines)
    if memory.ungranted_s is None or pool.engines > memory.granted or memory.ungranted_s > now_s:
        return replace(memory, ungranted_s=now_s, granted=pool.engines)
    return memory


def bound_figure(
    pool: PoolLoad,
    needed: int,
    policy: SupplyPolicy,
    memory: PoolMemory,
    now_s: float,
    *,
    is_gap: bool = False,
    may_fall: bool = True,
    may_rise: bool = True,
) -> BoundFigure:
    """Return the figure for a need of `needed` engines.

    `is_gap`: the last decision is too long ago (or the clock has jumped), so that the count is held for `down_after_s`
    again. `may_fall` and `may_rise` are False where figures are stale, partial, or the cluster grants nothing.
    """
    rails = policy.rails(pool.pool)
    last = memory.figure if memory.figure is not None else max(pool.engines, pool.requested or 0)
    bound: str | None = None
    high = memory.high if memory.figure is not None and not is_gap else ((now_s, last),)
    high = _highest(high, needed, now_s, policy.down_after_s)
    figure = needed
    if figure < last:
        held = _held(pool, policy, memory, now_s)
        slack = max(ceil(policy.down_margin * last), 1)
        figure = max(min(high[0][1], last), held)
        if figure > last - slack:
            figure = last
        bound = "min_stay" if figure > needed else None
        if not may_fall and figure < last:
            figure, bound = last, "held"
    elif figure > last and not may_rise:
        figure, bound = last, "held"
    figure, bound = _within_rails(figure, bound, rails, memory, last, now_s, may_fall=may_fall)
    return BoundFigure(figure, bound, _remembered(pool, policy, memory, figure, last, high, now_s))


def _within_rails(
    figure: int, bound: str | None, rails: GuardRails, memory: PoolMemory, last: int, now_s: float, *, may_fall: bool
) -> tuple[int, str | None]:
    lowest = rails.min_engines or 0
    if rails.engine_hours_per_day is not None:
        left = rails.engine_hours_per_day - sum(value for _, value in memory.hours)
        affordable = max(int(left), lowest)
        if figure > affordable and (may_fall or affordable >= last):
            figure, bound = affordable, "engine_hours_per_day"
    if rails.max_engines is not None and figure > rails.max_engines and (may_fall or rails.max_engines >= last):
        figure, bound = rails.max_engines, "max_engines"
    if figure < lowest:
        figure, bound = lowest, "min_engines"
    if rails.max_step_per_minute is not None:
        # With the last figure: after the clock went back it is not the newest entry.
        recent = [last, *(count for at, count in memory.recent if abs(now_s - at) < STEP_WINDOW_S)]
        low, high = max(recent) - rails.max_step_per_minute, min(recent) + rails.max_step_per_minute
        stepped = min(max(figure, low), max(high, low))
        if stepped != figure:
            figure, bound = stepped, "max_step_per_minute"
    return figure, bound


def _highest(
    entries: tuple[tuple[float, int], ...], needed: int, now_s: float, window_s: float
) -> tuple[tuple[float, int], ...]:
    """Return the entries of the window that may still be its maximum, with the new one: their figures fall."""
    kept = [(min(at, now_s), figure) for at, figure in entries if now_s - at < window_s and figure > needed]
    return (*kept, (now_s, needed))


def _held(pool: PoolLoad, policy: SupplyPolicy, memory: PoolMemory, now_s: float) -> int:
    """Return the engines that have not stayed long enough yet."""
    stay_s = policy.min_stay_prefill_s if pool.role is Role.PREFILL else policy.min_stay_s
    return sum(count for at, count in memory.raises if abs(now_s - at) < stay_s)


def _remembered(
    pool: PoolLoad,
    policy: SupplyPolicy,
    memory: PoolMemory,
    figure: int,
    last: int,
    high: tuple[tuple[float, int], ...],
    now_s: float,
) -> PoolMemory:
    stay_s = policy.min_stay_prefill_s if pool.role is Role.PREFILL else policy.min_stay_s
    raises = tuple((min(at, now_s), count) for at, count in memory.raises if abs(now_s - at) < stay_s)
    if figure > last:
        raises = _merged((*raises, (now_s, figure - last)))
    recent = tuple((at, count) for at, count in memory.recent if abs(now_s - at) < STEP_WINDOW_S) or ((now_s, last),)
    if figure != last:
        recent = (*recent, (now_s, figure))
    return replace(memory, figure=figure, high=high, raises=raises, recent=recent[-32:])


MAX_RAISES = 64


def _merged(raises: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
    if len(raises) <= MAX_RAISES:
        return raises
    (_, first), (at, second), *rest = raises
    return ((at, first + second), *rest)


def engine_hours_left(pool: PoolLoad, policy: SupplyPolicy, memory: PoolMemory) -> float:
    """Return the engine-hours of the budget that are left of the last 24 hours; infinite without a budget."""
    budget = policy.rails(pool.pool).engine_hours_per_day
    return inf if budget is None else budget - sum(value for _, value in memory.hours)

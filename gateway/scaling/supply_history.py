"""What decisions would have cost, and what was there: sums by hour of each pool for the last seven days, in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from gateway.scaling.figures import PoolFigure

HOUR_S = 3_600

MAX_HOURS = 7 * 24

MAX_POOLS_AN_HOUR = 512

MAX_STEP_S = 10.0
"""Between two decisions; a longer gap counts as this long."""


class PoolHour(Struct, gc=False):
    """One pool in one hour."""

    seconds: float = 0.0
    """That were observed."""
    present_s: float = 0.0
    """Engine-seconds that were there."""
    desired_s: float = 0.0
    """Engine-seconds that were desired."""
    highest: int = 0
    """Largest desired count."""


class ModelHour(Struct, gc=False):
    """Requests of one model in one hour."""

    finished: float = 0.0
    met: float = 0.0


class SupplyHistory:
    """The last seven days of one gateway."""

    def __init__(self) -> None:
        self._hours: OrderedDict[int, dict[tuple[str, str, str], PoolHour]] = OrderedDict()
        self._models: OrderedDict[int, dict[str, ModelHour]] = OrderedDict()
        self._last_s: float | None = None

    def add(self, pools: Iterable[PoolFigure], verdicts: dict[str, tuple[float, float]], at_s: float) -> None:
        """Add the time since the last decision. `verdicts`: requests with a verdict since then, and those that met."""
        passed_s = 0.0 if self._last_s is None else min(max(at_s - self._last_s, 0.0), MAX_STEP_S)
        self._last_s = at_s
        hour = int(at_s // HOUR_S)
        sums = self._hours.setdefault(hour, {})
        for pool in pools:
            key = (pool.model, pool.pool, pool.role)
            if key not in sums and len(sums) >= MAX_POOLS_AN_HOUR:
                continue
            held = sums.setdefault(key, PoolHour())
            held.seconds += passed_s
            held.present_s += pool.present * passed_s
            held.desired_s += pool.engines * passed_s
            held.highest = max(held.highest, pool.engines)
        for model, (finished, met) in verdicts.items():
            counts = self._models.setdefault(hour, {}).setdefault(model, ModelHour())
            counts.finished += finished
            counts.met += met
        for table in (self._hours, self._models):
            while len(table) > MAX_HOURS:
                table.popitem(last=False)

    def view(self, prices: dict[str, float]) -> list[dict[str, Any]]:
        """Return rows by hour and pool as JSON values, the oldest first. `prices`: of an engine-hour, by pool."""
        return [
            {
                "hour": hour * HOUR_S,
                "model": model,
                "pool": pool,
                "role": role,
                "observed_s": round(held.seconds, 1),
                "present_engine_hours": round(held.present_s / HOUR_S, 3),
                "desired_engine_hours": round(held.desired_s / HOUR_S, 3),
                "max_desired": held.highest,
                "present_cost": round(held.present_s / HOUR_S * prices.get(pool, 0.0), 4),
                "desired_cost": round(held.desired_s / HOUR_S * prices.get(pool, 0.0), 4),
                "finished": round(counts.finished) if (counts := self._models.get(hour, {}).get(model)) else 0,
                "met": round(counts.met) if counts else 0,
            }
            for hour, sums in self._hours.items()
            for (model, pool, role), held in sums.items()
        ]

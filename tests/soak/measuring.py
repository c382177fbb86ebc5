"""What is measured of gateways and Redis, and how much of it may be more at the end than when all had settled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from redis.exceptions import RedisError

from tests.chaos.cast import Cast
from tests.chaos.programs import pause
from tests.chaos.readings import Reading, read_metrics
from tests.soak.trend import Trend, trend_of

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bound:
    """So much growth is allowed over all that is judged of a run, however long it is; and why that much."""

    name: str
    most: float
    why: str


BOUNDS = (
    Bound(
        "memory MB", 12.0, "receipts, updates and prefixes fill up to their own bounds (docs/bounds.md); garbage wavers"
    ),
    Bound("file descriptors", 4.0, "connections to pods come and go"),
    Bound("tasks", 6.0, "requests that are open when it is looked"),
    Bound("metric series", 8.0, "a reason or a status that is seen for the first time"),
    Bound("redis keys", 1.0, "none is made for a request"),
    Bound("index blocks", inf, "shown beside the memory: they fill up to the engines' own caches (docs/bounds.md)"),
    Bound("history MB", 64.0, "shown beside the memory: its own bound (docs/bounds.md)"),
)


def measured(reading: Reading) -> dict[str, float]:
    """Of one gateway, all of its processes together."""
    return {
        "memory MB": reading.sum_of("process_resident_memory_bytes") / MB,
        "file descriptors": reading.sum_of("process_open_fds"),
        "tasks": reading.sum_of("hearth_event_loop_tasks"),
        "metric series": float(len(reading.samples)),
        "index blocks": reading.sum_of("hearth_prefix_index_blocks"),
        "history MB": reading.sum_of("hearth_replica_sync_history_bytes") / MB,
    }


@dataclass(slots=True)
class Series:
    """One thing over time."""

    at_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, at_s: float, value: float) -> None:
        self.at_s.append(at_s)
        self.values.append(value)


class Measuring:
    """Looks at everything every few seconds."""

    def __init__(self, cast: Cast, every_s: float) -> None:
        self._cast = cast
        self._every_s = every_s
        self.series: dict[tuple[str, str], Series] = {}
        """By who and what."""

    async def measure(self) -> None:
        """Until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            at_s = clock()
            for gateway in self._cast.gateways:
                if (reading := await read_metrics(self._cast.session, gateway.metrics)) is not None:
                    for what, value in measured(reading).items():
                        self._add(gateway.name, what, at_s, value)
            with suppress(RedisError, OSError):  # It is away now and then.
                self._add("redis", "redis keys", at_s, float(str(await self._cast.redis[0].log_event("DBSIZE"))))
            await pause(self._every_s)

    def _add(self, who: str, what: str, at_s: float, value: float) -> None:
        self.series.setdefault((who, what), Series()).add(at_s, value)


@dataclass(frozen=True, slots=True)
class Row:
    """What is told of one series."""

    who: str
    bound: Bound
    trend: Trend

    @property
    def is_kept(self) -> bool:
        return self.trend.growth <= self.bound.most


def judge(measuring: Measuring, bounds: Sequence[Bound] = BOUNDS) -> list[Row]:
    """Every series beside its bound."""
    by_name = {bound.name: bound for bound in bounds}
    return [
        Row(who, by_name[what], trend_of(series.at_s, series.values))
        for (who, what), series in sorted(measuring.series.items())
    ]

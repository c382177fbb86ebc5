"""The cases: what comes, how engines start, and what is special. All draws come from the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.scale.fleet import Cluster
from bench.scale.traffic import (
    DAY_S,
    LOGNORMAL,
    Rate,
    Sizes,
    bursts,
    day_curve,
    levels,
    mooncake,
    office_curve,
    with_days,
)

HOUR_S = 3_600.0
GRANTED = 10
"""Engines of the case whose cluster grants no more."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row group of the table."""

    name: str
    about: str
    seconds: float
    rate: Callable[[Random], Rate]
    cluster: Cluster
    sizes: Sizes = LOGNORMAL
    history_days: float = 14.0
    has_pattern: bool | None = None
    """Whether the forecast has to beat the reactive scaler, or to cost nothing; None: neither is judged."""
    loop: Callable[[float], int] | None = None
    clock: Callable[[float], float] = field(default=lambda now: now)
    is_bounded: bool = False
    """The cluster grants less than is needed: the figure has to stop rising."""


def _slow(start_s: float) -> Cluster:
    return Cluster(start_s, start_s)


def cases(traces: Path) -> Iterator[Case]:
    """Yield all cases; the one of the trace only where it is there."""
    for start_s in (60.0, 300.0):
        yield from _patterns(f"{start_s:g} s start", _slow(start_s), traces)
    yield Case(
        "office, start x 4",
        "engines take 300 s to start, the estimate is 75 s",
        14 * HOUR_S,
        lambda random: with_days(office_curve, random),
        Cluster(300.0, 75.0),
        history_days=21,
        has_pattern=True,
    )
    yield Case(
        "day, grants nothing",
        "the cluster grants no engine beyond 10",
        DAY_S,
        lambda random: with_days(day_curve, random),
        Cluster(300.0, 300.0, granted=lambda _: GRANTED),
        is_bounded=True,
    )
    yield Case(
        "first peak",
        "after two flat weeks, 2.2 x the load within half an hour, for three hours",
        10 * HOUR_S,
        lambda _: _first_peak,
        _slow(300.0),
        has_pattern=False,
    )
    yield Case(
        "retry loop",
        "a tenant beyond its limits sends 40 rejected requests a second for three hours",
        10 * HOUR_S,
        lambda random: with_days(lambda _: 0.45, random),
        _slow(300.0),
        loop=lambda now: 40 if 3 * HOUR_S <= now < 6 * HOUR_S else 0,
    )
    yield Case(
        "office, clock jumps",
        "the clock that the scaler reads is 3 h ahead from 06:00 to 14:00",
        DAY_S,
        lambda random: with_days(office_curve, random),
        _slow(300.0),
        history_days=21,
        clock=lambda now: now + (3 * HOUR_S if 6 * HOUR_S <= now < 14 * HOUR_S else 0.0),
    )


def _patterns(start: str, cluster: Cluster, traces: Path) -> Iterator[Case]:
    yield Case(
        f"day, {start}", "a smooth day", DAY_S, lambda random: with_days(day_curve, random), cluster, has_pattern=True
    )
    yield Case(
        f"office, {start}",
        "a Monday after three weeks: steep mornings, lunch, a nightly job",
        DAY_S,
        lambda random: with_days(office_curve, random),
        cluster,
        history_days=21,
        has_pattern=True,
    )
    yield Case(
        f"bursts, {start}",
        "2.5 x for 5 to 10 minutes, unannounced",
        10 * HOUR_S,
        lambda random: bursts(0.35, 2.5, _times(random, 10 * HOUR_S), random.uniform(300, 600)),
        cluster,
        has_pattern=False,
    )
    yield Case(
        f"level shift, {start}",
        "1.8 x from one minute to the next, to stay",
        10 * HOUR_S,
        _level_shift,
        cluster,
        has_pattern=False,
    )
    yield Case(
        f"no pattern, {start}",
        "levels that change at random",
        DAY_S,
        lambda random: levels(random, DAY_S, 14 * DAY_S),
        cluster,
        has_pattern=False,
    )
    if (sizes := mooncake(traces)) is not None:
        yield Case(
            f"Mooncake x day, {start}",
            "sizes of Mooncake's conversations on a smooth day (composed)",
            DAY_S,
            lambda random: with_days(day_curve, random),
            cluster,
            sizes,
            has_pattern=True,
        )


def _times(random: Random, seconds: float) -> list[float]:
    at, found = 0.0, []
    while (at := at + random.uniform(2_400, 7_200)) < seconds:
        found.append(at)
    return found


def _level_shift(random: Random) -> Rate:
    at = random.uniform(3, 6) * HOUR_S
    return lambda now: 0.45 * (1.8 if now >= at else 1.0)


def _first_peak(now: float) -> float:
    hours = now / HOUR_S
    rise = min(max((hours - 4) / 0.5, 0.0), 1.0) * (1 - min(max((hours - 7.5) / 0.5, 0.0), 1.0))
    return 0.4 * (1 + 1.2 * rise)

"""What is done to whom: drawn from a seed before the run begins, so that the same seed does the same again.

Each deed is undone after a while by its own second half. At most so many pods suffer at a time that one could serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Kind(StrEnum):
    """A deed, by what it does."""

    KILL_POD = "kill pod"
    PAUSE_POD = "pause pod"
    SLOW_POD = "slow pod"
    HANG_POD = "hang pod"
    CUT_STREAMS = "cut streams"
    DROP_REQUESTS = "drop requests"
    BREAK_REQUESTS = "break requests"
    REFUSE_REQUESTS = "refuse requests"
    CRASH_ENGINE = "crash engine"
    KILL_GATEWAY = "kill gateway"
    STOP_GATEWAY = "stop gateway"
    KILL_REDIS = "kill redis"
    PAUSE_REDIS = "pause redis"
    FLUSH_REDIS = "flush redis"

    @property
    def befalls_pod(self) -> bool:
        return self in POD_DEEDS

    @property
    def befalls_gateway(self) -> bool:
        return self in (Kind.KILL_GATEWAY, Kind.STOP_GATEWAY)


POD_DEEDS = frozenset(
    {
        *(Kind.KILL_POD, Kind.PAUSE_POD, Kind.SLOW_POD, Kind.HANG_POD, Kind.CUT_STREAMS, Kind.DROP_REQUESTS),
        *(Kind.BREAK_REQUESTS, Kind.REFUSE_REQUESTS, Kind.CRASH_ENGINE),
    }
)

LEAST_APART_S, MOST_APART_S = 1.0, 5.0
LEAST_S, MOST_S = 1.0, 8.0
"""How long a deed lasts."""

BACK_S = 12.0
"""After its end whoever suffered is left alone: a program that starts takes seconds."""


@dataclass(frozen=True, slots=True)
class Deed:
    """`who` counts pods or gateways; it means nothing for Redis."""

    at_s: float
    kind: Kind
    who: int
    lasts_s: float


def draw_deeds(seed: int, seconds: float, pods: int, gateways: int) -> tuple[Deed, ...]:
    """All deeds of a run, in order. One pod and one gateway are left alone at any time."""
    return tuple(_drawn(Random(seed), seconds, pods, gateways))


def _drawn(draw: Random, seconds: float, pods: int, gateways: int) -> Iterator[Deed]:
    now_s, free_s = 2.0, {"pod": [0.0] * pods, "gateway": [0.0] * gateways, "redis": [0.0]}
    while now_s < seconds:
        kind, lasts_s = draw.choice(tuple(Kind)), draw.uniform(LEAST_S, MOST_S)
        whom = free_s["pod" if kind.befalls_pod else "gateway" if kind.befalls_gateway else "redis"]
        free = [who for who, until_s in enumerate(whom) if until_s <= now_s]
        if free and (len(free) > 1 or whom is free_s["redis"]):
            who = draw.choice(free)
            whom[who] = now_s + lasts_s + BACK_S
            yield Deed(now_s, kind, who, lasts_s)
        now_s += draw.uniform(LEAST_APART_S, MOST_APART_S)

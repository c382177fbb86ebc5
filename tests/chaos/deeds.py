"""What is done to whom: drawn from a seed before the run begins, so that the same seed does the same again.

Each deed is undone after a while by its own second half. At most so many suffer at a time that one pod could serve
and one gateway could let clients in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Whom(StrEnum):
    """Whom a deed befalls."""

    POD = "pod"
    GATEWAY = "gateway"
    REDIS = "redis"


class Kind(StrEnum):
    """A deed, by what it does and, with its last word, to whom."""

    KILL_POD = "kill pod"
    STOP_POD = "stop pod"
    PAUSE_POD = "pause pod"
    SLOW_POD = "slow pod"
    HANG_POD = "hang engine of pod"
    FREEZE_POD = "freeze pod"
    CUT_POD = "cut streams of pod"
    SEVER_POD = "sever characters of pod"
    MUTE_POD = "mute streams of pod"
    GARBLE_POD = "garble frames of pod"
    ABORT_POD = "abort streams of pod"
    DROP_POD = "drop requests of pod"
    BREAK_POD = "break requests of pod"
    REFUSE_POD = "refuse requests of pod"
    CRASH_POD = "crash engine of pod"
    RESET_POD = "reset connections of pod"
    SILENCE_POD = "half-open connections of pod"
    LAG_POD = "lag to pod"
    DAMAGE_POD = "damage answers of pod"
    KILL_GATEWAY = "kill gateway"
    STOP_GATEWAY = "stop gateway"
    PAUSE_GATEWAY = "pause gateway"
    RESET_GATEWAY = "reset connections of gateway"
    SILENCE_GATEWAY = "half-open connections of gateway"
    IDLE_GATEWAY = "close idle connections of gateway"
    LAG_GATEWAY = "lag to gateway"
    CROWD_GATEWAY = "hang up crowd of gateway"
    KILL_REDIS = "kill redis"
    PAUSE_REDIS = "pause redis"
    FLUSH_REDIS = "flush redis"
    REPLACE_REDIS = "fail over redis"
    RESET_REDIS = "reset connections of redis"
    SILENCE_REDIS = "half-open connections of redis"
    LAG_REDIS = "lag to redis"

    @property
    def whom(self) -> Whom:
        return Whom(self.rsplit(" ", 1)[1])


@dataclass(frozen=True, slots=True)
class Pace:
    """How dense deeds are, in seconds, evenly drawn between least and most."""

    apart_s: tuple[float, float] = (1.0, 5.0)
    lasts_s: tuple[float, float] = (1.0, 8.0)
    back_s: float = 12.0
    """After its end whoever suffered is left alone: a program that starts takes seconds."""


USUAL = Pace()

DENSE = Pace(apart_s=(0.5, 1.5), lasts_s=(3.0, 8.0), back_s=1.0)
"""Two of three pods suffer nearly always."""

CUTTING = (Kind.CUT_POD, Kind.SEVER_POD, Kind.GARBLE_POD, Kind.RESET_POD)
"""What takes a stream from its client in the middle, and leaves no pod that must be started again. Not an abort: a
response that is aborted behind a cut cannot be told from one that was lost.
"""


@dataclass(frozen=True, slots=True)
class Deed:
    """`who` counts pods or gateways; it is 0 for Redis."""

    at_s: float
    kind: Kind
    who: int
    lasts_s: float


def draw_deeds(
    seed: int, seconds: float, pods: int, gateways: int, *, kinds: Sequence[Kind] = tuple(Kind), pace: Pace = USUAL
) -> tuple[Deed, ...]:
    """All deeds of a run, in order. One pod and one gateway are left alone at any time."""
    crowd = {Whom.POD: [0.0] * pods, Whom.GATEWAY: [0.0] * gateways, Whom.REDIS: [0.0]}
    return tuple(_drawn(Random(seed), seconds, crowd, kinds, pace))


def _drawn(
    draw: Random, seconds: float, crowd: dict[Whom, list[float]], kinds: Sequence[Kind], pace: Pace
) -> Iterator[Deed]:
    now_s = 2.0
    while now_s < seconds:
        kind, lasts_s = draw.choice(kinds), draw.uniform(*pace.lasts_s)
        free_from_s = crowd[kind.whom]
        free = [who for who, from_s in enumerate(free_from_s) if from_s <= now_s]
        if len(free) > 1 or (free and kind.whom is Whom.REDIS):
            who = draw.choice(free)
            free_from_s[who] = now_s + lasts_s + pace.back_s
            yield Deed(now_s, kind, who, lasts_s)
        now_s += draw.uniform(*pace.apart_s)

"""Redis answers slowly: limits, leases and replica sync wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import REDIS
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

MIN_SLOW_S = 0.02
TIMES_NORMAL = 4.0

MIN_PINGS = 3
"""In the window: one comes every 5 s, and every 7 s where none is answered."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at the median of Redis commands of each gateway, beyond the time for which they wait in its own loop."""
    normal = None if scene.baseline is None else scene.baseline.level("", REDIS, scene.now_s)
    for gateway in scene.facts.gateways:
        if gateway.redis is None or gateway.redis.count < MIN_PINGS:
            continue
        middle = gateway.redis.quantile(0.5)
        limit = max(MIN_SLOW_S, TIMES_NORMAL * (normal or 0.0))
        lag = None if gateway.loop_lag is None else gateway.loop_lag.quantile(0.5)
        if middle is not None and middle - (lag or 0.0) >= limit:
            is_busy = gateway.cpu is not None and gateway.cpu >= 0.9
            evidence = (Evidence("Redis command, median", middle, normal, "baseline", "s", gateway.name),)
            yield Indication("", "", evidence, 0.6 if is_busy else 0.9)
    if scene.facts.gateways and all(each.redis is None for each in scene.facts.gateways):
        yield Missing("", "", "times of Redis commands are not known, or Redis is not used")


RECIPE = Recipe(
    name="redis_slow",
    title="Redis is slow",
    question=Question.ROUTING,
    severity=Severity.DEGRADING,
    symptom="Requests with limits wait in the gateway, and gateways see each other's placements late.",
    looks_at=(
        "The median ping takes 20 ms or more, and four times the baseline, beyond the median lag of the gateway's loop."
    ),
    cause="Redis is overloaded by another user, swaps, or lies behind a slow path.",
    first_step="Read `SLOWLOG GET` and `INFO commandstats` of Redis for the commands that take the time.",
    helped="The commands that are slow are named; without them the median falls below 5 ms.",
    wrong_if="Redis itself reports fast commands: then the network, or a busy gateway, adds the time.",
    look=look,
)

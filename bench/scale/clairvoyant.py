"""A scaler that knows all arrivals: the fewest engine-hours that reach the attainment of the largest fleet.

The misses of each slot are measured with fleets of several sizes around its mean work. The cheapest schedule for a
price per miss is then exact (dynamic programming over slots; each start pays its start-up time), and the price rises
until a run of the schedule has the attainment. Bound by the same start-up time and grants as all others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from bench.scale.fleet import SLOT_S, Cluster, Played, play
from bench.scale.scalers import Fixed, Scheduled
from bench.scale.traffic import SPEED, TIERS, Arrivals
from supply.requirement import decode_share

TOLERANCE = 0.003
"""By which the attainment may be below that of the largest fleet: it makes the clairvoyant cheaper."""
OFFSETS = range(-1, 9)
"""Engines beside those of the mean work, with which the misses of slots are measured."""
PRICES = tuple(0.002 * 1.6**step for step in range(16))
"""Of a miss, in engine-hours."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The clairvoyant's run, and the attainment of the largest fleet."""

    best: float
    played: Played


def clairvoyant(arrivals: Arrivals, seconds: float, cluster: Cluster) -> Bound:
    """Return the cheapest schedule whose run has the attainment of the largest fleet, less the tolerance."""
    best = play(arrivals, seconds, cluster, Fixed(cluster.max_engines), _granted(cluster, cluster.max_engines, 0.0))
    base = _mean_engines(arrivals, seconds, cluster)
    sizes = [[min(max(engines + offset, 1), cluster.max_engines) for engines in base] for offset in OFFSETS]
    misses = [_run(slots, arrivals, seconds, cluster).misses for slots in sizes]
    low, high = 0, len(PRICES) - 1
    found: Played | None = None
    while low <= high:  # the attainment rises with the price
        middle = (low + high) // 2
        played = _run(_schedule(sizes, misses, PRICES[middle], cluster.start_s), arrivals, seconds, cluster)
        if played.attainment >= best.attainment - TOLERANCE:
            found, high = played, middle - 1
        else:
            low = middle + 1
            last = played
    return Bound(best.attainment, found or last)


def _run(slots: Sequence[int], arrivals: Arrivals, seconds: float, cluster: Cluster) -> Played:
    initial = _granted(cluster, slots[0], 0.0)
    return play(arrivals, seconds, cluster, Scheduled(slots, cluster.start_s), initial)


def _schedule(
    sizes: Sequence[Sequence[int]], misses: Sequence[Sequence[int]], price: float, start_s: float
) -> list[int]:
    """Return the engines by slot with the least cost of engines, starts and misses."""
    options = [
        [(size[at], missed[at]) for size, missed in zip(sizes, misses, strict=True)] for at in range(len(sizes[0]))
    ]
    slot_hours, start_hours = SLOT_S / 3_600, start_s / 3_600
    costs = [engines * slot_hours + price * missed for engines, missed in options[0]]
    steps: list[list[int]] = []
    for before, after in itertools.pairwise(options):
        chosen, following = [], []
        for engines, missed in after:
            best, origin = inf, 0
            for at, (previous, _) in enumerate(before):
                cost = costs[at] + max(engines - previous, 0) * start_hours
                if cost < best:
                    best, origin = cost, at
            chosen.append(origin)
            following.append(best + engines * slot_hours + price * missed)
        steps.append(chosen)
        costs = following
    at = min(range(len(costs)), key=costs.__getitem__)
    path = [at]
    for chosen in reversed(steps):
        at = chosen[at]
        path.append(at)
    path.reverse()
    return [options[slot][at][0] for slot, at in enumerate(path)]


def _granted(cluster: Cluster, engines: int, at: float) -> int:
    return min(engines, cluster.granted(at)) if cluster.granted else engines


def _mean_engines(arrivals: Arrivals, seconds: float, cluster: Cluster) -> list[int]:
    count = int(seconds // SLOT_S) + 1
    prefill, output, tokens = [0.0] * count, [0.0] * count, [0.0] * count
    for at, one, other in zip(arrivals.at, arrivals.prefill, arrivals.output, strict=True):
        slot = int(at // SLOT_S)
        prefill[slot] += one
        output[slot] += other
        tokens[slot] += other * (one + other / 2)
    pace_s = min(tier.tpot_s for tier in TIERS)
    slots = []
    for one, other, context in zip(prefill, output, tokens, strict=True):
        engines = max(one / SPEED.prefill_tokens_per_s / SLOT_S, 0.1)
        for _ in range(20):  # engines = prefill + decode share, which depends on the batch
            decoding = decode_share(other / SLOT_S / engines, SPEED, context / max(other, 1.0), pace_s)
            engines = max(one / SPEED.prefill_tokens_per_s / SLOT_S / max(1 - decoding, 0.05), 0.1)
        slots.append(min(max(ceil(engines), 1), cluster.max_engines))
    return slots

"""In which order answers are kept on the way from nothing to everything.

Two ways. **By rank**: the surest share of each rung's answers first, the same for all buckets; needs no scores, so all
examples can be tested. **By worth**: the answers first that are expected to lose least against the top rung, by maps of
each rung and bucket; a third of the examples is spent on the maps and not tested.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, sqrt

from cascade.calibration.examples import Example
from cascade.calibration.isotonic import falling_map
from cascade.calibration.walk import Levels
from cascade.ladder_file import ANY_BUCKET, Map

SPENT = 3
"""One example of so many goes into the maps when the order is by worth."""

ENOUGH = 4_000
"""Examples from which on an order by worth pays for those it spends."""
ENOUGH_RUNGS = 1_500
"""The same with three rungs or more, whose ranks cannot be compared."""
ENOUGH_IN_BUCKET = 300
"""Examples with which a bucket has maps of its own."""

DOUBT = 20.0
"""The mean of all counts as so many examples in each step of a map."""


def split(examples: Sequence[Example]) -> tuple[Sequence[Example], Sequence[Example]]:
    """Those that are spent on maps (none where the order is by rank), and those that are tested."""
    rungs, buckets = examples[0].top, buckets_apart(examples)
    if len(examples) < (ENOUGH if rungs == 1 else ENOUGH_RUNGS) or (rungs == 1 and len(buckets) < 2):
        return (), examples
    tested = [example for at, example in enumerate(examples) if at % SPENT]
    return examples[::SPENT], tested


def buckets_apart(examples: Sequence[Example]) -> frozenset[str]:
    """The buckets with enough examples to be told apart."""
    counts = Counter(example.bucket for example in examples)
    return frozenset(bucket for bucket, count in counts.items() if count >= ENOUGH_IN_BUCKET)


LOTS = (sqrt(5.0) - 1.0) / 2
"""Multiples of the golden section, without their whole part, are spread more evenly than chance."""


def lot(at: int) -> float:
    """The draw of the example at this place, in [0, 1): which of many equally sure ones goes first."""
    return at * LOTS % 1.0


def by_rank(examples: Sequence[Example]) -> list[Levels]:
    """Levels are the share of the rung's examples that are less sure; lots decide among those that are alike."""
    columns: list[list[float | None]] = []
    for rung in range(examples[0].top):
        signals = sorted(example.signals[rung] for example in examples if isfinite(example.signals[rung]))
        columns.append([_rank(example.signals[rung], signals, lot(at)) for at, example in enumerate(examples)])
    return list(zip(*columns, strict=True))


def _rank(signal: float, ordered: Sequence[float], draw: float) -> float | None:
    if not isfinite(signal):
        return None
    first, last = bisect_left(ordered, signal), bisect_right(ordered, signal)
    return (first + (last - first) * (1.0 - draw)) / len(ordered)


def worth_maps(examples: Sequence[Example], apart: Iterable[str]) -> dict[tuple[int, str], Map]:
    """Expected loss against the top rung by rung and bucket, and by rung alone."""
    places = [(rung, bucket) for rung in range(examples[0].top) for bucket in (ANY_BUCKET, *sorted(apart))]
    return {place: loss_map(examples, *place) for place in places}


def loss_map(examples: Sequence[Example], rung: int, bucket: str) -> Map:
    """Expected loss of keeping this rung's answer rather than the top's."""
    return _map(examples, rung, bucket, -1)


def benefit_map(examples: Sequence[Example], rung: int, bucket: str) -> Map:
    """Expected benefit of the next rung's answer."""
    return _map(examples, rung, bucket, rung + 1)


def _map(examples: Sequence[Example], rung: int, bucket: str, other: int) -> Map:
    told = [
        (example.signals[rung], example.scores[other] - example.scores[rung])
        for example in examples
        if bucket in (ANY_BUCKET, example.bucket)
    ]
    mean = sum(benefit for _, benefit in told) / len(told) if told else 0.0
    return falling_map(told, towards=mean, doubt=DOUBT)


def by_worth(examples: Sequence[Example], maps: Mapping[tuple[int, str], Map]) -> list[Levels]:
    """Levels are the expected loss, negated; among equal ones the surer answer first."""
    ranks = by_rank(examples)
    return [
        tuple(None if rank is None else _worth(maps, rung, example) + rank * 1e-6 for rung, rank in enumerate(levels))
        for example, levels in zip(examples, ranks, strict=True)
    ]


def _worth(maps: Mapping[tuple[int, str], Map], rung: int, example: Example) -> float:
    own = maps.get((rung, example.bucket)) or maps[rung, ANY_BUCKET]
    return -own.at(example.signals[rung])

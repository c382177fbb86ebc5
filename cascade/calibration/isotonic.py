"""A falling step function fitted to pairs by least squares: pool adjacent violators (Ayer et al., 1955)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from math import isfinite

from cascade.ladder_file import Map


def falling_map(pairs: Iterable[tuple[float, float]], *, towards: float | None = None, doubt: float = 0.0) -> Map:
    """Signal to mean benefit, falling; straight lines join the middles of the steps.

    `towards` is what is believed beforehand of any benefit, and counts as `doubt` examples in every step: steps of few
    examples say little. Pairs without a finite signal are left out.
    """
    pools: list[_Pool] = []
    for signal, benefit in sorted(pair for pair in pairs if isfinite(pair[0])):
        if pools and pools[-1].last == signal:
            pools[-1] = pools[-1].with_one(signal, benefit)
        else:
            pools.append(_Pool(1, signal, benefit, signal))
        # A tie joins its pool first, so that equal signals never stand in two steps.
    merged: list[_Pool] = []
    for pool in pools:
        merged.append(pool)
        while len(merged) > 1 and merged[-2].mean <= merged[-1].mean:
            last = merged.pop()
            merged[-1] = merged[-1].joined(last)
    believed, weight = (0.0, 0.0) if towards is None else (towards, doubt)
    means = ((pool.benefits + believed * weight) / (pool.count + weight) for pool in merged)
    # Steps of few examples lean further, which may lift one above the step before it.
    return Map(tuple(pool.signals / pool.count for pool in merged), tuple(accumulate(means, min)))


class _Pool:
    """Neighbours that share one benefit."""

    __slots__ = ("benefits", "count", "last", "signals")

    def __init__(self, count: int, signals: float, benefits: float, last: float) -> None:
        self.count, self.signals, self.benefits, self.last = count, signals, benefits, last

    @property
    def mean(self) -> float:
        return self.benefits / self.count

    def with_one(self, signal: float, benefit: float) -> _Pool:
        return _Pool(self.count + 1, self.signals + signal, self.benefits + benefit, signal)

    def joined(self, other: _Pool) -> _Pool:
        return _Pool(self.count + other.count, self.signals + other.signals, self.benefits + other.benefits, other.last)

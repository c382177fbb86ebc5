"""How long prompts and answers are. Drawn from one generator; a distribution is a value that a scenario file states."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import exp, inf, log
from random import Random
from typing import Protocol


class Lengths(Protocol):
    """A distribution of lengths in tokens."""

    def draw(self, random: Random) -> int:
        """One length, at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """`mean` is that of the whole distribution, `sigma` of its logarithm; `maximum` cuts longer draws."""

    mean: float
    sigma: float
    maximum: float = inf

    def draw(self, random: Random) -> int:
        middle = log(self.mean) - self.sigma**2 / 2
        return max(1, round(min(self.maximum, exp(random.gauss(middle, self.sigma)))))


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Points (share, tokens) of a measured distribution, from share 0 to 1; between two the logarithm is straight."""

    points: tuple[tuple[float, float], ...]

    def draw(self, random: Random) -> int:
        share = random.random()
        at = bisect_right(self.points, (share, inf))
        (low, fewer), (high, more) = self.points[at - 1], self.points[at]
        part = (share - low) / (high - low)
        return max(1, round(exp(log(fewer) + part * (log(more) - log(fewer)))))

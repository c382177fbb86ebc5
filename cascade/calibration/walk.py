"""Thresholds tested one after the other, from keeping nothing to keeping everything, as far as the promise is shown.

Fixed-sequence testing: the rules stand in one order beforehand, each is tested with the whole error allowed, and the
first that fails ends it. Then the chance that **any** rule that passed breaks the promise is at most that error: for
that, the first in the sequence that breaks it would have to pass (Angelopoulos et al., Learn then Test, 2021). Every
distinct level is tested, so the levels may be those of the examples themselves. Among the rules that passed the
cheapest is taken.

An order gives each rung of each example a level: how early on the way its answer is kept. Levels may use signals,
prices and examples that are not tested, never the scores of those that are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from cascade.calibration.bound import TERNARY, critical_value, distance
from cascade.calibration.examples import Example
from cascade.ladder_file import Promise

Levels = Sequence[float | None]
"""Of one example, by rung below the top; None where the answer is never kept."""

MOST_LEVELS = 41
"""Kinds of losses that are told apart; between two of them a graded loss is shared out so that its mean stays."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rule on the way: keep what stands at this level or above."""

    level: float
    kept: float
    """Share of requests that do not reach the top rung."""
    loss: float
    """Mean score lost against the top rung."""
    spread: float
    """Mean square of the losses."""
    cost: float
    """Of one request."""
    is_shown: bool
    """Whether this rule and all before it have passed."""


def walk(examples: Sequence[Example], order: Sequence[Levels], promise: Promise) -> list[Step]:
    """All rules, from the strictest on; after the first that fails none is shown."""
    critical = critical_value(len(examples), promise.max_loss, round(1.0 - promise.confidence, 12))
    standing = _Standing(examples)
    steps: list[Step] = []
    is_shown = True
    for level, kept in _by_level(order):
        standing.keep(kept)
        # Far above the limit nobody needs to be asked how far below it.
        is_shown = is_shown and standing.loss < promise.max_loss and standing.distance(promise.max_loss) >= critical
        steps.append(Step(level, standing.kept, standing.loss, standing.spread, standing.cost, is_shown))
    return steps


def chosen(steps: Sequence[Step], examples: Sequence[Example]) -> Step | None:
    """The cheapest rule that is shown and saves anything at all; None where there is none."""
    shown = [step for step in steps if step.is_shown]
    best = min(shown, key=lambda step: step.cost, default=None)
    return best if best is not None and best.cost < cost_of_top(examples) * (1 - 1e-12) else None


def cost_of_top(examples: Sequence[Example]) -> float:
    """Of one request, always asking the top rung."""
    return sum(example.costs[-1] for example in examples) / len(examples)


def _by_level(order: Sequence[Levels]) -> Iterator[tuple[float, list[tuple[int, int]]]]:
    """Level, and the (example, rung) that stand at it; the highest first."""
    places = [
        (level, at, rung) for at, levels in enumerate(order) for rung, level in enumerate(levels) if level is not None
    ]
    places.sort(key=lambda place: -place[0])
    for level, group in groupby(places, key=lambda place: place[0]):
        yield level, [(at, rung) for _, at, rung in group]


class _Standing:
    """Which rung answers each example under the rule reached, and what that loses and costs."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples
        self._answers = [example.top for example in examples]
        self._played: dict[str, set[int]] = {example.bucket: set() for example in examples}
        self._losses = _Losses(examples)
        self._cost = sum(example.costs[-1] for example in examples)
        self._kept = 0

    @property
    def kept(self) -> float:
        return self._kept / len(self._examples)

    @property
    def loss(self) -> float:
        return self._losses.total / len(self._examples)

    @property
    def spread(self) -> float:
        return self._losses.squares / len(self._examples)

    @property
    def cost(self) -> float:
        return self._cost / len(self._examples)

    def distance(self, limit: float) -> float:
        return distance(self._losses.counts, self._losses.levels, limit)

    def keep(self, places: Sequence[tuple[int, int]]) -> None:
        for at, rung in places:
            bucket = self._examples[at].bucket
            if rung not in self._played[bucket]:
                self._play(rung, bucket)
            if rung < self._answers[at]:
                self._move(at, rung)

    def _play(self, rung: int, bucket: str) -> None:
        """From now on this rung is asked for this bucket: who climbs past it has paid for it in vain."""
        self._played[bucket].add(rung)
        for example, answer in zip(self._examples, self._answers, strict=True):
            if example.bucket == bucket and answer > rung:
                self._cost += example.wasted[rung]

    def _move(self, at: int, rung: int) -> None:
        example, before = self._examples[at], self._answers[at]
        self._answers[at] = rung
        self._kept += before == example.top
        passed = sum(example.wasted[each] for each in self._played[example.bucket] if rung <= each < before)
        self._cost += example.costs[rung] - example.costs[before] - passed
        top = example.scores[-1]
        self._losses.move(top - example.scores[before], top - example.scores[rung])


class _Losses:
    """A histogram of losses, all of them 0 at first."""

    def __init__(self, examples: Sequence[Example]) -> None:
        seen = {example.scores[-1] - score for example in examples for score in example.scores}
        if seen <= set(TERNARY):
            self.levels: Sequence[float] = TERNARY
        elif len(seen) <= MOST_LEVELS:
            self.levels = sorted(seen | set(TERNARY))
        else:
            half = MOST_LEVELS // 2
            self.levels = [(at - half) / half for at in range(MOST_LEVELS)]
        self._place = {level: at for at, level in enumerate(self.levels)}
        self.counts = [0.0] * len(self.levels)
        self.counts[self._place[0.0]] = float(len(examples))
        self.total = self.squares = 0.0

    def move(self, before: float, after: float) -> None:
        self._add(before, -1.0)
        self._add(after, 1.0)
        self.total += after - before
        self.squares += after * after - before * before

    def _add(self, loss: float, count: float) -> None:
        at = self._place.get(loss)
        if at is not None:
            self.counts[at] += count
            return
        half = len(self.levels) // 2
        below = min(int((loss + 1.0) * half), 2 * half - 1)
        part = (loss - self.levels[below]) * half
        self.counts[below] += count * (1.0 - part)
        self.counts[below + 1] += count * part

"""From labelled examples to thresholds: an order of the answers, a sequence of tests along it, and where it ends.

1. Order. An order gives each model of each example a level: how early on the way from accepting nothing to accepting
   everything its answer is accepted. **By rank**: the surest share of each model's answers first, the same for all
   buckets; needs no scores, so all examples can be tested. **By worth**: the answers first that are expected to lose
   least against the largest model, by falling maps of each model and bucket (pool adjacent violators, Ayer et al.,
   1955); a third of the examples is spent on the maps and not tested. Levels may use signals, prices and examples that
   are not tested, never the scores of those that are.
2. Test. Fixed-sequence testing: the rules are ordered beforehand, each is tested with the whole error allowed,
   and the first that fails ends it. Then the chance that **any** rule that passed breaks the guarantee is at most that
   error: for that, the first in the sequence that breaks it would have to pass (Angelopoulos et al., Learn then Test,
   2021). Every distinct level is tested, so the levels may be those of the examples themselves. Among the rules that
   passed the cheapest is taken.
3. Thresholds. The level of that rule becomes thresholds on signals: what is accepted, and which share right below.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import floor, inf, isfinite, sqrt
from operator import itemgetter

from cascade.calibration.examples import Example
from cascade.calibration_file import ANY_BUCKET, BenefitCurve, QualityGuarantee
from cascade.loss_bound import TERNARY, critical_value, distance


def fit_benefit_curve(
    pairs: Iterable[tuple[float, float]], *, towards: float | None = None, doubt: float = 0.0
) -> BenefitCurve:
    """Signal to mean benefit, falling; straight lines join the middles of the steps.

    `towards` is what is believed beforehand of any benefit, and counts as `doubt` examples in every step: steps of few
    examples say little. Pairs without a finite signal are left out.
    """
    merged: list[_Pool] = []
    # A tie joins its pool first, so that equal signals are never in two steps.
    known = sorted((pair for pair in pairs if isfinite(pair[0])), key=itemgetter(0))
    for signal, group in groupby(known, key=itemgetter(0)):
        benefits = [benefit for _, benefit in group]
        pool = _Pool(len(benefits), signal * len(benefits), sum(benefits))
        while merged and merged[-1].mean <= pool.mean:
            pool = merged.pop().joined(pool)
        merged.append(pool)
    believed, weight = (0.0, 0.0) if towards is None else (towards, doubt)
    means = ((pool.benefits + believed * weight) / (pool.count + weight) for pool in merged)
    # Steps of few examples lean further, which may lift one above the step before it.
    return BenefitCurve(tuple(pool.signals / pool.count for pool in merged), tuple(accumulate(means, min)))


class _Pool:
    """Neighbours that share one benefit."""

    __slots__ = ("benefits", "count", "signals")

    def __init__(self, count: int, signals: float, benefits: float) -> None:
        self.count, self.signals, self.benefits = count, signals, benefits

    @property
    def mean(self) -> float:
        return self.benefits / self.count

    def joined(self, other: _Pool) -> _Pool:
        return _Pool(self.count + other.count, self.signals + other.signals, self.benefits + other.benefits)


AcceptanceLevels = Sequence[float | None]
"""Of one example, by model below the top; None where the answer is never kept."""

MAX_LOSS_LEVELS = 41
"""Most distinct losses; between two of them a graded loss is shared out so that its mean stays."""


@dataclass(frozen=True, slots=True)
class EvaluatedRule:
    """One rule on the way: keep answers at this level or above."""

    level: float
    kept: float
    """Share of requests that do not reach the largest model."""
    loss: float
    """Mean score lost against the largest model."""
    spread: float
    """Mean square of the losses."""
    cost: float
    """Of one request."""
    has_passed: bool
    """Whether this rule and all before it have passed."""


def evaluate_rules(
    examples: Sequence[Example], order: Sequence[AcceptanceLevels], guarantee: QualityGuarantee
) -> list[EvaluatedRule]:
    """All rules, from the strictest on; after the first that fails none is shown."""
    critical = critical_value(len(examples), guarantee.max_loss, round(1.0 - guarantee.confidence, 12))
    kept_examples = KeptExamples(examples)
    steps: list[EvaluatedRule] = []
    is_shown = True
    for level, kept in _by_level(order):
        kept_examples.keep(kept)
        # Above the limit the distance below it need not be computed.
        is_shown = (
            is_shown
            and kept_examples.loss < guarantee.max_loss
            and kept_examples.distance(guarantee.max_loss) >= critical
        )
        steps.append(
            EvaluatedRule(
                level, kept_examples.kept, kept_examples.loss, kept_examples.spread, kept_examples.cost, is_shown
            )
        )
    return steps


def cheapest_passed(steps: Sequence[EvaluatedRule], examples: Sequence[Example]) -> EvaluatedRule | None:
    """The cheapest rule that is shown and saves anything at all; None where there is none."""
    shown = [step for step in steps if step.has_passed]
    best = min(shown, key=lambda step: step.cost, default=None)
    return best if best is not None and best.cost < cost_of_largest(examples) * (1 - 1e-12) else None


def cost_of_largest(examples: Sequence[Example]) -> float:
    """Of one request, always asking the largest model."""
    return sum(example.costs[-1] for example in examples) / len(examples)


def _by_level(order: Sequence[AcceptanceLevels]) -> Iterator[tuple[float, list[tuple[int, int]]]]:
    """Level, and the (example, model) that stand at it; the highest first."""
    smaller = len(order[0])
    # One number for each place: a million tuples would take more memory than all examples.
    places = [
        at * smaller + index
        for at, levels in enumerate(order)
        for index, level in enumerate(levels)
        if level is not None
    ]

    def level_of(place: int) -> float:
        level = order[place // smaller][place % smaller]
        return -inf if level is None else level

    places.sort(key=level_of, reverse=True)
    for level, group in groupby(places, key=level_of):
        yield level, [divmod(place, smaller) for place in group]


class KeptExamples:
    """Which model answers each example under the rule reached, and what that loses and costs."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples
        self._answers = [example.largest for example in examples]
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
        for at, index in places:
            bucket = self._examples[at].bucket
            if index not in self._played[bucket]:
                self._play(index, bucket)
            if index < self._answers[at]:
                self._move(at, index)

    def _play(self, index: int, bucket: str) -> None:
        """From now on this model is asked for this bucket: examples that escalate past it have paid for it in vain."""
        self._played[bucket].add(index)
        for example, answer in zip(self._examples, self._answers, strict=True):
            if example.bucket == bucket and answer > index:
                self._cost += example.wasted[index]

    def _move(self, at: int, index: int) -> None:
        example, before = self._examples[at], self._answers[at]
        self._answers[at] = index
        self._kept += before == example.largest
        passed = sum(example.wasted[each] for each in self._played[example.bucket] if index <= each < before)
        self._cost += example.costs[index] - example.costs[before] - passed
        top = example.scores[-1]
        self._losses.move(top - example.scores[before], top - example.scores[index])


class _Losses:
    """A histogram of losses, all of them 0 at first."""

    def __init__(self, examples: Sequence[Example]) -> None:
        seen = {example.scores[-1] - score for example in examples for score in example.scores}
        if seen <= set(TERNARY):
            self.levels: Sequence[float] = TERNARY
        elif len(seen) <= MAX_LOSS_LEVELS:
            self.levels = sorted(seen | set(TERNARY))
        else:
            half = MAX_LOSS_LEVELS // 2
            self.levels = [(at - half) / half for at in range(MAX_LOSS_LEVELS)]
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


MAP_EXAMPLE_INTERVAL = 3
"""One example of so many goes into the maps when the order is by worth."""

MIN_SPENT, MAX_SPENT = 0.25, 0.42
"""Shares of the examples that may go into the maps where they are divided by group."""

MIN_EXAMPLES_BY_WORTH = 4_000
"""Examples from which on an order by worth pays for those it spends."""
MIN_EXAMPLES_MANY_MODELS = 1_500
"""The same with three models or more, whose ranks cannot be compared."""
MIN_BUCKET_EXAMPLES = 300
"""Examples with which a bucket has maps of its own."""

PRIOR_WEIGHT = 20.0
"""The mean of all counts as so many examples in each step of a map."""


def split_examples(examples: Sequence[Example]) -> tuple[Sequence[Example], Sequence[Example]]:
    """Those that are spent on maps (none where the order is by rank), and those that are tested."""
    smaller, buckets = examples[0].largest, separate_buckets(examples)
    if len(examples) < (MIN_EXAMPLES_BY_WORTH if smaller == 1 else MIN_EXAMPLES_MANY_MODELS) or (
        smaller == 1 and len(buckets) < 2
    ):
        return (), examples
    spent, tested = list[Example](), list[Example]()
    for at, example in enumerate(examples):
        # Examples of one group are on one side: what is tested must not depend on what made the maps.
        (tested if (example.group or at) % MAP_EXAMPLE_INTERVAL else spent).append(example)
    if MIN_SPENT <= len(spent) / len(examples) <= MAX_SPENT:
        return spent, tested
    # A few large groups cannot be divided; calibration warns of them.
    tested = [example for at, example in enumerate(examples) if at % MAP_EXAMPLE_INTERVAL]
    return examples[::MAP_EXAMPLE_INTERVAL], tested


def separate_buckets(examples: Sequence[Example]) -> frozenset[str]:
    """Return the buckets with enough examples for maps of their own."""
    counts = Counter(example.bucket for example in examples)
    return frozenset(bucket for bucket, count in counts.items() if count >= MIN_BUCKET_EXAMPLES)


GOLDEN_SECTION = (sqrt(5.0) - 1.0) / 2
"""Multiples of the golden section, without their whole part, are spread more evenly than chance."""


def tie_break(at: int) -> float:
    """The draw of the example at this place, in [0, 1): which of many equally sure ones goes first."""
    return at * GOLDEN_SECTION % 1.0


MAX_RULES = 20_000
"""Distinct ranks of one model; of more examples neighbours share a rank."""


def by_rank(examples: Sequence[Example]) -> list[AcceptanceLevels]:
    """Levels are the share of the model's examples that are less sure; lots decide among those that are alike."""
    columns: list[list[float | None]] = []
    for index in range(examples[0].largest):
        signals = sorted(example.signals[index] for example in examples if isfinite(example.signals[index]))
        columns.append([_rank(example.signals[index], signals, tie_break(at)) for at, example in enumerate(examples)])
    return list(zip(*columns, strict=True))


def _rank(signal: float, ordered: Sequence[float], draw: float) -> float | None:
    if not isfinite(signal):
        return None
    first, last = bisect_left(ordered, signal), bisect_right(ordered, signal)
    rank = (first + (last - first) * (1.0 - draw)) / len(ordered)
    # Ranks use no scores, so sharing them leaves the tests valid.
    return rank if len(ordered) <= MAX_RULES else floor(rank * MAX_RULES) / MAX_RULES


def loss_curves(examples: Sequence[Example], separated: Iterable[str]) -> dict[tuple[int, str], BenefitCurve]:
    """Expected loss against the largest model by model and bucket, and by model alone."""
    places = [(index, bucket) for index in range(examples[0].largest) for bucket in (ANY_BUCKET, *sorted(separated))]
    return {place: loss_curve(examples, *place) for place in places}


def loss_curve(examples: Sequence[Example], index: int, bucket: str) -> BenefitCurve:
    """Expected loss of keeping this model's answer rather than the top's."""
    return _map(examples, index, bucket, -1)


def benefit_curve(examples: Sequence[Example], index: int, bucket: str) -> BenefitCurve:
    """Expected benefit of the next model's answer."""
    return _map(examples, index, bucket, index + 1)


def _map(examples: Sequence[Example], index: int, bucket: str, other: int) -> BenefitCurve:
    pairs = [
        (example.signals[index], example.scores[other] - example.scores[index])
        for example in examples
        if bucket in (ANY_BUCKET, example.bucket)
    ]
    mean = sum(benefit for _, benefit in pairs) / len(pairs) if pairs else 0.0
    return fit_benefit_curve(pairs, towards=mean, doubt=PRIOR_WEIGHT)


def by_worth(examples: Sequence[Example], maps: Mapping[tuple[int, str], BenefitCurve]) -> list[AcceptanceLevels]:
    """Levels are the expected loss, negated; among equal ones the surer answer first."""
    ranks = by_rank(examples)
    return [
        tuple(None if rank is None else _worth(maps, index, example) + rank * 1e-6 for index, rank in enumerate(levels))
        for example, levels in zip(examples, ranks, strict=True)
    ]


def _worth(maps: Mapping[tuple[int, str], BenefitCurve], index: int, example: Example) -> float:
    own = maps.get((index, example.bucket)) or maps[index, ANY_BUCKET]
    return -own.benefit_at(example.signals[index])


@dataclass(frozen=True, slots=True)
class ThresholdEdge:
    """Kept from `threshold` on; of those `at` one signal below it this share."""

    threshold: float = inf
    signal: float | None = None
    share: float = 0.0


NEVER_ACCEPT = ThresholdEdge()


def thresholds_at(
    examples: Sequence[Example], order: Sequence[AcceptanceLevels], level: float, pools: Collection[str]
) -> dict[tuple[int, str], ThresholdEdge]:
    """By model and pool: the bucket itself where it is one, else the one for any."""
    seen: dict[tuple[int, str], dict[float, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for example, levels in zip(examples, order, strict=True):
        pool = example.bucket if example.bucket in pools else ANY_BUCKET
        for index, own in enumerate(levels):
            if own is not None:
                seen[index, pool][example.signals[index]].append(own >= level)
    return {place: _edge(kept) for place, kept in seen.items()}


def _edge(kept: dict[float, list[bool]]) -> ThresholdEdge:
    threshold = inf
    for signal in sorted(kept, reverse=True):
        if not all(kept[signal]):
            share = sum(kept[signal]) / len(kept[signal])
            return ThresholdEdge(threshold, signal, share) if share else ThresholdEdge(threshold)
        threshold = signal
    return ThresholdEdge(threshold)

"""Whole populations of labelled requests from which calibration sets are drawn: made up with known truth, or a file.

The truth of a rule is what it does to the whole population.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from pathlib import Path
from random import Random
from statistics import NormalDist

from cascade.calibration.calibrate import CalibrationTarget
from cascade.calibration.examples import AnswerPricing, Example, examples_of
from cascade.calibration.labelled_file import read_labelled
from cascade.calibration_file import ANY_BUCKET, SignalStage
from cascade.models import Price

SIZE = 6_000
SMALL_COST = 0.1
"""Of a small answer, where a large one costs 1; one that is given up costs as much."""

LARGE_RIGHT = 0.2
"""Share of requests that only the large model answers well."""
SMALL_RIGHT = 0.04
"""Share that only the small one does."""
BOTH_RIGHT = 0.65


@dataclass(frozen=True, slots=True)
class Population:
    """Requests of which all is known."""

    name: str
    subject: CalibrationTarget
    examples: Sequence[Example]
    auroc: float
    """Of the first model's signal for the benefit of the largest model: how well it tells who gains from escalating."""


def made_up(name: str, auroc: float, change: Callable[[Random, Example], Example] | None = None) -> Population:
    """Two models and a signal that tells the benefit with this AUROC; `change` makes it odd."""
    random = Random(f"{name} {auroc}")
    plain = [_example(random, auroc) for _ in range(SIZE)]
    examples = plain if change is None else [change(random, example) for example in plain]
    models = ("small", "large") if examples[0].largest == 1 else ("small", "middle", "large")
    return _population(f"{name}, AUROC {auroc:g}", CalibrationTarget(models, "margin", SignalStage.WINDOW), examples)


def _example(random: Random, auroc: float) -> Example:
    """The signal is normal, shifted down for those who gain from the large model."""
    draw = random.random()
    gains = draw < LARGE_RIGHT
    if gains or draw < LARGE_RIGHT + SMALL_RIGHT:
        scores = (0.0, 1.0) if gains else (1.0, 0.0)
    else:
        scores = (1.0, 1.0) if random.random() < BOTH_RIGHT / (1 - LARGE_RIGHT - SMALL_RIGHT) else (0.0, 0.0)
    signal = random.gauss(0.0, 1.0) - gains * sqrt(2) * NormalDist().inv_cdf(auroc)
    return Example(ANY_BUCKET, scores, (signal,), (SMALL_COST, 1.0), (SMALL_COST,))


@dataclass(frozen=True, slots=True)
class DifficultyModel:
    """A prompt has a difficulty, standard normal. A model answers well where its skill less the difficulty, with
    normal noise of its own, is above 0; its signal shows that sum with more noise, as a number from 0 to 1.
    """

    small: float
    """Skill of the small model."""
    large: float
    noise: float = 0.7
    """Of an answer: how much two models of one skill differ."""
    blur: float = 0.8
    """Of the signal."""


def by_difficulty(name: str, model: DifficultyModel, seed: int, size: int = SIZE) -> Population:
    """Two models after the model of difficulty."""
    random = Random(f"{name} {seed}")
    examples = []
    for _ in range(size):
        difficulty = random.gauss(0.0, 1.0)
        own = model.small - difficulty + random.gauss(0.0, model.noise)
        scores = (float(own > 0.0), float(model.large - difficulty + random.gauss(0.0, model.noise) > 0.0))
        signal = NormalDist().cdf(own + random.gauss(0.0, model.blur))
        examples.append(Example(ANY_BUCKET, scores, (signal,), (SMALL_COST, 1.0), (SMALL_COST,)))
    return _population(name, CalibrationTarget(("small", "large"), "margin", SignalStage.WINDOW), examples)


def tied(random: Random, example: Example) -> Example:
    """A signal of seven values, some of them missing."""
    signal = nan if random.random() < 0.05 else float(max(-3, min(3, round(example.signals[0]))))
    return Example(example.bucket, example.scores, (signal,), example.costs, example.wasted)


def graded(random: Random, example: Example) -> Example:
    """Scores as judges give them, anything between bad and good."""
    small, large = (min(1.0, max(0.0, score * 0.6 + random.betavariate(2, 3) * 0.5)) for score in example.scores)
    return Example(example.bucket, (small, large), example.signals, example.costs, example.wasted)


def rare(random: Random, example: Example) -> Example:
    """A small model that is nearly as good: losses are rare, and there are as many gains."""
    is_alike = example.scores[0] != example.scores[1] and random.random() < 0.8
    scores = (1.0, 1.0) if is_alike else example.scores
    return Example(example.bucket, scores, example.signals, example.costs, example.wasted)


def bucketed(random: Random, example: Example) -> Example:
    """Many buckets, most of them tiny, in half of which the signal tells nothing."""
    bucket = min(int(random.expovariate(0.7)), 9)
    signal = example.signals[0] if bucket % 2 == 0 else random.gauss(0.0, 1.0)
    return Example(f"task {bucket}", example.scores, (signal,), example.costs, example.wasted)


def three_models(random: Random, example: Example) -> Example:
    """A middle model that answers well half of what only the large one does, with a signal of its own."""
    small, large = example.scores
    middle = large if random.random() < 0.5 else small
    shift = 1.5 * max(0.0, large - middle)
    signals = (example.signals[0], random.gauss(0.0, 1.0) - shift)
    return Example(example.bucket, (small, middle, large), signals, (0.05, 0.25, 1.0), (0.05, 0.25))


def of_file(path: Path, signal: str | None = None, prices: dict[str, Price] | None = None) -> Population:
    """A labelled file by one of its signals. Raises what its reader raises."""
    labelled = read_labelled(path.read_bytes())
    name = signal or labelled.default_signal()
    stage = labelled.default_stage(name)
    examples = examples_of(labelled, name, AnswerPricing(prices or {}, stage))
    title = path.name.partition(".")[0]
    return _population(f"{title} by {name}", CalibrationTarget(labelled.models, name, stage), examples)


def _population(name: str, subject: CalibrationTarget, examples: Sequence[Example]) -> Population:
    return Population(name, subject, examples, benefit_auroc(examples))


def benefit_auroc(examples: Sequence[Example]) -> float:
    """Chance that an example which gains from the largest model has a lower signal at the first than another."""
    known = [example for example in examples if example.signals[0] == example.signals[0]]
    gains = [example.signals[0] for example in known if example.scores[-1] > example.scores[0]]
    others = sorted(example.signals[0] for example in known if example.scores[-1] <= example.scores[0])
    if not gains or not others:
        return 0.5
    above = sum(len(others) - (bisect_left(others, one) + bisect_right(others, one)) / 2 for one in gains)
    return above / (len(gains) * len(others))

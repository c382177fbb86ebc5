"""Are guarantees kept? Calibration sets are drawn from a population with replacement, and each calibration file is held
against the whole of it: broken when the population loses more than was promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random
from statistics import fmean, median

from bench.cascade.population_loss import NOTHING, Effect, PopulationLoss
from bench.cascade.populations import Population
from bench.target import Target
from cascade.calibration.calibrate import calibrate
from cascade.calibration.examples import Example
from cascade.calibration_file import CalibrationFile, QualityGuarantee
from cascade.models import Cascade, CascadeModel, initial_model
from cascade.tasks import PromptFeatures

SIZES = (100, 300, 500, 1_000, 2_000)
LOSSES = (0.01, 0.03)
CONFIDENCE = 0.95
DRAWS = 200

MOST_BROKEN = 19
"""Of 200. Were exactly one in twenty broken, more than this would be seen in 3 cells of 1,000."""

TELLING = 0.75
"""AUROC of the benefit from which on something must be saved."""
AT_SIZE, AT_LOSS = 1_000, 0.03
LEAST_MADE = 0.95
LEAST_SAVED = 0.7


SIZE_OF_NEEDS = 300
"""Examples from which on what a file says it needs is held against the truth."""
LEAST_ENOUGH = 0.7
LARGEST = 4_000
TENTH = 10
"""One draw in so many is enough to see whether as many as were named would do."""


@dataclass(frozen=True, slots=True)
class Cell:
    """All draws of one size from one population under one promise."""

    population: str
    auroc: float
    max_loss: float
    size: int
    draws: int
    made: int
    """How often the guarantee was made; else the largest model answers."""
    broken: int
    saved: float
    """Mean over all draws, as a share of what the population's best threshold saves."""
    plain_broken: int
    """The same draws with the plain rule: the cheapest threshold whose loss in the draw is small enough."""
    plain_saved: float
    needs: int | None
    """Examples that would do, by the middle draw without a guarantee; None where most have one, or none would do."""
    enough: float | None
    """Share of draws of that size in which the guarantee is made; None where nobody asked."""
    unpromised: int = 0
    """Files without a guarantee under which some request would not begin, and so end, at the largest model."""

    def __str__(self) -> str:
        needs = f"{self.needs:,}" if self.needs else "-"
        enough = "-" if self.enough is None else f"{self.enough:.2f}"
        return (
            f"{self.population:<42} {self.auroc:>5.2f} {self.max_loss * 100:>5g} {self.size:>6,} {self.made:>5}"
            f" {self.broken:>7} {self.saved:>6.2f} {self.plain_broken:>8} {self.plain_saved:>6.2f}"
            f" {needs:>9} {enough:>6}"
        )


HEAD = (
    f"{'population':<42} {'AUROC':>5} {'loss':>5} {'drawn':>6} {'made':>5}"
    f" {'broken':>7} {'saved':>6} {'plain: b':>8} {'saved':>6} {'needs':>9} {'enough':>6}"
)


def judge_cell(population: Population, max_loss: float, size: int, draws: int) -> Cell:
    """Calibrate so many times and hold each file against the truth."""
    truth, promise = PopulationLoss(population.examples), QualityGuarantee(max_loss, CONFIDENCE)
    best = truth.best(max_loss).saved
    random = Random(f"{population.name} {max_loss} {size}")
    ours, plain, needs = list[Effect](), list[Effect](), list[float]()
    made = unpromised = 0
    for _ in range(draws):
        drawn = random.choices(population.examples, k=size)
        found = calibrate(drawn, population.subject, promise)
        made += found.file.is_promised
        ours.append(truth.of(found.file))
        plain.append(_plain(drawn, truth, max_loss))
        if not found.file.is_promised:
            unpromised += _begins_below(found.file, population)
            needs.append(float(found.file.evidence.needs or "inf"))
    told = median(needs) if len(needs) * 2 >= draws else float("inf")
    wanted = None if told == float("inf") else int(told)
    return Cell(
        population=population.name,
        auroc=population.auroc,
        max_loss=max_loss,
        size=size,
        draws=draws,
        made=made,
        broken=sum(effect.loss > max_loss + 1e-12 for effect in ours),
        saved=fmean(effect.saved for effect in ours) / best if best > 0 else 0.0,
        plain_broken=sum(effect.loss > max_loss + 1e-12 for effect in plain),
        plain_saved=fmean(effect.saved for effect in plain) / best if best > 0 else 0.0,
        needs=wanted,
        enough=None
        if wanted is None or wanted > LARGEST
        else _enough(population, promise, wanted, draws // TENTH, random),
        unpromised=unpromised,
    )


def _begins_below(file: CalibrationFile, population: Population) -> bool:
    """Whether anything that it is asked begins below the largest model."""
    ladder = Cascade("auto", tuple(map(CascadeModel, file.models)), calibration=file)
    rungs, buckets = tuple(range(len(file.models))), {one.bucket for one in population.examples}
    return any(initial_model(ladder, rungs, bucket, PromptFeatures()) != rungs[-1] for bucket in buckets)


def _enough(population: Population, promise: QualityGuarantee, size: int, draws: int, random: Random) -> float:
    """The share of draws of this size that carry the guarantee."""
    drawn = (random.choices(population.examples, k=size) for _ in range(max(1, draws)))
    return fmean(calibrate(these, population.subject, promise).file.is_promised for these in drawn)


def _plain(drawn: Sequence[Example], truth: PopulationLoss, max_loss: float) -> Effect:
    """What is in use elsewhere; shown for two models."""
    return NOTHING if drawn[0].largest != 1 else truth.at(PopulationLoss(drawn).best_threshold(max_loss))


def judge_all(populations: Iterable[Population], draws: int, jobs: int) -> Iterator[Cell]:
    """Every size and promise for every population, in that order."""
    asked = [(one, loss, size, draws) for one in populations for loss in LOSSES for size in SIZES]
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_judge, asked)


def _judge(asked: tuple[Population, float, int, int]) -> Cell:
    return judge_cell(*asked)


def targets(cells: Sequence[Cell]) -> Iterator[Target]:
    """A line for each population and promise, its worst cell; and what a telling signal must save."""
    for name in dict.fromkeys(cell.population for cell in cells):
        for loss in LOSSES:
            own = [cell for cell in cells if (cell.population, cell.max_loss) == (name, loss)]
            worst = max(own, key=lambda cell: cell.broken / cell.draws)
            words = f"{name}, {loss * 100:g} points: broken of {worst.draws}, worst size {worst.size:,}"
            yield Target(words, MOST_BROKEN * worst.draws / DRAWS, worst.broken)
    below = sum(cell.unpromised for cell in cells)
    yield Target("files without a promise under which anything begins below the top rung", 0, below)
    for cell in cells:
        if cell.enough is not None and cell.size >= SIZE_OF_NEEDS:
            words = f"{cell.population}, {cell.max_loss * 100:g} points, {cell.needs:,} examples as {cell.size:,} say"
            yield Target(f"{words}: share of draws with a promise", LEAST_ENOUGH, cell.enough, at_least=True)
    for cell in cells:
        if cell.auroc >= TELLING and (cell.size, cell.max_loss) == (AT_SIZE, AT_LOSS):
            words = f"{cell.population}, {cell.max_loss * 100:g} points, {cell.size:,} examples"
            yield Target(f"{words}: share of draws with a promise", LEAST_MADE, cell.made / cell.draws, at_least=True)
            yield Target(f"{words}: of the best saving", LEAST_SAVED, cell.saved, at_least=True)

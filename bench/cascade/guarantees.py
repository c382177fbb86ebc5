"""Are guarantees kept? Calibration sets are drawn from a population with replacement, and each calibration file is held
against the whole of it: broken when the population loses more than was guaranteed.
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

MAX_BROKEN = 19
"""Of 200. Were exactly one in twenty broken, more than this would be seen in 3 cells of 1,000."""

INFORMATIVE = 0.75
"""AUROC of the benefit from which on something must be saved."""
AT_SIZE, AT_LOSS = 1_000, 0.03
MIN_MADE = 0.95
MIN_SAVED = 0.7


SIZE_OF_NEEDS = 300
"""Examples from which on what a file says it needs is held against the truth."""
MIN_ENOUGH = 0.7
MAX_SIZE = 4_000
TENTH = 10
"""One draw in this many is enough to see whether as many as were named would do."""


@dataclass(frozen=True, slots=True)
class Cell:
    """All draws of one size from one population under one guarantee."""

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
    """Share of draws of that size in which the guarantee is made; None if not measured."""
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
    """Calibrate `draws` times and compare each file with the truth."""
    truth, guarantee = PopulationLoss(population.examples), QualityGuarantee(max_loss, CONFIDENCE)
    best = truth.best(max_loss).saved
    random = Random(f"{population.name} {max_loss} {size}")
    ours, plain, needs = list[Effect](), list[Effect](), list[float]()
    made = unpromised = 0
    for _ in range(draws):
        drawn = random.choices(population.examples, k=size)
        found = calibrate(drawn, population.subject, guarantee)
        made += found.file.is_promised
        ours.append(truth.of(found.file))
        plain.append(_plain(drawn, truth, max_loss))
        if not found.file.is_promised:
            unpromised += _begins_below(found.file, population)
            needs.append(float(found.file.evidence.needs or "inf"))
    typical_need = median(needs) if len(needs) * 2 >= draws else float("inf")
    wanted = None if typical_need == float("inf") else int(typical_need)
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
        if wanted is None or wanted > MAX_SIZE
        else _enough(population, guarantee, wanted, draws // TENTH, random),
        unpromised=unpromised,
    )


def _begins_below(file: CalibrationFile, population: Population) -> bool:
    """Whether any of its rules begins below the largest model."""
    cascade_of_file = Cascade("auto", tuple(map(CascadeModel, file.models)), calibration=file)
    model_indices, buckets = tuple(range(len(file.models))), {one.bucket for one in population.examples}
    return any(
        initial_model(cascade_of_file, model_indices, bucket, PromptFeatures()) != model_indices[-1]
        for bucket in buckets
    )


def _enough(population: Population, guarantee: QualityGuarantee, size: int, draws: int, random: Random) -> float:
    """The share of draws of this size that carry the guarantee."""
    drawn = (random.choices(population.examples, k=size) for _ in range(max(1, draws)))
    return fmean(calibrate(these, population.subject, guarantee).file.is_promised for these in drawn)


def _plain(drawn: Sequence[Example], truth: PopulationLoss, max_loss: float) -> Effect:
    """What is in use elsewhere; shown for two models."""
    return NOTHING if drawn[0].largest != 1 else truth.at(PopulationLoss(drawn).best_threshold(max_loss))


def judge_all(populations: Iterable[Population], draws: int, jobs: int) -> Iterator[Cell]:
    """Every size and guarantee for every population, in that order."""
    jobs_of_cells = [(one, loss, size, draws) for one in populations for loss in LOSSES for size in SIZES]
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_judge, jobs_of_cells)


def _judge(jobs_of_cells: tuple[Population, float, int, int]) -> Cell:
    return judge_cell(*jobs_of_cells)


def targets(cells: Sequence[Cell]) -> Iterator[Target]:
    """A line for each population and guarantee, its worst cell; and what an informative signal must save."""
    for name in dict.fromkeys(cell.population for cell in cells):
        for loss in LOSSES:
            own = [cell for cell in cells if (cell.population, cell.max_loss) == (name, loss)]
            worst = max(own, key=lambda cell: cell.broken / cell.draws)
            title = f"{name}, {loss * 100:g} points: broken of {worst.draws}, worst size {worst.size:,}"
            yield Target(title, MAX_BROKEN * worst.draws / DRAWS, worst.broken)
    below = sum(cell.unpromised for cell in cells)
    yield Target("files without a promise under which anything begins below the top rung", 0, below)
    for cell in cells:
        if cell.enough is not None and cell.size >= SIZE_OF_NEEDS:
            title = f"{cell.population}, {cell.max_loss * 100:g} points, {cell.needs:,} examples as {cell.size:,} say"
            yield Target(f"{title}: share of draws with a promise", MIN_ENOUGH, cell.enough, is_minimum=True)
    for cell in cells:
        if cell.auroc >= INFORMATIVE and (cell.size, cell.max_loss) == (AT_SIZE, AT_LOSS):
            title = f"{cell.population}, {cell.max_loss * 100:g} points, {cell.size:,} examples"
            yield Target(f"{title}: share of draws with a promise", MIN_MADE, cell.made / cell.draws, is_minimum=True)
            yield Target(f"{title}: of the best saving", MIN_SAVED, cell.saved, is_minimum=True)

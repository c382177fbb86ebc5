"""Does drift control stop what holds, and notice what broke? Runs of shadow samples after calibrations.

A calibration set is drawn from a population after a stated model of difficulty, with a seed that nothing was tuned on.
Where its guarantee is made and holds on the population, requests are drawn; those that the cascade accepts are compared
with the next model, by comparisons with stated errors, until so many were compared. A broken run turns so many accepted
answers into losses that their mean net loss is twice what the guarantee allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import isnan
from random import Random
from statistics import median

from bench.cascade.population_loss import PopulationLoss
from bench.cascade.populations import DifficultyModel, Population, by_difficulty
from bench.target import Target
from cascade.calibration.calibrate import calibrate, reference_outcomes
from cascade.calibration.examples import Example
from cascade.calibration.replay import answering_model
from cascade.calibration_file import ANY_BUCKET, CalibrationFile, Comparison, QualityGuarantee
from cascade.drift import DriftController, FreezeDetector

POPULATIONS = {
    "easy traffic": DifficultyModel(0.9, 1.4, noise=0.5, blur=0.5),
    "mixed traffic": DifficultyModel(0.3, 1.3),
    "hard traffic": DifficultyModel(-0.4, 1.0, blur=0.5),
}
HELD_OUT_SEED = 7_041
CALIBRATED_ON = 1_000
SHADOWS, NOTICE_WITHIN = 1_000, 200
MAX_FALSE, MIN_NOTICED = 0.05, 0.95
CONFIDENCE = 0.95
LOSSES = (0.01, 0.03, 0.06)


@dataclass(frozen=True, slots=True)
class ComparisonModel:
    """A comparison and its errors."""

    name: str
    comparison: Comparison
    is_known: bool
    """Whether the labelled file has this comparison's outcomes; else they are learned in production."""
    missed: float = 0.0
    """Probability that a difference in quality is not seen."""
    false_worse: float = 0.0
    """Probability that an answer which is not worse is called worse (by text: differs)."""
    false_better: float = 0.0
    is_directed: bool = True

    def outcome(self, truth: float, random: Random) -> int:
        """Return 1 for worse, -1 for better, 0 for alike; without a direction 1 for different."""
        if truth and random.random() >= self.missed:
            return (1 if truth > 0 else -1) if self.is_directed else 1
        draw = random.random()
        if draw < self.false_worse:
            return 1
        return -1 if self.is_directed and draw < self.false_worse + self.false_better else 0


COMPARISONS = (
    ComparisonModel("perfect", Comparison.SCORES, is_known=True),
    ComparisonModel("judge, errs", Comparison.JUDGE, True, missed=0.2, false_worse=0.08, false_better=0.05),
    ComparisonModel("judge, errs, learned", Comparison.JUDGE, False, missed=0.2, false_worse=0.08, false_better=0.05),
    ComparisonModel("SAME/DIFFERENT, errs", Comparison.JUDGE, True, missed=0.1, false_worse=0.1, is_directed=False),
    ComparisonModel("SAME/DIFFERENT, learned", Comparison.JUDGE, False, 0.1, 0.1, is_directed=False),
    ComparisonModel("short text", Comparison.TEXT, False, false_worse=0.05, is_directed=False),
    ComparisonModel("free text", Comparison.TEXT, False, 0.3, 0.45, is_directed=False),
)


@dataclass(frozen=True, slots=True)
class DriftCell:
    """All runs of one population, guarantee and comparison."""

    population: str
    max_loss: float
    comparison: str
    allowed: float
    """Net loss of an accepted answer that the guarantee allows, by the middle calibration."""
    runs: int
    """Calibrations whose guarantee was made and holds."""
    stopped: int
    """Of them, withdrawn or frozen without a shift."""
    suspected: int
    """Of them, ever suspected without a shift."""
    noticed: int
    """Of them, suspected or withdrawn within `NOTICE_WITHIN` samples after a break."""
    withdrawn: int
    """Of them, withdrawn within `NOTICE_WITHIN` samples after a break."""
    delay: float
    """Samples until the break was noticed, by the middle run."""
    predicted: float
    """Probability of noticing that the controller states, by the middle run."""

    def __str__(self) -> str:
        delay = "-" if isnan(self.delay) else f"{self.delay:.0f}"
        return (
            f"{self.population:<16} {self.max_loss * 100:>5g} {self.comparison:<24} {self.allowed:>8.3f} {self.runs:>5}"
            f" {self.stopped:>8} {self.suspected:>10} {self.noticed:>8} {self.withdrawn:>10}"
            f" {delay:>6} {self.predicted:>7.2f}"
        )


DRIFT_METHOD = """\
runs: calibrations on 1,000 drawn examples whose guarantee was made and holds on the population. stopped: of them,
withdrawn or frozen within 1,000 shadow samples without a shift; suspected: of them, ever. noticed: suspected or
withdrawn within 200 samples after accepted answers were turned into losses until their mean net loss was twice the
allowed one; withdrawn: of them. delay: samples until noticed, by the middle run. stated: the probability of noticing
within 200 samples that the controller itself shows. allowed: net loss of an accepted answer under the guarantee.\
"""

DRIFT_HEAD = (
    f"{'population':<16} {'loss':>5} {'comparison':<24} {'allowed':>8} {'runs':>5} {'stopped':>8}"
    f" {'suspected':>10} {'noticed':>8} {'withdrawn':>10}"
    f" {'delay':>6} {'stated':>7}"
)


def drift_cells(runs: int, jobs: int) -> Iterator[DriftCell]:
    """One cell for each population, guarantee and comparison."""
    wanted = [
        (by_difficulty(name, model, HELD_OUT_SEED), loss, runs)
        for name, model in POPULATIONS.items()
        for loss in LOSSES
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for cells in pool.map(_cells_of, wanted):
            yield from cells


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration whose guarantee was made and holds."""

    file: CalibrationFile
    drawn: Sequence[Example]
    net: float
    """Mean net loss of accepted answers on the whole population."""


def _net_loss(file: CalibrationFile, population: Population, random: Random) -> float:
    kept = [
        each.scores[1] - each.scores[0]
        for each in population.examples
        if answering_model(file, each, random.random())[0] == 0
    ]
    return sum(kept) / len(kept)


def _cells_of(wanted: tuple[Population, float, int]) -> list[DriftCell]:
    population, max_loss, runs = wanted
    truth, random = PopulationLoss(population.examples), Random(f"drift {population.name} {max_loss}")
    calibrations: list[Calibrated] = []
    for _ in range(2 * runs):
        drawn = random.choices(population.examples, k=CALIBRATED_ON)
        file = calibrate(drawn, population.subject, QualityGuarantee(max_loss, CONFIDENCE)).file
        if file.is_promised and truth.of(file).loss <= max_loss:
            calibrations.append(Calibrated(file, drawn, _net_loss(file, population, random)))
        if len(calibrations) == runs:
            break
    return [_cell(population, max_loss, comparison, calibrations) for comparison in COMPARISONS] if calibrations else []


def _cell(
    population: Population,
    max_loss: float,
    comparison: ComparisonModel,
    calibrations: Sequence[Calibrated],
) -> DriftCell:
    random = Random(f"{population.name} {max_loss} {comparison.name}")
    stopped = suspected = noticed = withdrawn = 0
    delays, allowed, predicted = list[float](), list[float](), list[float]()
    for each in calibrations:
        known, net = _with_outcomes(each.file, each.drawn, comparison, random), each.net
        controller = DriftController(known, comparison=comparison.comparison)
        allowed.append(controller.allowed_rate)
        calm = _run(controller, known, population, comparison, random, SHADOWS, net)
        stopped += calm.stopped_at is not None
        suspected += calm.suspected_at is not None
        broken = DriftController(known, comparison=comparison.comparison)
        while broken.samples_to_learn:  # What is learned is learned before the break.
            wanted = broken.samples_to_learn
            if _run(broken, known, population, comparison, random, wanted, net).stopped_at is not None:
                break
        shaken = _run(broken, known, population, comparison, random, NOTICE_WITHIN, net, is_broken=True)
        noticed += shaken.noticed_at is not None
        withdrawn += shaken.stopped_at is not None
        delays.append(float("inf") if shaken.noticed_at is None else shaken.noticed_at)
        predicted.append(broken.noticed)
    middle = median(delays)
    return DriftCell(
        population=population.name,
        max_loss=max_loss,
        comparison=comparison.name,
        allowed=median(allowed),
        runs=len(calibrations),
        stopped=stopped,
        suspected=suspected,
        noticed=noticed,
        withdrawn=withdrawn,
        delay=float("nan") if middle == float("inf") else middle,
        predicted=median(predicted),
    )


def _with_outcomes(
    file: CalibrationFile, drawn: Sequence[Example], comparison: ComparisonModel, random: Random
) -> CalibrationFile:
    """The file with the reference that a labelled file with this comparison's outcomes gives."""
    if not comparison.is_known or comparison.comparison is Comparison.SCORES:
        return file
    compared = [
        replace(each, outcomes={comparison.comparison: (comparison.outcome(each.scores[1] - each.scores[0], random),)})
        for each in drawn
    ]
    return replace(file, reference=tuple(reference_outcomes(file, compared)))


@dataclass(frozen=True, slots=True)
class RunEvents:
    """After how many comparisons a shift was suspected, and the cascade withdrawn or frozen; None: never."""

    suspected_at: int | None
    stopped_at: int | None

    @property
    def noticed_at(self) -> int | None:
        return self.stopped_at if self.suspected_at is None else self.suspected_at


def _run(
    controller: DriftController,
    file: CalibrationFile,
    population: Population,
    comparison: ComparisonModel,
    random: Random,
    shadows: int,
    net: float,
    *,
    is_broken: bool = False,
) -> RunEvents:
    """Compare so many accepted answers, or until the cascade is stopped."""
    (entry,) = (entry for entry in file.reference if entry.comparison is Comparison.SCORES)
    keeping = FreezeDetector(entry.samples / entry.judged)
    turned = (2.0 * controller.allowed_rate - net) / (1.0 - net) if is_broken else 0.0
    compared, suspected, size = 0, None, len(population.examples)
    calibration, cut = None, None
    while compared < shadows:
        example = population.examples[int(random.random() * size)]
        if controller.calibration is not calibration:
            calibration = controller.calibration
            cut = calibration.threshold_for(0, ANY_BUCKET) if calibration.is_promised else None
        draw = random.random()
        is_kept = cut is not None and cut.accepts(example.signals[0], draw)
        keeping.record(is_kept=is_kept, raised_steps=controller.steps_of(0))
        if keeping.is_frozen:
            return RunEvents(suspected, compared)
        if not is_kept:
            continue
        compared += 1
        truth = 1.0 if turned and random.random() < turned else example.scores[1] - example.scores[0]
        is_surest = file.is_surest(0, ANY_BUCKET, example.signals[0])
        controller.record_sample(0, comparison.outcome(truth, random), is_surest=is_surest)
        if suspected is None and controller.is_suspected:
            suspected = compared
        if controller.is_withdrawn:
            return RunEvents(suspected, compared)
    return RunEvents(suspected, None)


def drift_targets(cells: Sequence[DriftCell]) -> Iterator[Target]:
    """By comparison, over all populations: false stops, and noticed breaks where the controller states that it does."""
    for name in dict.fromkeys(cell.comparison for cell in cells):
        own = [cell for cell in cells if cell.comparison == name]
        runs = sum(cell.runs for cell in own)
        yield Target(f"{name}: stopped without a shift, of {runs:,}", MAX_FALSE, sum(c.stopped for c in own) / runs)
        title = f"{name}: breaks noticed within {NOTICE_WITHIN}, of all {runs:,}"
        yield Target(title, MIN_NOTICED, sum(cell.noticed for cell in own) / runs, is_minimum=True)
        clear = [cell for cell in own if cell.predicted >= MIN_NOTICED]
        if runs := sum(cell.runs for cell in clear):
            title = f"{name}: breaks noticed within {NOTICE_WITHIN}, of {runs:,} where that is stated"
            yield Target(title, MIN_NOTICED, sum(cell.noticed for cell in clear) / runs, is_minimum=True)

"""From which share of easy traffic on does a cascade save 40 to 60 % of what the largest model costs?

On labelled answers, with the prices of a small and a large Qwen for the lengths that the file has. A prompt is easy
where the large model's answer is not better. The file's easy and hard prompts are drawn anew in each mix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean

from bench.cascade.population_loss import PopulationLoss
from bench.cascade.populations import benefit_auroc
from bench.target import Target
from cascade.calibration.calibrate import CalibrationTarget, calibrate
from cascade.calibration.examples import AnswerPricing, Example, examples_of
from cascade.calibration.labelled_file import read_labelled
from cascade.calibration_file import ANY_BUCKET, QualityGuarantee, SignalStage
from cascade.models import EASE, Price

SMALL_PRICE, LARGE_PRICE = Price(5.0e-8, None, 2.0e-7), Price(4.0e-7, None, 2.4e-6)
"""Of qwen3.5-35b-a3b and qwen3.5-397b-a17b, as in docs/cascade.md."""
SIZE = 4_000
LABELS = 1_000
EASY_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LOSSES = (0.01, 0.03)
CONFIDENCE = 0.95
SIGNALS: tuple[float | None, ...] = (None, 0.76, 0.82, 0.9)
"""AUROC of a made-up signal of the answer; None: the prompt's real `ease`."""
CLAIM = 0.4
"""Saving that is claimed."""


@dataclass(frozen=True, slots=True)
class EasyRow:
    """One mix of traffic under one signal and guarantee; means over the calibrations."""

    signal: str
    auroc: float
    easy: float
    max_loss: float
    made: float
    """Share of the calibrations that make the guarantee."""
    saved: float
    """By the calibrated cascade, of always asking the large model."""
    loss: float
    """Quality that it loses."""
    random_loss: float
    """Quality that random routing loses which saves as much."""
    best: float
    """Saved by the best threshold, which knows all scores."""
    perfect: float
    """Saved where each prompt went to the small model exactly if it is easy."""
    small_loss: float
    """Quality that the small model for all loses."""
    small_saved: float

    def __str__(self) -> str:
        return (
            f"{self.signal:<12} {self.auroc:>5.2f} {self.easy:>5.0%} {self.max_loss * 100:>5g} {self.made:>5.2f}"
            f" {self.saved:>6.1%} {self.loss * 100:>6.2f} {self.random_loss * 100:>12.2f} {self.best:>6.1%}"
            f" {self.perfect:>8.1%} {self.small_saved:>9.1%} {self.small_loss * 100:>6.1f}"
        )


EASY_HEAD = (
    f"{'signal':<12} {'AUROC':>5} {'easy':>5} {'loss':>5} {'made':>5} {'saved':>6} {'loses':>6}"
    f" {'random loses':>12} {'best':>6} {'perfect':>8} {'small for all':>9} {'loses':>6}"
)

EASY_METHOD = f"""\
RouteLLM's answers to GSM8K: real scores and lengths of a small and a large model (63.8 % and 85.7 % right; 71 % of the
prompts are easy: the large model's answer is not better), priced as qwen3.5-35b-a3b and qwen3.5-397b-a17b. Not
measured: answers of those two models. Easy and hard prompts are drawn in each mix; {LABELS:,} labels, 95 % sure.
saved: of what the large model for all costs, discarded answers included. random loses: points that random routing
loses which saves as much. best: saved by the threshold that knows all scores. perfect: saved where exactly the easy
prompts go to the small model. The signal `ease` is real; the file has no log-probabilities, so the others are made up
with the AUROC stated, for the benefit of the large model.\
"""


def easy_rows(path: Path, draws: int, jobs: int) -> Iterator[EasyRow]:
    """Yield the table, row by row."""
    labelled = read_labelled(path.read_bytes())
    prices = dict(zip(labelled.models, (SMALL_PRICE, LARGE_PRICE), strict=True))
    prompt, window = (
        examples_of(labelled, EASE, AnswerPricing(prices, stage)) for stage in (SignalStage.PROMPT, SignalStage.WINDOW)
    )
    jobs_of_rows = [
        (prompt if auroc is None else window, auroc, easy, draws) for auroc in SIGNALS for easy in EASY_SHARES
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for rows in pool.map(_rows, jobs_of_rows):
            yield from rows


def _rows(job: tuple[Sequence[Example], float | None, float, int]) -> list[EasyRow]:
    return list(mixed_rows(*job))


def mixed_rows(examples: Sequence[Example], auroc: float | None, easy: float, draws: int) -> Iterator[EasyRow]:
    """Yield the rows of one mix and signal, one for each guarantee."""
    mix = mixed(examples, auroc, easy)
    truth, count = PopulationLoss(mix), len(mix)
    top = sum(example.costs[-1] for example in mix) / count
    small = sum(example.costs[0] for example in mix) / count
    small_loss = fmean(example.scores[-1] - example.scores[0] for example in mix)
    perfect = sum(example.costs[0] if _is_easy(example) else example.costs[-1] for example in mix) / count
    stage = SignalStage.PROMPT if auroc is None else SignalStage.WINDOW
    subject = CalibrationTarget(("small", "large"), EASE if auroc is None else "margin", stage)
    for max_loss in LOSSES:
        random, guarantee = Random(f"{auroc} {easy} {max_loss}"), QualityGuarantee(max_loss, CONFIDENCE)
        files = [calibrate(random.choices(mix, k=LABELS), subject, guarantee).file for _ in range(draws)]
        effects = [truth.of(file) for file in files]
        saved = fmean(effect.saved for effect in effects)
        yield EasyRow(
            signal="ease" if auroc is None else f"made, {auroc:g}",
            auroc=benefit_auroc(mix),
            easy=easy,
            max_loss=max_loss,
            made=fmean(file.is_promised for file in files),
            saved=saved,
            loss=fmean(effect.loss for effect in effects),
            random_loss=saved / (1.0 - small / top) * small_loss,
            best=truth.best(max_loss).saved,
            perfect=1.0 - perfect / top,
            small_loss=small_loss,
            small_saved=1.0 - small / top,
        )


def mixed(examples: Sequence[Example], auroc: float | None, easy: float) -> list[Example]:
    """Return `SIZE` examples of which this share is easy, with a made-up signal where an AUROC is given."""
    random = Random(f"mix {easy}")
    kinds = [[each for each in examples if _is_easy(each) == is_easy] for is_easy in (False, True)]
    drawn = [random.choice(kinds[at < easy * SIZE]) for at in range(SIZE)]
    if auroc is None:
        return [replace(each, bucket=ANY_BUCKET) for each in drawn]
    shift = sqrt(2) * NormalDist().inv_cdf(auroc)
    return [
        replace(
            each,
            bucket=ANY_BUCKET,
            signals=(NormalDist().cdf(random.gauss(0.0, 1.0) - shift * (not _is_easy(each))),),
        )
        for each in drawn
    ]


def _is_easy(example: Example) -> bool:
    return example.scores[-1] <= example.scores[0]


def easy_targets(rows: Sequence[EasyRow]) -> Iterator[Target]:
    """Yield for each signal and guarantee the smallest share of easy traffic at which the claim holds; 1 for none."""
    for signal, max_loss in dict.fromkeys((row.signal, row.max_loss) for row in rows):
        own = [row for row in rows if (row.signal, row.max_loss) == (signal, max_loss)]
        reached = [row.easy for row in own if row.saved >= CLAIM]
        title = f"{signal}, {max_loss * 100:g} points: smallest share of easy traffic at which {CLAIM:.0%} is saved"
        yield Target(title, max(EASY_SHARES), min(reached, default=1.0))
    worse = sum(row.loss > row.random_loss + 1e-9 for row in rows)
    yield Target("rows in which random routing at the same price loses less", 0, worse)

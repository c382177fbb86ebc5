"""From an empty file to a served cascade: are guarantees kept whose labels `hearth cascade collect` has made?

Each data set is collected by the collector of the command, whose models and judge answer from here: real answers to
GSM8K, and sets after a stated model of difficulty. What collect sees is what it would see: requests, answers with
log-probabilities, verdicts of a judge that errs, and for a part of the requests an expected answer. Truth scores the
guarantee, and is hidden from it. Calibration sets are redrawn from the collected rows; each calibration then serves
with drift control, and is held against the truth of the whole set.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import inf, log, nan, sqrt
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean
from typing import Any

from bench.cascade.population_loss import NOTHING, Effect, PopulationLoss
from bench.cascade.populations import SMALL_COST, benefit_auroc
from bench.target import Target
from cascade.answer_comparison import answers_agree
from cascade.calibration.calibrate import CalibrationTarget, calibrate
from cascade.calibration.examples import AnswerPricing, Example, LabelledExamples, examples_of
from cascade.calibration.label_errors import with_label_errors, with_true_labels, without_judged
from cascade.calibration.labelled_file import read_labelled
from cascade.calibration_file import (
    ANY_BUCKET,
    AnswerVerdict,
    CalibrationFile,
    Comparison,
    QualityGuarantee,
    SignalStage,
    judge_signal,
)
from cascade.drift import DriftController
from cascade.models import EASE, Price, prompt_signal
from cascade.tasks import prompt_features
from gateway.cascades.answer_scorer import AnswerScorer
from gateway.commands.collect import CollectionBudget, Collector, RecordedRequest

SMALL, LARGE = MODELS = ("small", "large")
SIZE = 6_000
SIZES = (0, 300, 1_000)
MAX_LOSS, CONFIDENCE = 0.03, 0.95
MAX_BROKEN = 0.05
INFORMATIVE, AT_SIZE, MIN_SAVED = 0.75, 1_000, 0.6
LOST_SIGNALS = 0.05
"""Share of answers at work that show no signal."""
SHADOWS = 200
"""Shadow samples that each served calibration takes."""
PRICES = {SMALL: Price(0.0, None, SMALL_COST), LARGE: Price(0.0, None, 1.0)}
"""Of an answer of one token, as all generated ones are."""

GSM8K = "routellm_gsm8k_mixtral_gpt4.csv.gz"
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"


@dataclass(frozen=True, slots=True)
class HiddenPrompt:
    """One prompt with all that is known of it; collect sees the prompt, both answers and `expected`."""

    prompt: str
    answers: tuple[str, str]
    margin: float
    scores: tuple[float, float]
    """The truth."""
    expected: str | None = None
    schema: Mapping[str, Any] | None = None
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class JudgeErrors:
    """How a simulated judge errs. It sees one order at a time."""

    missed: float = 0.1
    """Share of worse answers that it calls alike, in both orders."""
    false_worse: float = 0.08
    """Share of equally good answers that it calls worse."""
    by_order: float = 0.1
    """Share of comparisons in which it names the first answer, whatever both are."""


@dataclass(frozen=True, slots=True)
class HiddenSet:
    """A data set."""

    name: str
    prompts: Sequence[HiddenPrompt]
    signal: str = "margin"
    judge: JudgeErrors | None = None
    has_scorer: bool = False
    pattern: str | None = None
    is_true_only: bool = False
    """Whether rows without a true label are left out."""


def difficult(
    seed: str,
    size: int = SIZE,
    *,
    expected: float = 0.0,
    schema: bool = False,
    buckets: bool = False,
    long: bool = False,
) -> Iterator[HiddenPrompt]:
    """Prompts of normal difficulty; a model answers well where its skill less the difficulty, with noise, is above 0.

    Right answers are equal; wrong ones are one of five. `expected`: share with the right answer beside the request;
    `schema`: the worst small answers are no JSON; `buckets`: in one of two the signal tells nothing; `long`: no two
    texts are equal.
    """
    random = Random(seed)
    for at in range(size):
        difficulty, bucket = random.gauss(0.0, 1.0), random.choice(("chat", "code")) if buckets else None
        own = 0.5 - difficulty + random.gauss(0.0, 0.7)
        large = 1.2 - difficulty + random.gauss(0.0, 0.7)
        scores = (float(own > 0.0), float(large > 0.0))
        shown = random.gauss(0.0, 1.0) if bucket == "code" else own
        margin = NormalDist().cdf(shown + random.gauss(0.0, 0.5))
        texts = [f"item {at}" if score else f"mistake {random.randrange(5)} of {at}" for score in scores]
        if schema:
            texts = [json.dumps({"answer": text}) for text in texts]
            texts[0] = texts[0] if own > -1.2 else "well, let me think"
        if long:
            texts = [f"{text}, {random.random()} {random.random()}" for text in texts]
        yield HiddenPrompt(
            prompt=f"question {at}",
            answers=(texts[0], texts[1]),
            margin=min(1.0, max(0.0, margin)),
            scores=scores,
            expected=f"item {at}" if random.random() < expected else None,
            schema={"type": "object", "required": ["answer"]} if schema else None,
            bucket=bucket,
        )


def gsm8k(path: Path, auroc: float | None, expected: float) -> Iterator[HiddenPrompt]:
    """RouteLLM's table: real prompts, answers and scores. The file has no log-probabilities: the margin is made up
    with this AUROC for the benefit of the larger model, or there is none and the prompt's `ease` is the signal.
    """
    random = Random(f"gsm8k {auroc}")
    with gzip.open(path, "rt") as file:
        for at, row in enumerate(csv.DictReader(file)):
            small, large = [name for name in row if f"{name}_response" in row]
            scores = (float(row[small] == "True"), float(row[large] == "True"))
            texts = (row[f"{small}_response"], row[f"{large}_response"])
            shift = 0.0 if auroc is None else sqrt(2) * NormalDist().inv_cdf(auroc) * (scores[1] > scores[0])
            known = next((text for text, score in zip(texts, scores, strict=True) if score), None)
            numbers = re.findall(NUMBER, known) if known else []
            yield HiddenPrompt(
                prompt=f"{row['prompt']} (question {at})",
                answers=texts,
                margin=NormalDist().cdf(random.gauss(0.0, 1.0) - shift),
                scores=scores,
                # Where neither is right the answer is not in the file: any other number stands for it.
                expected=(numbers[-1] if numbers else "none") if random.random() < expected else None,
            )


def hidden_sets(traces: Path) -> Iterator[HiddenSet]:
    """All sets: the given one twice, and generated ones."""
    errs = JudgeErrors()
    yield HiddenSet("made: scorer", list(difficult("scorer")), has_scorer=True)
    yield HiddenSet("made: 30 % expected, else agreement", list(difficult("expected", expected=0.3)))
    yield HiddenSet("made: agreement alone", list(difficult("agreement")))
    yield HiddenSet("made: 30 % expected, else a judge", list(difficult("judge", expected=0.3)), judge=errs)
    yield HiddenSet(
        "made: long texts, 30 % scored, judge",
        list(difficult("long", expected=0.3, long=True)),
        judge=errs,
        pattern=r"^(\w+ \d+(?: of \d+)?),",
    )
    yield HiddenSet("made: JSON schema, agreement", list(difficult("schema", schema=True)))
    yield HiddenSet("made: two buckets, scorer", list(difficult("buckets", buckets=True)), has_scorer=True)
    if (traces / GSM8K).exists():
        for auroc, signal in ((None, EASE), (0.8, "margin")):
            prompts = list(gsm8k(traces / GSM8K, auroc, 0.5))
            title = f"GSM8K, {'real ease' if auroc is None else 'made margin'}: expected, agreement, judge"
            yield HiddenSet(title, prompts, signal, errs, pattern=NUMBER)
        yield HiddenSet("GSM8K, made margin: the expected half alone", prompts, pattern=NUMBER, is_true_only=True)


class HiddenModels:
    """Answers as the models and the judge of a data set."""

    def __init__(self, data: HiddenSet) -> None:
        self._data = data
        self._random = Random(data.name)
        self._by_number = dict(enumerate(data.prompts))
        self._verdicts: dict[int, str] = {}

    def __call__(self, body: Mapping[str, Any]) -> bytes:
        """Return a response's body."""
        question = body["messages"][0]["content"]
        number = int(re.findall(r"question (\d+)", question)[0])
        prompt = self._by_number[number]
        if body["model"] == "judge":
            return _response(self._verdict(number, prompt, question))
        index = MODELS.index(body["model"])
        return _response(prompt.answers[index], prompt.margin)

    def _verdict(self, number: int, prompt: HiddenPrompt, question: str) -> str:
        errors = self._data.judge or JudgeErrors()
        ours_first = f"First answer:\n{prompt.answers[0]}\n" in question
        if number not in self._verdicts:
            draw, loss = self._random.random(), prompt.scores[1] - prompt.scores[0]
            if self._random.random() < errors.by_order:
                found = "order"
            elif loss > 0.0:
                found = "same" if draw < errors.missed else "worse"
            else:
                found = "worse" if draw < errors.false_worse else "same" if loss == 0.0 else "better"
            self._verdicts[number] = found
        found = self._verdicts[number]
        if found in ("order", "same"):
            return "FIRST" if found == "order" else "SAME"
        return "FIRST" if (found == "better") == ours_first else "SECOND"


def _response(text: str, margin: float = 1.0) -> bytes:
    """A response of one token whose margin is this."""
    likeliest, second = log((1.0 + margin) / 2), log(max(1e-9, (1.0 - margin) / 2))
    token = {"logprob": likeliest, "top_logprobs": [{"logprob": likeliest}, {"logprob": second}]}
    choice = {"message": {"content": text}, "logprobs": {"content": [token]}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 1}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def collect_all(data: HiddenSet) -> list[bytes]:
    """Return the lines that collect writes for the whole set."""

    def score(given: dict[str, Any]) -> dict[str, float]:
        number = int(re.findall(r"question (\d+)", given["request"]["messages"][0]["content"])[0])
        return dict(zip(MODELS, data.prompts[number].scores, strict=True))

    collector = Collector(
        models=MODELS,
        ask=HiddenModels(data),
        budget=CollectionBudget({}, inf, 1 << 60),
        scorer=AnswerScorer(score) if data.has_scorer else None,
        answer_pattern=re.compile(data.pattern) if data.pattern else None,
        judge_model="judge" if data.judge else None,
        max_audited=len(data.prompts),
        store_prompts=data.signal == EASE,
    )
    lines = []
    for at, prompt in enumerate(data.prompts):
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt.prompt}]}
        if prompt.schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"schema": prompt.schema}}
        row = collector.collect(RecordedRequest(at + 1, body, prompt.expected, bucket=prompt.bucket))
        if row is not None:
            lines.append(row.line(MODELS).encode())
    return lines


def truth_of(data: HiddenSet) -> list[Example]:
    """Return the set with its true scores, and the signals that answers show at work."""
    random, found = Random(f"{data.name} at work"), []
    for prompt in data.prompts:
        signal = prompt.margin
        if data.signal == EASE:
            ease = prompt_signal(EASE, prompt_features([prompt.prompt]))
            signal = nan if ease is None else ease
        elif random.random() < LOST_SIGNALS:
            signal = nan
        wasted = 0.0 if data.signal == EASE else SMALL_COST
        found.append(Example(prompt.bucket or ANY_BUCKET, prompt.scores, (signal,), (SMALL_COST, 1.0), (wasted,)))
    return found


@dataclass(frozen=True, slots=True)
class CollectedCell:
    """All redraws of one size from one set."""

    name: str
    auroc: float
    size: int
    draws: int
    made: int
    broken: int
    withdrawn: int
    """Calibrations that drift control withdrew within the shadow samples, though nothing had shifted."""
    saved: float
    """Mean over all draws, as a share of what the best threshold saves that knows the truth."""
    reachable: float
    """The same for the best threshold by the labels: what any number of rows like these could show."""

    def __str__(self) -> str:
        return (
            f"{self.name:<52} {self.auroc:>5.2f} {self.size:>6,} {self.draws:>5} {self.made:>5} {self.broken:>7}"
            f" {self.withdrawn:>9} {self.saved:>6.2f} {self.reachable:>9.2f}"
        )


COLLECTED_HEAD = (
    f"{'data set: labels':<52} {'AUROC':>5} {'rows':>6} {'drawn':>5} {'made':>5} {'broken':>7} {'withdrawn':>9}"
    f" {'saved':>6} {'reachable':>9}"
)

COLLECTED_METHOD = f"""\
From an empty file: each set is collected once by the collector of `hearth cascade collect`, its truth hidden. Rows
are redrawn with replacement, calibrated ({MAX_LOSS * 100:g} points, {CONFIDENCE:.0%} sure) and served:
{LOST_SIGNALS:.0%} of answers show no signal, and {SHADOWS} shadow samples compared as text correct the thresholds.
"made" sets follow a model of difficulty: skill of the small model .5, of the large 1.2, noise .7 each, blur of the
signal .5. GSM8K: RouteLLM's table, real prompts, answers and scores. broken: the whole set loses more than guaranteed,
by its true scores. withdrawn: by drift control, though nothing had shifted. saved: of what the set's best threshold
saves that knows the truth. reachable: the same for the best threshold by the labels of the whole set, which no number
of rows exceeds. The judge misses 10 % of worse answers, calls 8 % of equal ones worse, and follows the order in 10 %.\
"""


def judge_collected(data: HiddenSet, draws: int) -> list[CollectedCell]:
    """Return a cell for each size."""
    collected, examples = read_labelled(b"\n".join(collect_all(data)), MODELS), truth_of(data)
    truth, guarantee = PopulationLoss(examples), QualityGuarantee(MAX_LOSS, CONFIDENCE)
    best, auroc = truth.best(MAX_LOSS).saved, benefit_auroc(examples)
    shown = PopulationLoss(labelled_examples(data, collected, guarantee)[0]).best(MAX_LOSS).saved
    reachable = shown / best if best > 0 else 0.0
    cells = []
    for size in SIZES:
        random = Random(f"{data.name} {size}")
        effects, made, withdrawn, broken = list[Effect](), 0, 0, 0
        for _ in range(draws if size else 1):
            # Rows are read once; what their labels may be wrong by is measured anew on those that were drawn.
            drawn = with_label_errors(replace(collected, rows=random.choices(collected.rows, k=size)))
            file = calibrated(data, drawn, guarantee)
            if file is None or not file.is_promised:
                effects.append(NOTHING)
                continue
            made += 1
            served = serve(data, file, examples, random)
            withdrawn += not served.is_promised
            # A calibration that is withdrawn has served until then: it is judged as it was.
            effect = truth.of(served if served.is_promised else file)
            broken += effect.loss > MAX_LOSS + 1e-12
            effects.append(effect if served.is_promised else NOTHING)
        saved = fmean(effect.saved for effect in effects) / best if best > 0 else 0.0
        cells.append(
            CollectedCell(data.name, auroc, size, draws if size else 1, made, broken, withdrawn, saved, reachable)
        )
    return cells


def labelled_examples(
    data: HiddenSet, labelled: LabelledExamples, guarantee: QualityGuarantee
) -> tuple[list[Example], float]:
    """Return the examples that `hearth cascade calibrate` makes of these rows, and how far their labels may be wrong.

    The second is the probability that the labels understate the losses.
    """
    # Rows are redrawn independently: that a row occurs twice says nothing of its group.
    labelled = with_true_labels(labelled) if data.is_true_only else without_judged(labelled, guarantee)
    labelled = replace(labelled, rows=[replace(row, group=0, bucket=row.bucket) for row in labelled.rows])
    examples = examples_of(labelled, data.signal, AnswerPricing(PRICES, stage_of(data), 1))
    return examples, labelled.labels.error if labelled.labels else 0.0


def stage_of(data: HiddenSet) -> SignalStage:
    """Return when the signal of a data set is known."""
    return SignalStage.PROMPT if data.signal == EASE else SignalStage.WINDOW


def calibrated(data: HiddenSet, labelled: LabelledExamples, guarantee: QualityGuarantee) -> CalibrationFile | None:
    """Return what `hearth cascade calibrate` writes for these rows; None without any."""
    if not labelled.rows:
        return None
    examples, error = labelled_examples(data, labelled, guarantee)
    return calibrate(examples, CalibrationTarget(MODELS, data.signal, stage_of(data)), guarantee, error).file


def serve(data: HiddenSet, file: CalibrationFile, examples: Sequence[Example], random: Random) -> CalibrationFile:
    """Return the calibration as drift control has corrected it after `SHADOWS` samples of accepted answers."""
    drift, samples = DriftController(file, comparison=Comparison.TEXT), 0
    for _ in range(20 * SHADOWS):
        at = random.randrange(len(examples))
        example, prompt = examples[at], data.prompts[at]
        verdict = judge_signal(drift.calibration, 0, example.bucket, example.signals[0], draw=random.random())
        if verdict is AnswerVerdict.KEEP:
            is_surest = file.is_surest(0, example.bucket, example.signals[0])
            drift.record_sample(0, 0 if answers_agree(*prompt.answers) else 1, is_surest=is_surest)
            samples += 1
        if samples == SHADOWS or drift.is_withdrawn:
            break
    return drift.calibration


def collected_cells(traces: Path, draws: int, jobs: int, only: Sequence[str] = ()) -> Iterator[CollectedCell]:
    """Yield the cells of all sets whose names hold one of `only`."""
    sets = [one for one in hidden_sets(traces) if not only or any(part in one.name for part in only)]
    with ProcessPoolExecutor(jobs) as pool:
        for cells in pool.map(judge_collected, sets, [draws] * len(sets)):
            yield from cells


def collected_targets(cells: Sequence[CollectedCell]) -> Iterator[Target]:
    """Yield what is wanted: guarantees kept in every cell, and savings where the signal is informative."""
    for name in dict.fromkeys(cell.name for cell in cells):
        own = [cell for cell in cells if cell.name == name]
        worst = max(own, key=lambda cell: cell.broken / cell.draws)
        yield Target(
            f"{name}: share of redraws broken, worst of {len(own)} sizes", MAX_BROKEN, worst.broken / worst.draws
        )
    yield Target("guarantees made without a row", 0, sum(cell.made for cell in cells if not cell.size))
    for cell in cells:
        if cell.auroc > INFORMATIVE and cell.size == AT_SIZE:
            yield Target(f"{cell.name}, {cell.size:,} rows: of the best saving", MIN_SAVED, cell.saved, is_minimum=True)

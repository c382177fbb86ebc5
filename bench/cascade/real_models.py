"""Two models that run behind their own URLs, end to end: collect, calibrate and serve by the commands, truth hidden.

Half of the questions, chosen by a hash, are collected by `hearth cascade collect`, which sees the right answer of a
share of them, and calibrated by `hearth cascade calibrate`. A gateway then serves the other half by the calibration.
Both models' answers to that half are held against the truth for the rows beside it: each model alone, random routing
at the same cost, and the best threshold that knows the truth.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

import aiohttp

from bench.cascade.gateway_process import running
from bench.cascade.population_loss import PopulationLoss
from bench.cascade.populations import benefit_auroc
from bench.target import Target
from cascade.calibration.examples import AnswerPricing, Example, examples_of
from cascade.calibration.labelled_file import read_labelled
from cascade.calibration.labelling import expected_scores
from cascade.calibration_file import SignalStage
from cascade.calibration_json import read_calibration_file
from cascade.models import Price

CASCADE = "auto"
AT_ONCE = 4
INFORMATIVE, MIN_SAVED = 0.75, 0.6
NO_GUARANTEE = 3
"""Status of the commands where the labels do not carry the guarantee."""


class UnusableModels(Exception):  # noqa: N818 - of what the user has given
    """The URLs or questions cannot be measured."""


@dataclass(frozen=True, slots=True)
class RealRun:
    """What is measured."""

    urls: tuple[str, str]
    """Of the small and the large model's server, without `/v1`."""
    questions: Path
    """JSON lines with `question` and `answer`."""
    pattern: str | None = None
    """What of an answer is compared: its last match."""
    expected_share: float = 0.5
    """Of the collected questions, those whose right answer collect sees."""
    true_labels_only: bool = False
    """Whether rows without a right answer are left out; valid, since chance decides here which rows have one."""
    max_loss: float = 0.03
    confidence: float = 0.95
    max_tokens: int = 48
    small_price: float = 0.1
    """Of a token, where one of the large model costs 1."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question and its right answer."""

    text: str
    answer: str

    @property
    def draw(self) -> float:
        """A number from 0 to 1 that stays the same."""
        return int.from_bytes(sha256(self.text.encode()).digest()[:6], "big") / 2**48


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """An answer of the cascade."""

    by: int
    """Index of the model that gave it."""
    score: float


REAL_METHOD = """\
Half of the questions were collected and calibrated, the others served; right answers of the others were never shown.
cost: of one question, a token of the large model costs 1. saved: of always asking the large model. random: the large
model for a random share of the questions, at the cost of the cascade. best: the threshold that knows the truth.\
"""


def measure_real(run: RealRun, folder: Path) -> tuple[list[str], list[Target]]:
    """Return the rows and targets of one run; its files are left in `folder`. Raises `UnusableModels`."""
    return asyncio.run(_measure(run, folder))


async def _measure(run: RealRun, folder: Path) -> tuple[list[str], list[Target]]:
    models = await _models_of(run.urls)
    questions = list(_read(run.questions))
    collected = [each for each in questions if each.draw < 0.5]
    served = [each for each in questions if each.draw >= 0.5]
    if not collected or not served:
        raise UnusableModels(f"{run.questions} has too few questions: {len(questions)}")
    config = _write_config(run, models, folder, is_calibrated=False)
    _write_requests(folder / "requests.jsonl", run, collected, run.expected_share)
    _write_requests(folder / "hidden.jsonl", run, served, 1.0)
    async with running(config) as gateway:
        for requests, rows in (("requests.jsonl", "labels.jsonl"), ("hidden.jsonl", "truth.jsonl")):
            await _command(
                *("collect", "--requests", str(folder / requests), "--url", f"http://127.0.0.1:{gateway.port}/v1"),
                *("--models", ",".join(models), "--out", str(folder / rows), "--config", str(config)),
                *("--max-rows", str(len(questions)), "--max-loss", str(run.max_loss)),
                *(("--answer-pattern", run.pattern) if run.pattern else ()),
            )
    calibration = folder / "auto.json"
    described = await _command(
        *("calibrate", "--data", str(folder / "labels.jsonl"), "--max-loss", str(run.max_loss)),
        *("--confidence", str(run.confidence), "--config", str(config), "--out", str(calibration)),
        *(("--true-labels-only",) if run.true_labels_only else ()),
    )
    async with running(_write_config(run, models, folder, is_calibrated=True)) as gateway:
        answers = await _serve(run, models, served, gateway.port)
    truth = read_labelled((folder / "truth.jsonl").read_bytes(), models)
    prices = {models[0]: Price(0.0, None, run.small_price), models[1]: Price(0.0, None, 1.0)}
    examples = examples_of(truth, "margin", AnswerPricing(prices, SignalStage.WINDOW))
    has_guarantee = read_calibration_file(calibration.read_bytes()).is_promised
    return _rows(run, models, examples, answers, described, has_guarantee=has_guarantee)


def _rows(
    run: RealRun,
    models: Sequence[str],
    examples: Sequence[Example],
    answers: Sequence[ServedAnswer],
    described: str,
    *,
    has_guarantee: bool,
) -> tuple[list[str], list[Target]]:
    count = len(examples)
    small, large = (fmean(each.scores[index] for each in examples) for index in (0, 1))
    own, top = (fmean(each.costs[index] for each in examples) for index in (0, 1))
    quality, escalated = fmean(each.score for each in answers), fmean(each.by for each in answers)
    wasted = fmean(each.wasted[0] for each in examples)
    cost = (1.0 - escalated) * own + escalated * (top + (wasted if has_guarantee else 0.0))
    share = min(1.0, max(0.0, (cost - own) / (top - own))) if top > own else 1.0
    best = PopulationLoss(examples).best(run.max_loss)
    auroc = benefit_auroc(examples)
    table = [
        (models[0], small, own),
        (models[1], large, top),
        ("cascade", quality, cost),
        ("random", small + share * (large - small), cost),
        ("best", large - best.loss, top * (1.0 - best.saved)),
    ]
    lines = [
        # Where the file stands is of one machine.
        *(line for line in described.strip().splitlines() if not line.startswith("written to ")),
        f"{count} questions served, AUROC of the margin for the benefit of {models[1]}: {auroc:.2f}",
        f"{'':<32} {'right':>6} {'cost':>8} {'saved':>6}",
        *(f"{name:<32} {right:>6.3f} {price:>8.2f} {1.0 - price / top:>6.2f}" for name, right, price in table),
    ]
    saved = 1.0 - cost / top
    found = [Target("loss of the cascade against always the large model", run.max_loss, large - quality)]
    if auroc > INFORMATIVE and best.saved > 0.0:
        found.append(Target("of the best threshold's saving", MIN_SAVED, saved / best.saved, is_minimum=True))
    return lines, found


async def _models_of(urls: Sequence[str]) -> tuple[str, str]:
    names = []
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.get(f"{url}/v1/models") as answer:
                names.append(str((await answer.json())["data"][0]["id"]))
    if names[0] == names[1]:
        raise UnusableModels(f"both URLs serve {names[0]}; give one another name, as vLLM's --served-model-name does")
    return names[0], names[1]


def _read(path: Path) -> Iterator[Question]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found = json.loads(line)
            yield Question(str(found["question"]), str(found["answer"]))
        except (ValueError, KeyError, TypeError):
            raise UnusableModels(f"{path}: line {number} has no `question` and `answer`") from None


def _body(run: RealRun, question: Question) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": question.text}],
        "temperature": 0,
        "max_tokens": run.max_tokens,
        # What follows the first line is small talk, in which the answer is hard to find again.
        "stop": ["\n"],
    }


def _write_requests(path: Path, run: RealRun, questions: Sequence[Question], expected_share: float) -> None:
    lines = []
    for each in questions:
        # The draw has chosen the half already: its later digits decide here.
        is_shown = (each.draw * 1e6) % 1.0 < expected_share
        lines.append({"request": _body(run, each)} | ({"expected": each.answer} if is_shown else {}))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_config(run: RealRun, models: Sequence[str], folder: Path, *, is_calibrated: bool) -> Path:
    prices = (run.small_price, 1.0)
    entries: list[dict[str, Any]] = [
        {"model_name": model, "input_cost_per_token": 0.0, "output_cost_per_token": price}
        for model, price in zip(models, prices, strict=True)
    ]
    if is_calibrated:
        cascade = {"models": list(models), "calibration": str(folder / "auto.json")}
        entries.append({"model_name": CASCADE, "cascade": cascade | {"holdback": {"max_added_ttft_s": 60}}})
    path = folder / "hearth.yaml"
    document = {"discovery": {"static": {"pods": list(dict.fromkeys(run.urls))}}, "model_list": entries}
    path.write_text(json.dumps(document))
    return path


async def _command(*arguments: str) -> str:
    """Run an action of `hearth cascade`. Returns what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "cascade", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    if process.returncode not in (0, NO_GUARANTEE):
        raise UnusableModels(errors.decode().strip())
    return out.decode()


async def _serve(run: RealRun, models: Sequence[str], questions: Sequence[Question], port: int) -> list[ServedAnswer]:
    waiting, answers = iter(questions), list[ServedAnswer]()
    pattern = re.compile(run.pattern) if run.pattern else None

    async def send() -> None:
        for question in waiting:
            body = _body(run, question) | {"model": CASCADE}
            async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
                found = await answer.json()
                if answer.status != 200:
                    raise UnusableModels(f"the cascade answered {answer.status}: {found}")
                by = models.index(answer.headers["x-hearth-cascade-model"])
            text = str(found["choices"][0]["message"]["content"] or "")
            answers.append(ServedAnswer(by, expected_scores([text], question.answer, pattern)[0]))

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return answers

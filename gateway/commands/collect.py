"""`hearth cascade collect` (experimental): recorded requests to a labelled file, without a person who labels.

Each sampled request is sent to every model of the cascade, with log-probabilities; `cascade/calibration/labelling.py`
says how labels come about. Money and tokens are reserved before a request is sent. Prompts and answers are not written
unless asked for. The labelled file is written anew after every `WRITE_INTERVAL` rows, in one step.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from cascade.answer_comparison import (
    OUTCOMES,
    ComparisonVerdict,
    answers_agree,
    comparison_prompt,
    read_comparison,
)
from cascade.calibration.calibrate import CalibrationTarget
from cascade.calibration.examples import AnswerPricing, examples_of
from cascade.calibration.labelled_file import group_of, read_labelled
from cascade.calibration.labelling import (
    AUDIT_ERROR,
    MIN_AUDIT,
    TRUE_SOURCES,
    InvalidScores,
    JudgeAudit,
    LabelSource,
    agreeing,
    audit_bound,
    checked_scores,
    expected_scores,
    judged_outcomes,
    relative_scores,
    schema_scores,
)
from cascade.calibration.progress import label_progress
from cascade.calibration_file import ANY_BUCKET, QualityGuarantee, SignalStage
from cascade.models import Price
from cascade.signals.tokens import SIGNALS, TokenSignals, read_signals
from gateway.cascades.features import last_text, read_features
from gateway.commands.admin import NoRedirect
from tenancy.document import InvalidValue

WRITE_INTERVAL = 50
"""Rows between two versions of the labelled file."""

MAX_ROWS = 50_000
MAX_REQUEST_BYTES = 1 << 20
MAX_ANSWER_BYTES = 32 << 20
DEFAULT_ANSWER_TOKENS = 1_024
"""Reserved, and sent as `max_tokens`, where a request sets no limit of its own."""
CHARACTERS_PER_TOKEN = 3.0
"""For reservations: fewer than most tokenizers need, so that the estimate is on the high side."""
VERDICT_TOKENS = 8

SENT_FIELDS = frozenset(
    {
        *("messages", "temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens"),
        *("response_format", "tools", "tool_choice", "reasoning_effort", "frequency_penalty", "presence_penalty"),
    }
)
"""Fields of a recorded request that are sent; all others, such as `user`, stay here."""


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags of `collect`, beside those that it shares with `calibrate`."""
    parser.add_argument("--requests", metavar="FILE.jsonl", required=True, help="recorded requests, one a line")
    parser.add_argument("--url", required=True, help="of an OpenAI-compatible API, such as http://127.0.0.1:8080/v1")
    parser.add_argument("--models", metavar="MODEL,...", required=True, help="of the cascade, cheapest first")
    parser.add_argument("--out", metavar="FILE.jsonl", type=Path, required=True, help="labelled file to write")
    parser.add_argument("--api-key-file", metavar="FILE", type=Path, help="key of the API (default: none)")
    parser.add_argument("--sample", metavar="SHARE", type=float, default=1.0, help="share of the requests (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default 1)")
    parser.add_argument("--max-rows", metavar="N", type=int, default=1_000, help="at most so many (default 1,000)")
    parser.add_argument("--max-cost", metavar="MONEY", type=float, help="in the currency of the prices")
    parser.add_argument(
        "--max-tokens", metavar="N", type=int, default=2_000_000, help="of all prompts and answers (default 2,000,000)"
    )
    parser.add_argument("--price", metavar="MODEL=IN,OUT", action="append", default=[], help="of a token; repeatable")
    parser.add_argument("--config", metavar="FILE", help="configuration with the prices (default $HEARTH_CONFIG)")
    parser.add_argument("--scorer", metavar="JSON", help='command as a JSON list, such as ["python", "score.py"]')
    parser.add_argument("--scorer-timeout-s", metavar="SECONDS", type=float, default=30.0, help="default 30")
    parser.add_argument("--scorer-function", metavar="MODULE:NAME", help="Python function instead of a command")
    parser.add_argument("--judge-model", metavar="MODEL", help="compares answers that nothing else labels")
    parser.add_argument(
        "--audit", metavar="N", type=int, default=200, help="prompts with a true label that the judge sees too"
    )
    parser.add_argument("--store-prompts", action="store_true", help="write prompts into the file too")
    parser.add_argument("--window-tokens", metavar="N", type=int, default=48, help="held back (default 48)")
    parser.add_argument("--at-once", metavar="N", type=int, default=4, help="requests at a time (default 4)")
    parser.add_argument("--timeout-s", metavar="SECONDS", type=float, default=120.0, help="of a request (default 120)")
    parser.add_argument("--max-loss", metavar="SHARE", type=float, default=0.01, help="of the guarantee aimed at")
    parser.add_argument("--confidence", metavar="SHARE", type=float, default=0.95, help="of the guarantee aimed at")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One line of the recorded requests."""

    line: int
    body: Mapping[str, Any]
    """Of a chat completion."""
    expected: str | None = None
    bucket: str | None = None
    group: str | None = None


def read_requests(path: Path) -> Iterator[RecordedRequest]:
    """Yield the requests: a chat completion's body, or {"request": body, "expected", "bucket", "group"}.

    Raises `InvalidValue` with the line of what is neither.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if len(line) > MAX_REQUEST_BYTES:
                raise InvalidValue(f"{path}: line {number} has more than {MAX_REQUEST_BYTES:,} bytes")
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                raise InvalidValue(f"{path}: line {number} is no JSON") from None
            stated = found if isinstance(found, dict) and "request" in found else {"request": found}
            body = stated["request"]
            if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
                raise InvalidValue(
                    f"{path}: line {number} must be the body of a chat completion, or hold it as `request`"
                )
            texts = {name: stated.get(name) for name in ("expected", "bucket", "group")}
            if wrong := [name for name, value in texts.items() if value is not None and not isinstance(value, str)]:
                raise InvalidValue(f"{path}: line {number}: `{wrong[0]}` must be text")
            if texts["bucket"] == ANY_BUCKET:
                raise InvalidValue(f"{path}: line {number}: bucket `{ANY_BUCKET}` stands for any; name another")
            yield RecordedRequest(number, body, **texts)


@dataclass(frozen=True, slots=True)
class CollectedAnswer:
    """One model's answer."""

    text: str
    signals: TokenSignals
    input_tokens: int
    output_tokens: int


class AnswerFailed(Exception):  # noqa: N818 - an outcome of asking
    """A model gave no answer; its message says why, without text of the prompt."""


Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends the body of a chat completion and returns the response. Raises `AnswerFailed`."""


class ChatApi:
    """Chat completions of one OpenAI-compatible API. Follows no redirect and uses no proxy."""

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        """Raises `InvalidValue` for an invalid URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise InvalidValue("--url must be the base of an API, such as http://127.0.0.1:8080/v1")
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._timeout_s = timeout_s
        self._opener = build_opener(ProxyHandler({}), NoRedirect())

    def __call__(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the response. Raises `AnswerFailed`."""
        request = Request(self._url, json.dumps(body).encode(), self._headers)  # noqa: S310 - http or https
        try:
            with self._opener.open(request, timeout=self._timeout_s) as reply:
                found = json.loads(reply.read(MAX_ANSWER_BYTES))
        except HTTPError as error:
            raise AnswerFailed(f"{body['model']} answered with status {error.code}") from None
        except (URLError, OSError, ValueError) as error:
            raise AnswerFailed(f"{body['model']} gave no answer: {type(error).__name__}") from None
        if not isinstance(found, dict):
            raise AnswerFailed(f"{body['model']} gave no JSON object")
        return found


class CollectionBudget:
    """Money and tokens: reserved before a request is sent, settled by its usage."""

    def __init__(self, prices: Mapping[str, Price], max_cost: float, max_tokens: int) -> None:
        self._prices = prices
        self._max_cost = max_cost
        self._max_tokens = max_tokens
        self.cost = 0.0
        self.tokens = 0

    def reserve(self, model: str, input_tokens: int, output_tokens: int) -> bool:
        """Return whether this call fits; it is then charged as if it took all of this."""
        cost = self._cost(model, input_tokens, output_tokens)
        if self.cost + cost > self._max_cost or self.tokens + input_tokens + output_tokens > self._max_tokens:
            return False
        self.cost += cost
        self.tokens += input_tokens + output_tokens
        return True

    def settle(self, model: str, reserved: tuple[int, int], used: tuple[int, int]) -> None:
        """Replace a reservation of input and output tokens by what was used."""
        self.cost += self._cost(model, *used) - self._cost(model, *reserved)
        self.tokens += sum(used) - sum(reserved)

    def _cost(self, model: str, input_tokens: int, output_tokens: int) -> float:
        price = self._prices.get(model)
        return price.cost(cold_tokens=input_tokens, output_tokens=output_tokens) if price else 0.0


class BudgetSpent(Exception):  # noqa: N818 - ends a collection
    """The next call does not fit into the budget."""


class AnswerScorer:
    """The user's scorer: a command or a Python function."""

    def __init__(self, score: Callable[[dict[str, Any]], object]) -> None:
        self._score = score

    @classmethod
    def of_command(cls, words: str, timeout_s: float) -> AnswerScorer:
        """Return a scorer that runs a command. Raises `InvalidValue` unless it is a list of arguments."""
        try:
            command = json.loads(words)
        except ValueError:
            command = None
        if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
            raise InvalidValue('--scorer must be a JSON list of arguments, such as ["python", "score.py"]')

        def score(given: dict[str, Any]) -> object:
            done = subprocess.run(  # noqa: S603 - the operator's own command, without a shell
                command, input=json.dumps(given).encode(), capture_output=True, timeout=timeout_s, check=True
            )
            return json.loads(done.stdout)["scores"]

        return cls(score)

    @classmethod
    def of_function(cls, name: str) -> AnswerScorer:
        """Return a scorer that calls `MODULE:NAME`. Raises `InvalidValue` where that does not exist."""
        module, _, function = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidValue(f"--scorer-function {name}: {error}") from None
        return cls(found)

    def scores(self, given: dict[str, Any], models: Sequence[str]) -> tuple[float, ...]:
        """Return the scores by model. Raises `InvalidScores` for whatever goes wrong in the scorer."""
        try:
            return checked_scores(self._score(given), models)
        except InvalidScores:
            raise
        except subprocess.TimeoutExpired:
            raise InvalidScores("it took longer than --scorer-timeout-s") from None
        except Exception as error:  # noqa: BLE001 - code of the operator
            raise InvalidScores(f"it failed with {type(error).__name__}") from None


@dataclass(slots=True)
class CollectedRow:
    """One request, answered by all models."""

    request: RecordedRequest
    bucket: str
    answers: tuple[CollectedAnswer, ...]
    truth: tuple[float, ...] | None = None
    """True scores; None where no method gave them."""
    source: LabelSource | None = None
    agrees: tuple[bool, ...] = ()
    verdicts: tuple[int | None, ...] = ()
    """By model but the largest: 1 worse than it, -1 better, 0 alike; empty where the judge was not asked."""


@dataclass(slots=True)
class Collection:
    """Asks, labels and writes."""

    models: tuple[str, ...]
    ask: Ask
    budget: CollectionBudget
    scorer: AnswerScorer | None = None
    judge_model: str | None = None
    max_audited: int = 200
    window_tokens: int = 48
    store_prompts: bool = False
    at_once: int = 4
    rows: list[CollectedRow] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    audited: int = 0

    def add(self, request: RecordedRequest) -> None:
        """Ask all models and label their answers. Raises `BudgetSpent`; a failed model leaves no row."""
        body = self._body(request)
        reserved = self._reservation(body)
        taken = []
        for model in self.models:
            if not self.budget.reserve(model, *reserved):
                for other in taken:
                    self.budget.settle(other, reserved, (0, 0))
                raise BudgetSpent
            taken.append(model)
        answers = self._answers(body, reserved)
        if any(answer is None for answer in answers):
            return
        known = tuple(answer for answer in answers if answer is not None)
        features = read_features(json.dumps(request.body).encode())
        row = CollectedRow(request, request.bucket or features.bucket, known)
        texts = [answer.text for answer in known]
        row.agrees = agreeing(texts)
        self._label(row, texts, features.schema)
        self._judge(row, texts)
        self.rows.append(row)

    def _body(self, request: RecordedRequest) -> dict[str, Any]:
        body = {
            name: value for name, value in request.body.items() if name not in ("stream", "stream_options", "hearth")
        }
        body.setdefault("max_tokens", body.get("max_completion_tokens") or DEFAULT_ANSWER_TOKENS)
        return body | {"n": 1, "logprobs": True, "top_logprobs": 5}

    def _reservation(self, body: Mapping[str, Any]) -> tuple[int, int]:
        output_tokens = body["max_tokens"]
        is_count = isinstance(output_tokens, int) and not isinstance(output_tokens, bool) and output_tokens > 0
        prompt_tokens = int(len(json.dumps(body)) / CHARACTERS_PER_TOKEN) + 1
        return prompt_tokens, output_tokens if is_count else DEFAULT_ANSWER_TOKENS

    def _answers(self, body: Mapping[str, Any], reserved: tuple[int, int]) -> list[CollectedAnswer | None]:
        with ThreadPoolExecutor(max(1, min(self.at_once, len(self.models)))) as pool:
            found = list(pool.map(lambda model: self._answer({**body, "model": model}), self.models))
        for model, answer in zip(self.models, found, strict=True):
            used = (0, 0) if answer is None else (answer.input_tokens, answer.output_tokens)
            self.budget.settle(model, reserved, used)
        return found

    def _answer(self, body: Mapping[str, Any]) -> CollectedAnswer | None:
        try:
            response = self.ask(body)
            choice = response["choices"][0]
            text = choice["message"].get("content") or ""
            usage = response.get("usage") or {}
            tokens = [
                (float(each["logprob"]), [float(top["logprob"]) for top in each.get("top_logprobs") or ()])
                for each in ((choice.get("logprobs") or {}).get("content") or ())[: self.window_tokens]
            ]
            counts = (int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
        except AnswerFailed as failed:
            self.failures[str(failed)] += 1
            return None
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            self.failures[f"{body['model']} gave no chat completion"] += 1
            return None
        return CollectedAnswer(str(text), read_signals(tokens), *counts)

    def _label(self, row: CollectedRow, texts: list[str], schema: object) -> None:
        """Give the true label by the first method that applies."""
        request = row.request
        if self.scorer is not None:
            given = {
                "request": dict(request.body),
                "expected": request.expected,
                "answers": dict(zip(self.models, texts, strict=True)),
            }
            try:
                row.truth, row.source = self.scorer.scores(given, self.models), LabelSource.SCORER
            except InvalidScores as wrong:
                self.failures[f"scorer: {wrong}"] += 1
            else:
                return
        if request.expected is not None:
            row.truth, row.source = expected_scores(texts, request.expected), LabelSource.EXPECTED
        elif schema is not None and (found := schema_scores(texts, schema)) is not None:
            row.truth, row.source = found, LabelSource.SCHEMA

    def _judge(self, row: CollectedRow, texts: list[str]) -> None:
        """Ask the judge where nothing else labels, and for the audit."""
        if self.judge_model is None:
            return
        if row.truth is not None:
            if self.audited >= self.max_audited:
                return
            self.audited += 1
        question = last_text(json.dumps(row.request.body).encode())
        row.verdicts = tuple(
            0 if agrees else self._verdict(question, text, texts[-1])
            for agrees, text in zip(row.agrees, texts[:-1], strict=True)
        )

    def _verdict(self, question: str, ours: str, largest: str) -> int | None:
        """Return 1 where the judge calls `ours` worse in both orders, -1 where better, else 0; None for no verdict."""
        found = []
        for first, second, sign in ((ours, largest, 1), (largest, ours, -1)):
            prompt = comparison_prompt(question, first, second)
            reserved = (int(len(prompt) / CHARACTERS_PER_TOKEN) + 16, VERDICT_TOKENS)
            judge = self.judge_model or ""
            if not self.budget.reserve(judge, *reserved):
                raise BudgetSpent
            used = (0, 0)
            try:
                response = self.ask(
                    {
                        "model": judge,
                        "messages": [{"role": "user", "content": prompt}],
                        "max_tokens": VERDICT_TOKENS,
                        "temperature": 0,
                    }
                )
                usage = response.get("usage") or {}
                used = (int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
                verdict = read_comparison(str(response["choices"][0]["message"].get("content") or ""))
            except AnswerFailed as failed:
                self.failures[f"judge: {failed}"] += 1
                return None
            except (KeyError, IndexError, TypeError, ValueError, AttributeError):
                self.failures["judge gave no chat completion"] += 1
                return None
            finally:
                self.budget.settle(judge, reserved, used)
            if verdict is None:
                return None
            found.append(1 if verdict is ComparisonVerdict.DIFFERENT else sign * OUTCOMES[verdict])
        return found[0] if found[0] == found[1] else 0

    # -- what was collected ------------------------------------------------------------------------------------------

    def audit(self) -> JudgeAudit:
        """Return the judge's verdicts beside true labels."""
        found = JudgeAudit()
        for row in self.rows:
            if row.truth is None or row.source not in TRUE_SOURCES:
                continue
            for index, verdict in enumerate(row.verdicts):
                if verdict is not None and not row.agrees[index]:
                    found = found.with_verdict(verdict, row.truth[-1] - row.truth[index])
        return found

    def labelled(self) -> Iterator[tuple[CollectedRow, tuple[float, ...], LabelSource]]:
        """Yield the rows that have a label, with scores that the judge's errors are folded into."""
        audit = self.audit()
        bound = audit_bound(audit) if audit.is_enough else None
        for row in self.rows:
            if row.truth is not None and row.source is not None:
                yield row, row.truth, row.source
            elif all(row.agrees):
                yield row, (1.0,) * len(self.models), LabelSource.AGREEMENT
            elif bound is not None and row.verdicts:
                outcomes = judged_outcomes(row.verdicts, bound)
                if outcomes is not None:
                    exact = (0.0 if agrees else each for agrees, each in zip(row.agrees, outcomes, strict=True))
                    yield row, relative_scores(tuple(exact)), LabelSource.JUDGE

    def lines(self) -> Iterator[str]:
        """Yield the lines of the labelled file."""
        for row, scores, source in self.labelled():
            yield json.dumps(self._line(row, scores, source), ensure_ascii=False)

    def _line(self, row: CollectedRow, scores: tuple[float, ...], source: LabelSource) -> dict[str, Any]:
        key = row.request.group or last_text(json.dumps(row.request.body).encode())
        line: dict[str, Any] = {
            "bucket": row.bucket,
            "group": str(group_of(key)),
            "input_tokens": row.answers[0].input_tokens,
            "label": source.value,
        }
        if self.store_prompts:
            line["prompt"] = last_text(json.dumps(row.request.body).encode())
        answers: dict[str, Any] = {}
        for index, (model, answer) in enumerate(zip(self.models, row.answers, strict=True)):
            entry: dict[str, Any] = {"score": scores[index], "output_tokens": answer.output_tokens}
            if index + 1 < len(self.models):
                if answer.signals.tokens:
                    entry |= {name: answer.signals.value_of(name) for name in SIGNALS}
                entry["text_outcome"] = 0 if answers_agree(answer.text, row.answers[index + 1].text) else 1
                # The judge compares with the largest model; with the next one only where that is the same. In operation
                # it is asked where the texts differ.
                if row.verdicts and index + 2 == len(self.models) and row.verdicts[index] is not None:
                    entry["judge_outcome"] = row.verdicts[index] if entry["text_outcome"] else 0
            answers[model] = entry
        return line | {"rungs": answers}


def write_labels(collection: Collection, out: Path) -> int:
    """Write the labelled file in one step. Returns its number of rows; without any, nothing is written."""
    lines = list(collection.lines())
    if lines:
        beside = out.with_name(f"{out.name}.tmp")
        beside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        beside.chmod(0o600)
        beside.replace(out)
    return len(lines)


def describe_progress(collection: Collection, guarantee: QualityGuarantee, prices: Mapping[str, Price]) -> str:
    """Return the progress towards the guarantee, by the labels so far, as lines of text."""
    sources = Counter(source.value for _, _, source in collection.labelled())
    target = CalibrationTarget(collection.models, "margin", SignalStage.WINDOW)
    lines = list(collection.lines())
    examples = []
    if lines:
        labelled = read_labelled("\n".join(lines).encode(), collection.models)
        if "margin" in labelled.signals:
            pricing = AnswerPricing(prices, SignalStage.WINDOW, collection.window_tokens)
            examples = examples_of(labelled, "margin", pricing)
    shown = [str(label_progress(examples, target, guarantee))]
    shown.append(
        f"answered {len(collection.rows):,}, labelled by "
        + (", ".join(f"{name} {count:,}" for name, count in sources.items()) or "nothing")
        + f"; cost {collection.budget.cost:.4g}, {collection.budget.tokens:,} tokens"
    )
    if collection.judge_model is not None:
        audit = collection.audit()
        if audit.is_enough:
            shown.append(
                f"judge: missed {audit.missed:,} of {audit.not_worse:,} not called worse, so each counts as a loss of "
                f"{audit_bound(audit):.3f}; calibrate with a confidence {AUDIT_ERROR:g} above the one you want"
            )
        else:
            shown.append(
                f"judge: {audit.not_worse:,} of {MIN_AUDIT} audited answers; until then its verdicts are not used. "
                "Add lines with `expected`, or a scorer"
            )
    shown += [f"{count:,} x {reason}" for reason, count in collection.failures.most_common(5)]
    return "".join(f"{line}\n" for line in shown)


def run(arguments: Namespace, prices: Mapping[str, Price], models: Sequence[str]) -> int:
    """Collect. Returns 0 where the labels carry the guarantee, 3 where they do not yet.

    Raises `InvalidValue` for wrong flags and requests, `OSError` for files.
    """
    _check(arguments)
    key = arguments.api_key_file.read_text().strip() if arguments.api_key_file else None
    called = (*models, *filter(None, [arguments.judge_model]))
    if arguments.max_cost is not None and (missing := [model for model in called if model not in prices]):
        raise InvalidValue(f"--max-cost needs the price of {missing[0]}: give --price or --config")
    scorer = AnswerScorer.of_command(arguments.scorer, arguments.scorer_timeout_s) if arguments.scorer else None
    if arguments.scorer_function:
        scorer = AnswerScorer.of_function(arguments.scorer_function)
    max_cost = inf if arguments.max_cost is None else arguments.max_cost
    collection = Collection(
        models=tuple(models),
        ask=ChatApi(arguments.url, key, arguments.timeout_s),
        budget=CollectionBudget(prices, max_cost, arguments.max_tokens),
        scorer=scorer,
        judge_model=arguments.judge_model,
        max_audited=arguments.audit,
        window_tokens=arguments.window_tokens,
        store_prompts=arguments.store_prompts,
        at_once=arguments.at_once,
    )
    guarantee = QualityGuarantee(arguments.max_loss, arguments.confidence)
    random = Random(arguments.seed)  # noqa: S311 - chooses a sample
    try:
        for request in read_requests(Path(arguments.requests)):
            if random.random() >= arguments.sample:
                continue
            if len(collection.rows) >= min(arguments.max_rows, MAX_ROWS):
                break
            before = len(collection.rows)
            collection.add(request)
            if len(collection.rows) > before and len(collection.rows) % WRITE_INTERVAL == 0:
                write_labels(collection, arguments.out)
                sys.stdout.write(describe_progress(collection, guarantee, prices))
                sys.stdout.flush()
    except BudgetSpent:
        sys.stdout.write("stopped: the next request does not fit into --max-cost or --max-tokens\n")
    except KeyboardInterrupt:
        sys.stdout.write("stopped\n")
    rows = write_labels(collection, arguments.out)
    progress = describe_progress(collection, guarantee, prices)
    sys.stdout.write(progress)
    if rows:
        sys.stdout.write(f"{rows:,} labelled rows in {arguments.out}\n")
    return 0 if "enough for the guarantee" in progress else 3


def _check(arguments: Namespace) -> None:
    for flag, share in (("--sample", arguments.sample), ("--max-loss", arguments.max_loss)):
        if not 0.0 < share <= 1.0:
            raise InvalidValue(f"{flag} must be above 0 and at most 1")
    if not 0.0 < arguments.confidence < 1.0:
        raise InvalidValue("--confidence must be between 0 and 1")
    if arguments.scorer and arguments.scorer_function:
        raise InvalidValue("--scorer conflicts with --scorer-function; set only one")
    for flag, number in (
        ("--max-rows", arguments.max_rows),
        ("--max-tokens", arguments.max_tokens),
        ("--at-once", arguments.at_once),
        ("--window-tokens", arguments.window_tokens),
    ):
        if number < 1:
            raise InvalidValue(f"{flag} must be 1 or more")

"""`hearth cascade collect`: recorded requests to a labelled file, without a person who labels.

Each sampled request is sent to every model of the cascade with log-probabilities, through the gateway and under the
policy of the key's tenant; `cascade/calibration/labelling.py` says how labels come about. Money and tokens are reserved
before a request is sent. Neither prompts nor answers are written unless asked for. Rows are appended as they come, so
that a collection that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from cascade.answer_comparison import ComparisonVerdict, comparison_prompt, outcome_of_orders, read_comparison
from cascade.calibration.calibrate import CalibrationTarget
from cascade.calibration.examples import AnswerPricing, examples_of
from cascade.calibration.label_errors import without_judged
from cascade.calibration.labelled_file import read_labelled
from cascade.calibration.labelling import (
    TRUE_SOURCES,
    CollectedAnswer,
    CollectedRow,
    InvalidScores,
    LabelSource,
    expected_scores,
    known_losses,
)
from cascade.calibration.progress import LabelProgress, label_progress
from cascade.calibration.report import describe_labels
from cascade.calibration_file import ANY_BUCKET, QualityGuarantee, SignalStage
from cascade.models import Price
from gateway.cascades.answer_scorer import AnswerScorer, read_command, scorer_input
from gateway.cascades.collected_answers import read_answer, text_outcomes
from gateway.cascades.features import last_text, read_features
from gateway.commands.admin import NoRedirect
from routing.request import Api
from tenancy.document import InvalidValue

PROGRESS_INTERVAL = 50
"""Rows between two reports of progress; of many rows a tenth."""

MAX_ROWS = 50_000
MAX_REQUEST_BYTES = 1 << 20
MAX_ANSWER_BYTES = 32 << 20
DEFAULT_ANSWER_TOKENS = 1_024
"""Reserved, and sent as `max_tokens`, where a request sets no limit of its own."""
CHARACTERS_PER_TOKEN = 3.0
"""For reservations: fewer than most tokenizers need, so that the estimate is on the high side."""
VERDICT_TOKENS = 8
TOP_LOGPROBS = 5
ATTEMPTS = 3
"""Of one call, where the gateway answers 429 or 503."""
MAX_RETRY_AFTER_S = 30.0

SENT_FIELDS = frozenset(
    {
        *("messages", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
        *("max_tokens", "max_completion_tokens", "response_format", "tools", "tool_choice", "reasoning_effort"),
        *("frequency_penalty", "presence_penalty", "chat_template_kwargs"),
    }
)
"""Fields of a recorded request that are sent; all others, such as `user`, stay here."""


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags of `collect`, beside those that it shares with `calibrate`."""
    parser.add_argument("--requests", metavar="FILE.jsonl", required=True, help="recorded requests, one a line")
    parser.add_argument("--url", required=True, help="of the gateway's API, such as http://127.0.0.1:8080/v1")
    parser.add_argument("--models", metavar="MODEL,...", required=True, help="of the cascade, cheapest first")
    parser.add_argument(
        "--out", metavar="FILE.jsonl", type=Path, required=True, help="labelled file to write, or to append to"
    )
    parser.add_argument("--api-key-file", metavar="FILE", type=Path, help="key of the API (default: none)")
    parser.add_argument("--sample", metavar="SHARE", type=float, default=1.0, help="share of the requests (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default 1)")
    parser.add_argument("--max-rows", metavar="N", type=int, default=1_000, help="in the file (default 1,000)")
    parser.add_argument("--max-cost", metavar="MONEY", type=float, help="of this run, in the currency of the prices")
    parser.add_argument(
        "--max-tokens", metavar="N", type=int, default=2_000_000, help="of prompts and answers (default 2,000,000)"
    )
    parser.add_argument("--price", metavar="MODEL=IN,OUT", action="append", default=[], help="of a token; repeatable")
    parser.add_argument("--config", metavar="FILE", help="configuration with the prices (default $HEARTH_CONFIG)")
    parser.add_argument("--scorer", metavar="JSON", help='command as a JSON list, such as ["python", "score.py"]')
    parser.add_argument("--scorer-function", metavar="MODULE:NAME", help="Python function instead of a command")
    parser.add_argument(
        "--unit-test", metavar="JSON", help='command that runs unit tests, such as ["python", "-I", "-"]'
    )
    parser.add_argument("--scorer-timeout-s", metavar="SECONDS", type=float, default=30.0, help="default 30")
    parser.add_argument(
        "--answer-pattern", metavar="REGEX", help="what is compared of an answer: its last match (default: all of it)"
    )
    parser.add_argument("--judge-model", metavar="MODEL", help="compares answers that nothing else labels")
    parser.add_argument(
        "--audit", metavar="N", type=int, default=200, help="prompts with a true label that the judge sees too"
    )
    parser.add_argument("--store-prompts", action="store_true", help="write prompts into the file too")
    parser.add_argument(
        "--stage",
        choices=(SignalStage.WINDOW.value, SignalStage.WHOLE.value),
        default=SignalStage.WINDOW.value,
        help="of the signals (default window)",
    )
    parser.add_argument("--window-tokens", metavar="N", type=int, default=48, help="held back (default 48)")
    parser.add_argument("--at-once", metavar="N", type=int, default=4, help="requests at a time (default 4)")
    parser.add_argument("--timeout-s", metavar="SECONDS", type=float, default=120.0, help="of a call (default 120)")
    parser.add_argument("--max-loss", metavar="SHARE", type=float, default=0.01, help="aimed at (default 0.01)")
    parser.add_argument("--confidence", metavar="SHARE", type=float, default=0.95, help="aimed at (default 0.95)")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One line of the recorded requests."""

    line: int
    body: Mapping[str, Any]
    """Of a chat completion."""
    expected: str | None = None
    unit_test: str | None = None
    bucket: str | None = None
    group: str | None = None

    @property
    def encoded(self) -> bytes:
        """The body as JSON."""
        return json.dumps(self.body).encode()


def read_requests(path: Path) -> Iterator[RecordedRequest]:
    """Yield the requests: a chat completion's body, or {"request": body, "expected", "unit_test", "bucket", "group"}.

    Raises `InvalidValue` with the line of what is neither.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _read_request(path, number, line)


def _read_request(path: Path, number: int, line: bytes) -> RecordedRequest:
    if len(line) > MAX_REQUEST_BYTES:
        raise InvalidValue(f"{path}: line {number} has more than {MAX_REQUEST_BYTES:,} bytes")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidValue(f"{path}: line {number} is not JSON") from None
    stated = found if isinstance(found, dict) and "request" in found else {"request": found}
    body = stated["request"]
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise InvalidValue(f"{path}: line {number} must be the body of a chat completion, or hold it as `request`")
    if body.get("n") not in (None, 1):
        raise InvalidValue(f"{path}: line {number}: a cascade judges single answers, so `n` must be 1")
    texts = {name: stated.get(name) for name in ("expected", "unit_test", "bucket", "group")}
    if wrong := [name for name, value in texts.items() if value is not None and not isinstance(value, str)]:
        raise InvalidValue(f"{path}: line {number}: `{wrong[0]}` must be text")
    if texts["bucket"] == ANY_BUCKET:
        raise InvalidValue(f"{path}: line {number}: bucket `{ANY_BUCKET}` stands for any; name another")
    return RecordedRequest(number, body, **texts)


class AnswerFailed(Exception):  # noqa: N818 - an outcome of a call
    """A model gave no answer; its message says why, without text of the prompt."""

    def __init__(self, words: str, *, is_charged: bool = True) -> None:
        """`is_charged`: whether the call may have cost something all the same."""
        super().__init__(words)
        self.is_charged = is_charged


Ask = Callable[[Mapping[str, Any]], bytes]
"""Sends the body of a chat completion and returns the response's body. Raises `AnswerFailed`."""


class ChatApi:
    """Chat completions of one API. Follows no redirect, uses no proxy, and waits where the gateway asks for that."""

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        """Raises `InvalidValue` for an invalid URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise InvalidValue("--url must be the base of an API, such as http://127.0.0.1:8080/v1")
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._timeout_s = timeout_s
        self._opener = build_opener(ProxyHandler({}), NoRedirect())

    def __call__(self, body: Mapping[str, Any]) -> bytes:
        """Return the response's body. Raises `AnswerFailed`."""
        request = Request(self._url, json.dumps(body).encode(), self._headers)  # noqa: S310 - http or https
        for left in reversed(range(ATTEMPTS)):
            try:
                with self._opener.open(request, timeout=self._timeout_s) as reply:
                    return bytes(reply.read(MAX_ANSWER_BYTES))
            except HTTPError as error:
                if error.code not in (429, 503) or not left:
                    raise AnswerFailed(f"{body['model']} answered with status {error.code}", is_charged=False) from None
                threading.Event().wait(_retry_after_s(error.headers.get("retry-after")))
            except (HTTPException, URLError, OSError) as error:
                raise AnswerFailed(f"{body['model']} gave no answer: {type(error).__name__}") from None
        raise AssertionError


def _retry_after_s(stated: str | None) -> float:
    try:
        return min(MAX_RETRY_AFTER_S, max(0.0, float(stated or 1.0)))
    except ValueError:
        return 1.0


class BudgetSpent(Exception):  # noqa: N818 - ends a collection
    """The next call does not fit into the budget."""


class CollectionBudget:
    """Money and tokens: reserved before a call is sent, settled by its usage. May be used from any thread."""

    def __init__(self, prices: Mapping[str, Price], max_cost: float, max_tokens: int) -> None:
        self._prices = prices
        self._max_cost = max_cost
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self.cost = 0.0
        self.tokens = 0

    def reserve(self, models: Sequence[str], input_tokens: int, output_tokens: int) -> None:
        """Charge one call of each of these models as if it took all of this. Raises `BudgetSpent`."""
        cost = sum(self._cost(model, input_tokens, output_tokens) for model in models)
        tokens = len(models) * (input_tokens + output_tokens)
        with self._lock:
            if self.cost + cost > self._max_cost or self.tokens + tokens > self._max_tokens:
                raise BudgetSpent
            self.cost += cost
            self.tokens += tokens

    def settle(self, model: str, reserved: tuple[int, int], used: tuple[int, int]) -> None:
        """Replace a reservation of input and output tokens by what was used."""
        with self._lock:
            self.cost += self._cost(model, *used) - self._cost(model, *reserved)
            self.tokens += sum(used) - sum(reserved)

    def _cost(self, model: str, input_tokens: int, output_tokens: int) -> float:
        price = self._prices.get(model)
        return price.cost(cold_tokens=input_tokens, output_tokens=output_tokens) if price else 0.0


@dataclass(slots=True)
class Collector:
    """Asks all models, and labels their answers. `collect` may be called from several threads."""

    models: tuple[str, ...]
    ask: Ask
    budget: CollectionBudget
    scorer: AnswerScorer | None = None
    unit_tests: AnswerScorer | None = None
    answer_pattern: re.Pattern[str] | None = None
    judge_model: str | None = None
    max_audited: int = 200
    stage: SignalStage = SignalStage.WINDOW
    window_tokens: int = 48
    store_prompts: bool = False
    failures: Counter[str] = field(default_factory=Counter)
    """Calls without an answer, by reason. A request that a model gave no answer to leaves no row."""
    audited: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def collect(self, request: RecordedRequest) -> CollectedRow | None:
        """Ask all models; return the labelled row, None where one gave no answer. Raises `BudgetSpent`."""
        body = self._body(request)
        reserved = _reservation(body)
        self.budget.reserve(self.models, *reserved)
        answers = self._answers(body, reserved)
        if len(answers) < len(self.models):
            return None
        features = read_features(request.encoded)
        row = CollectedRow(request.bucket or features.bucket, answers, text_outcomes=text_outcomes(answers))
        row.plain = {"stage": self.stage.value, "request": request.line}
        if self.store_prompts:
            row.plain["prompt"] = last_text(request.encoded)
        texts = [answer.text for answer in answers]
        row.losses = known_losses(texts, features.schema, self.answer_pattern)
        row.scores, row.source = self._true_label(request, texts)
        self._judge(row, request)
        return row

    def _body(self, request: RecordedRequest) -> dict[str, Any]:
        body = {name: value for name, value in request.body.items() if name in SENT_FIELDS}
        if body.get("stream") is True:
            body["stream_options"] = {"include_usage": True}
        body.setdefault("max_tokens", body.get("max_completion_tokens") or DEFAULT_ANSWER_TOKENS)
        return body | {"logprobs": True, "top_logprobs": TOP_LOGPROBS}

    def _answers(self, body: Mapping[str, Any], reserved: tuple[int, int]) -> tuple[CollectedAnswer, ...]:
        """Return the answers of all models, or those before the first that gave none."""
        answers: list[CollectedAnswer] = []
        for at, model in enumerate(self.models):
            answer = self._answer({**body, "model": model}, reserved)
            if answer is None:
                for unasked in self.models[at + 1 :]:
                    self.budget.settle(unasked, reserved, (0, 0))
                break
            answers.append(answer)
        return tuple(answers)

    def _answer(self, body: Mapping[str, Any], reserved: tuple[int, int]) -> CollectedAnswer | None:
        used, answer, model = (0, 0), None, body["model"]
        try:
            response = self.ask(body)
            answer = read_answer(
                Api.CHAT,
                response,
                stream=body.get("stream") is True,
                stage=self.stage,
                window_tokens=self.window_tokens,
            )
            if answer is None:
                self._fail(f"{model} gave no chat completion")
            else:
                # A response without usage has cost what was reserved, as far as can be known.
                used = (answer.input_tokens, answer.output_tokens) if answer.input_tokens else reserved
        except AnswerFailed as failed:
            used = reserved if failed.is_charged else used
            self._fail(str(failed))
        finally:
            self.budget.settle(model, reserved, used)
        return answer

    def _fail(self, reason: str) -> None:
        with self._lock:
            self.failures[reason] += 1

    def _true_label(
        self, request: RecordedRequest, texts: Sequence[str]
    ) -> tuple[tuple[float, ...] | None, LabelSource]:
        """Return true scores by the first method that applies; None where none does."""
        given = scorer_input(request.body, self.models, texts, request.expected)
        if self.scorer is not None and (scores := self._scores(self.scorer, given)) is not None:
            return scores, LabelSource.SCORER
        if request.expected is not None:
            return expected_scores(texts, request.expected, self.answer_pattern), LabelSource.EXPECTED
        if self.unit_tests is not None and request.unit_test is not None:
            scores = self._scores(self.unit_tests, given | {"unit_test": request.unit_test})
            if scores is not None:
                return scores, LabelSource.UNIT_TEST
        return None, LabelSource.NONE

    def _scores(self, scorer: AnswerScorer, given: dict[str, Any]) -> tuple[float, ...] | None:
        try:
            return scorer.scores(given, self.models)
        except InvalidScores as wrong:
            self._fail(f"scorer: {wrong}")
            return None

    def _judge(self, row: CollectedRow, request: RecordedRequest) -> None:
        """Ask the judge about answers whose loss nothing else shows, and for the audit."""
        unknown = [loss is None for loss in row.losses]
        if self.judge_model is None:
            return
        if row.source in TRUE_SOURCES:
            with self._lock:
                if self.audited >= self.max_audited:
                    return
                self.audited += any(unknown)
        row.is_for_judge = True
        if not any(unknown):
            return
        question, reference = last_text(request.encoded), row.answers[-1].text
        row.verdicts = tuple(
            self._verdict(question, answer.text, reference) if is_unknown else None
            for answer, is_unknown in zip(row.answers[:-1], unknown, strict=True)
        )

    def _verdict(self, question: str, ours: str, reference: str) -> int | None:
        """Return the outcome of both orders, as `outcome_of_orders` does."""
        return outcome_of_orders(
            self._ask_judge(comparison_prompt(question, ours, reference)),
            self._ask_judge(comparison_prompt(question, reference, ours)),
        )

    def _ask_judge(self, prompt: str) -> ComparisonVerdict | None:
        model = self.judge_model or ""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": VERDICT_TOKENS,
            "temperature": 0,
        }
        reserved, used = _reservation(body), (0, 0)
        try:
            self.budget.reserve((model,), *reserved)
        except BudgetSpent:
            self._fail("judge: no budget left")
            return None
        try:
            answer = read_answer(Api.CHAT, self.ask(body), stream=False, stage=SignalStage.WHOLE, window_tokens=1)
            if answer is None:
                return None
            used = (answer.input_tokens, answer.output_tokens) if answer.input_tokens else reserved
            return read_comparison(answer.text)
        except AnswerFailed as failed:
            used = reserved if failed.is_charged else used
            self._fail(f"judge: {failed}")
            return None
        finally:
            self.budget.settle(model, reserved, used)


def _reservation(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return prompt and answer tokens, rather too many."""
    output_tokens = body["max_tokens"]
    is_count = isinstance(output_tokens, int) and not isinstance(output_tokens, bool) and output_tokens > 0
    prompt_tokens = int(len(json.dumps(body)) / CHARACTERS_PER_TOKEN) + 1
    return prompt_tokens, output_tokens if is_count else DEFAULT_ANSWER_TOKENS


class GroupNames:
    """Names of groups: the line of the first request with the same prompt or `group`. Show nothing of a prompt."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def name(self, request: RecordedRequest) -> str:
        """Return the group of a request; called once for each, in their order."""
        key = f"group {request.group}" if request.group is not None else f"text {last_text(request.encoded)}"
        return self._first.setdefault(key, f"line {request.line}")


def run(arguments: Namespace, prices: Mapping[str, Price], models: Sequence[str]) -> int:
    """Collect. Returns 0 where the labels carry the guarantee, 3 where they do not yet.

    Raises `InvalidValue` for wrong flags and requests, `InvalidLabelledFile` for a wrong file, `OSError` for files.
    """
    _check(arguments)
    called = (*models, *filter(None, [arguments.judge_model]))
    if arguments.max_cost is not None and (missing := [model for model in called if model not in prices]):
        raise InvalidValue(f"--max-cost needs the price of {missing[0]}: give --price or --config")
    collector = _collector(arguments, prices, models)
    guarantee = QualityGuarantee(arguments.max_loss, arguments.confidence)
    file = LabelFile(arguments.out)
    rows, next_report = 0, PROGRESS_INTERVAL
    try:
        for row in _rows(arguments, collector, file.requests):
            file.append(row.line(models))
            rows += 1
            if rows == next_report:
                next_report += max(PROGRESS_INTERVAL, (rows + len(file.requests)) // 10)
                sys.stdout.write(describe_progress(arguments.out, collector, guarantee, prices)[0])
                sys.stdout.flush()
    except BudgetSpent:
        sys.stdout.write("stopped: the next request does not fit into --max-cost or --max-tokens\n")
    except KeyboardInterrupt:
        sys.stdout.write("stopped\n")
    shown, progress = describe_progress(arguments.out, collector, guarantee, prices)
    sys.stdout.write(f"{shown}{rows:,} rows more in {arguments.out}\n")
    return 0 if progress.is_enough else 3


def _collector(arguments: Namespace, prices: Mapping[str, Price], models: Sequence[str]) -> Collector:
    key = arguments.api_key_file.read_text().strip() if arguments.api_key_file else None
    scorer = None
    if arguments.scorer_function:
        scorer = AnswerScorer.of_function(arguments.scorer_function)
    elif arguments.scorer:
        scorer = AnswerScorer.of_command(_command("--scorer", arguments.scorer), arguments.scorer_timeout_s)
    unit_tests = None
    if arguments.unit_test:
        unit_tests = AnswerScorer.of_unit_tests(
            _command("--unit-test", arguments.unit_test), arguments.scorer_timeout_s
        )
    try:
        pattern = re.compile(arguments.answer_pattern) if arguments.answer_pattern else None
    except re.error as error:
        raise InvalidValue(f"--answer-pattern: {error}") from None
    return Collector(
        models=tuple(models),
        ask=ChatApi(arguments.url, key, arguments.timeout_s),
        budget=CollectionBudget(
            prices, inf if arguments.max_cost is None else arguments.max_cost, arguments.max_tokens
        ),
        scorer=scorer,
        unit_tests=unit_tests,
        answer_pattern=pattern,
        judge_model=arguments.judge_model,
        max_audited=arguments.audit,
        stage=SignalStage(arguments.stage),
        window_tokens=arguments.window_tokens,
        store_prompts=arguments.store_prompts,
    )


def _command(flag: str, words: str) -> list[str]:
    try:
        return read_command(json.loads(words))
    except (ValueError, InvalidValue):
        raise InvalidValue(f'{flag} must be a JSON list of arguments, such as ["python", "score.py"]') from None


def _rows(arguments: Namespace, collector: Collector, done: frozenset[int]) -> Iterator[CollectedRow]:
    """Yield the rows of the sample that are not in the file yet, in the order of the requests. Raises `BudgetSpent`."""
    wanted = min(arguments.max_rows, MAX_ROWS) - len(done)
    pool = ThreadPoolExecutor(arguments.at_once)
    waiting: deque[tuple[str, Future[CollectedRow | None]]] = deque()
    try:
        for group, request in _sample(arguments, done):
            if len(waiting) >= arguments.at_once and (row := _ended(waiting)) is not None:
                wanted -= 1
                yield row
            # What is waiting may all become rows.
            while waiting and len(waiting) >= wanted:
                if (row := _ended(waiting)) is not None:
                    wanted -= 1
                    yield row
            if wanted <= 0:
                break
            waiting.append((group, pool.submit(collector.collect, request)))
        while waiting:
            if (row := _ended(waiting)) is not None:
                yield row
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _ended(waiting: deque[tuple[str, Future[CollectedRow | None]]]) -> CollectedRow | None:
    group, future = waiting.popleft()
    row = future.result()
    if row is not None:
        row.group = group
    return row


def _sample(arguments: Namespace, done: frozenset[int]) -> Iterator[tuple[str, RecordedRequest]]:
    """Yield the sampled requests with the names of their groups."""
    random, names = Random(arguments.seed), GroupNames()  # noqa: S311 - chooses a sample
    for request in read_requests(Path(arguments.requests)):
        group = names.name(request)
        if random.random() < arguments.sample and request.line not in done:
            yield group, request


class LabelFile:
    """The labelled file, readable by its owner only. Holds what was collected before."""

    def __init__(self, path: Path) -> None:
        """Raises `InvalidValue` where the file is no collected one."""
        self._path = path
        self.requests: frozenset[int] = frozenset(self._requests())

    def append(self, line: str) -> None:
        """Add one line."""
        if not self._path.exists():
            self._path.touch(mode=0o600)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def _requests(self) -> Iterator[int]:
        if not self._path.exists():
            return
        for number, line in enumerate(self._path.read_bytes().splitlines(), start=1):
            try:
                yield int(json.loads(line)["request"])
            except (ValueError, KeyError, TypeError):
                raise InvalidValue(
                    f"{self._path}: line {number} was not written by collect; name another --out"
                ) from None


def describe_progress(
    path: Path, collector: Collector, guarantee: QualityGuarantee, prices: Mapping[str, Price]
) -> tuple[str, LabelProgress]:
    """Return the progress towards the guarantee, by the labels in the file, as lines of text and as values."""
    signal = "margin"
    target = CalibrationTarget(collector.models, signal, collector.stage)
    if path.exists() and path.stat().st_size:
        labelled = without_judged(read_labelled(path.read_bytes(), collector.models), guarantee)
        pricing = AnswerPricing(prices, collector.stage, collector.window_tokens)
        examples = examples_of(labelled, signal, pricing) if signal in labelled.signals else []
        labels = labelled.labels
    else:
        examples, labels = [], None
    error = labels.error if labels else 0.0
    if guarantee.confidence + error >= 1.0:
        raise InvalidValue(f"--confidence {guarantee.confidence:g} is more than labels of a judge carry: {1 - error:g}")
    progress = label_progress(examples, target, guarantee, error)
    shown = [str(progress), f"spent {collector.budget.cost:.4g}, {collector.budget.tokens:,} tokens"]
    shown += [f"{count:,} x {reason}" for reason, count in collector.failures.most_common(5)]
    words = "".join(f"{line}\n" for line in shown)
    return words + (describe_labels(labels, collector.models) if labels else ""), progress


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

"""`hearth cascade collect`: recorded requests, models that answer by a rule, labels, a bounded budget, and the file."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cascade.calibration.labelled_file import read_labelled
from cascade.models import Price
from gateway.cli import main
from gateway.commands.collect import (
    AnswerFailed,
    AnswerScorer,
    BudgetSpent,
    Collection,
    CollectionBudget,
    RecordedRequest,
    read_requests,
)
from tenancy.document import InvalidValue

MODELS = ("small", "large")
CANARY = "canary-7f3a"


def chat(text: str, *, sure: float = 0.9) -> dict[str, Any]:
    """A response with log-probabilities."""
    token = {"logprob": -0.1, "top_logprobs": [{"logprob": -0.1}, {"logprob": -0.1 - 3 * sure}]}
    return {
        "choices": [{"message": {"content": text}, "logprobs": {"content": [token] * 4}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 4},
    }


class Models:
    """Models and a judge that answer by rules; takes down what was sent."""

    def __init__(self, *, missed: float = 0.0) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self._missed = missed
        self._random = Random(1)
        self._lock = threading.Lock()

    def __call__(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            self.sent.append(body)
        question = body["messages"][-1]["content"]
        if body["model"] == "judge":
            first = question.partition("First answer:\n")[2].partition("\n")[0]
            if self._random.random() < self._missed:
                return chat("SAME")
            return chat("SECOND" if first.startswith("wrong") else "FIRST")
        if body["model"] == "broken":
            raise AnswerFailed("broken answered with status 500")
        is_hard = "hard" in question
        if body["model"] == "small" and is_hard:
            return chat("wrong " + question, sure=0.1)
        return chat("right")


def recorded(number: int, *, hard: bool = False, expected: str | None = None) -> RecordedRequest:
    question = f"{CANARY} {'hard' if hard else 'easy'} {number}"
    body = {"messages": [{"role": "user", "content": question}], "user": "someone", "stream": True, "max_tokens": 8}
    return RecordedRequest(number, body, expected)


def collecting(models: Models | None = None, **changes: Any) -> Collection:
    budget = CollectionBudget({}, float("inf"), 1_000_000)
    return Collection(**({"models": MODELS, "ask": models or Models(), "budget": budget} | changes))


def sources(collection: Collection) -> list[str]:
    return [source.value for _, _, source in collection.labelled()]


def test_answers_are_labelled_by_the_first_method_that_applies() -> None:
    """A scorer before an expected answer, that before agreement; what nothing labels is left out."""
    plain = collecting()
    plain.add(recorded(1))
    plain.add(recorded(2, hard=True, expected="right"))
    plain.add(recorded(3, hard=True))
    assert sources(plain) == ["agreement", "expected"]
    assert [scores for _, scores, _ in plain.labelled()] == [(1.0, 1.0), (0.0, 1.0)]
    scored = collecting(scorer=AnswerScorer(lambda given: dict.fromkeys(given["answers"], 0.5)))
    scored.add(recorded(2, hard=True, expected="right"))
    assert sources(scored) == ["scorer"]


def test_only_named_fields_are_sent_and_no_text_is_written() -> None:
    """Without `user` and `stream`; the file has signals and a bucket, and neither prompt nor answer."""
    models = Models()
    collection = collecting(models)
    collection.add(recorded(1))
    assert {name for body in models.sent for name in body} & {"user", "stream"} == set()
    (line,) = collection.lines()
    assert CANARY not in line
    assert "right" not in line
    labelled = read_labelled(line.encode(), MODELS)
    assert 0.0 < labelled.rows[0].signals["margin"][0] <= 1.0
    storing = collecting(models, store_prompts=True)
    storing.add(recorded(1))
    assert CANARY in next(storing.lines())


def test_a_judge_is_not_used_before_its_audit() -> None:
    """Then each answer that it does not call worse counts as a loss of the bound."""
    collection = collecting(Models(missed=0.5), judge_model="judge")
    for number in range(20):
        collection.add(recorded(number, hard=True))
    assert sources(collection) == []
    for number in range(100):
        collection.add(recorded(number, hard=True, expected="right"))
    audit = collection.audit()
    assert audit.is_enough
    assert audit.missed == audit.not_worse
    judged = [scores for _, scores, source in collection.labelled() if source == "judge"]
    # A judge that misses every loss bounds nothing: all count as lost.
    assert judged == [(0.0, 1.0)] * 20


def test_a_judge_is_asked_in_both_orders() -> None:
    """It is asked in both orders, for the audit and where nothing else labels."""
    models = Models()
    collection = collecting(models, judge_model="judge")
    for number in range(40):
        collection.add(recorded(number, hard=True, expected="right"))
    for number in range(3):
        collection.add(recorded(number + 100, hard=True))
    assert all(row.verdicts == (1,) for row in collection.rows)
    assert sum(body["model"] == "judge" for body in models.sent) == 2 * 43
    assert (collection.audit().worse, collection.audit().is_enough) == (40, False)


def test_money_is_reserved_before_it_is_spent() -> None:
    """The call that does not fit is not sent; what was reserved and not used is free again."""
    models = Models()
    budget = CollectionBudget({model: Price(0.0, None, 1.0) for model in MODELS}, 30.0, 1_000_000)
    collection = collecting(models, budget=budget)
    for number in range(2):
        collection.add(recorded(number))
    assert budget.cost == 16.0
    with pytest.raises(BudgetSpent):
        collection.add(recorded(3))
    assert (budget.cost, len(models.sent)) == (16.0, 4)


def test_a_model_that_fails_leaves_no_row() -> None:
    """But a reason, and no charge for itself."""
    collection = collecting(models=("broken", "large"))
    collection.add(recorded(1))
    assert collection.rows == []
    assert collection.failures == {"broken answered with status 500": 1}
    assert collection.budget.tokens == 14


def test_a_scorer_may_be_a_command(tmp_path: Path) -> None:
    """It reads JSON and prints scores; one that fails, hangs or prints other things is a failure, not the end."""
    program = tmp_path / "score.py"
    program.write_text(
        "import json, sys\ngiven = json.load(sys.stdin)\n"
        "print(json.dumps({'scores': {m: float(a == 'right') for m, a in given['answers'].items()}}))\n"
    )
    collection = collecting(scorer=AnswerScorer.of_command(json.dumps([sys.executable, str(program)]), 30.0))
    collection.add(recorded(1, hard=True))
    assert [scores for _, scores, _ in collection.labelled()] == [(0.0, 1.0)]
    for words, reason in (
        ([sys.executable, "-c", "import time; time.sleep(60)"], "longer than"),
        ([sys.executable, "-c", "print('{}')"], "failed with KeyError"),
        (["/nowhere"], "failed with FileNotFoundError"),
    ):
        failing = collecting(scorer=AnswerScorer.of_command(json.dumps(words), 0.2 if "longer" in reason else 30.0))
        failing.add(recorded(1, expected="right"))
        assert sources(failing) == ["expected"]
        assert reason in next(iter(failing.failures))


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("no", "line 1 is no JSON"),
        ("[1]", "line 1 must be the body"),
        ('{"request": {"prompt": "x"}}', "line 1 must be the body"),
        ('{"request": {"messages": []}, "expected": 3}', "line 1: `expected` must be text"),
    ],
)
def test_wrong_requests_are_named(tmp_path: Path, line: str, reported: str) -> None:
    """With their line; both forms of a right one are read."""
    path = tmp_path / "requests.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(InvalidValue, match="line 1") as rejected:
        list(read_requests(path))
    assert reported in str(rejected.value)
    path.write_text('{"messages": [], "model": "x"}\n\n{"request": {"messages": []}, "group": "g"}\n')
    assert [(found.line, found.group) for found in read_requests(path)] == [(1, None), (3, "g")]


class Handler(BaseHTTPRequestHandler):
    """Answers chat completions as `Models` does."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps(Models()(body)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def api() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_from_recorded_requests_to_a_calibration(
    api: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The written file is what `calibrate` reads; progress is shown, the sample is one of the seed."""
    monkeypatch.delenv("HEARTH_CONFIG", raising=False)
    requests, out = tmp_path / "requests.jsonl", tmp_path / "labels.jsonl"
    with requests.open("w") as file:
        for number in range(140):
            asked = recorded(number, hard=number % 10 == 0)
            file.write(json.dumps({"request": asked.body, "expected": "right"}) + "\n")
    words = ["--requests", requests, "--url", api, "--models", "small,large", "--out", out, "--max-loss", 0.05]
    status = main(["cascade", "collect", *map(str, words)])
    printed = capsys.readouterr().out
    assert "140 labels: " in printed
    assert "labelled by expected 140" in printed
    assert status in (0, 3)
    assert out.stat().st_mode & 0o777 == 0o600
    assert main(["cascade", "calibrate", "--data", str(out), "--max-loss", "0.05"]) == status
    assert "AUROC small" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--sample", "0"), "--sample must be above 0"),
        (("--scorer", "score.py"), "--scorer must be a JSON list"),
        (("--scorer-function", "nowhere:score"), "--scorer-function nowhere:score"),
        (("--max-cost", "1"), "--max-cost needs the price of small"),
        (("--max-rows", "0"), "--max-rows must be 1 or more"),
        (("--url", "ftp://x"), "--url must be the base of an API"),
    ],
)
def test_wrong_flags_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reported: str
) -> None:
    """With status 1, before anything is sent."""
    base = ["--requests", "/nowhere", "--url", "http://127.0.0.1:9/v1", "--models", "small,large"]
    assert main(["cascade", "collect", *base, "--out", str(tmp_path / "o"), *words]) == 1
    assert reported in capsys.readouterr().err

"""`hearth cascade collect`: recorded requests, models that answer by a rule, labels, a bounded budget, and the file."""

from __future__ import annotations

import asyncio
import json
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cascade.calibration.labelling import CollectedRow
from cascade.models import Price
from gateway.cascades.answer_scorer import AnswerScorer
from gateway.cli import main
from gateway.commands.collect import (
    AnswerFailed,
    BudgetSpent,
    ChatApi,
    CollectionBudget,
    Collector,
    RecordedRequest,
    read_requests,
)
from tenancy.document import InvalidValue
from tests.scenarios.cascade_pods import some_cascade_pods

MODELS = ("small", "large")
CANARY = "canary-7f3a"


def chat(text: str, *, sure: float = 0.9) -> dict[str, Any]:
    """A response with log-probabilities."""
    token = {"logprob": -0.1, "top_logprobs": [{"logprob": -0.1}, {"logprob": -0.1 - 3 * sure}]}
    return {
        "choices": [{"message": {"content": text}, "logprobs": {"content": [token] * 4}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 4},
    }


class Models:
    """Models and a judge that answer by rules; takes down what was sent."""

    def __init__(self, *, missed: float = 0.0) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self._missed = missed
        self._random = Random(1)
        self._lock = threading.Lock()

    def __call__(self, body: Mapping[str, Any]) -> bytes:
        with self._lock:
            self.sent.append(body)
        if body["model"] == "broken":
            raise AnswerFailed("broken answered with status 500", is_charged=False)
        return json.dumps(self._answer(body)).encode()

    def _answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        question = body["messages"][-1]["content"]
        if body["model"] == "judge":
            first = question.partition("First answer:\n")[2].partition("\n")[0]
            if self._random.random() < self._missed:
                return chat("SAME")
            return chat("SECOND" if first.startswith("wrong") else "FIRST")
        if body["model"] == "small" and "hard" in question:
            return chat("wrong " + question, sure=0.1)
        return chat("right")


def recorded(number: int, *, hard: bool = False, **more: Any) -> RecordedRequest:
    question = f"{CANARY} {'hard' if hard else 'easy'} {number}"
    body = {"messages": [{"role": "user", "content": question}], "user": "someone", "max_tokens": 8}
    return RecordedRequest(number, body, **more)


def collecting(ask: Models | None = None, /, **changes: Any) -> Collector:
    budget = CollectionBudget({}, float("inf"), 1_000_000)
    stated: dict[str, Any] = {"models": MODELS, "ask": ask or Models(), "budget": budget} | changes
    return Collector(**stated)


def collected(collector: Collector, request: RecordedRequest) -> CollectedRow:
    row = collector.collect(request)
    assert row is not None
    return row


def test_answers_are_labelled_by_the_first_method_that_applies() -> None:
    """A scorer before an expected answer, that before a unit test, that before agreement; else nothing."""
    plain = collecting()
    assert collected(plain, recorded(1)).label == "agreement"
    found = collected(plain, recorded(2, hard=True, expected="right"))
    assert (found.label, found.scores) == ("expected", (0.0, 1.0))
    assert collected(plain, recorded(3, hard=True)).label == "none"
    tested = AnswerScorer.of_unit_tests([sys.executable, "-c", "raise SystemExit('wrong' in input())"], 30.0)
    found = collected(collecting(unit_tests=tested), recorded(3, hard=True, unit_test="assert True"))
    assert (found.label, found.scores) == ("unit_test", (0.0, 1.0))
    scored = collecting(scorer=AnswerScorer(lambda given: dict.fromkeys(given["answers"], 0.5)), unit_tests=tested)
    assert collected(scored, recorded(2, hard=True, expected="right", unit_test="x")).label == "scorer"


def test_only_named_fields_are_sent_and_no_text_is_written() -> None:
    """Without `user`; the row has signals and a bucket, and neither prompt nor answer unless asked for."""
    models = Models()
    line = collected(collecting(models), recorded(1)).line(MODELS)
    assert {name for body in models.sent for name in body} == {
        *("model", "messages", "max_tokens", "logprobs", "top_logprobs"),
    }
    assert CANARY not in line
    assert "right" not in line
    assert 0.0 < json.loads(line)["rungs"]["small"]["margin"] <= 1.0
    assert CANARY in collected(collecting(models, store_prompts=True), recorded(1)).line(MODELS)


def test_a_judge_compares_in_both_orders_where_nothing_shows_a_loss() -> None:
    """For the audit as often as wanted, and never for answers that agree."""
    models = Models()
    collector = collecting(models, judge_model="judge", max_audited=2)
    assert collected(collector, recorded(8, expected="right")).is_for_judge
    audited = [collected(collector, recorded(number, hard=True, expected="right")) for number in range(4)]
    assert [row.is_for_judge for row in audited] == [True, True, False, False]
    assert not collected(collector, recorded(8, expected="right")).is_for_judge
    assert sum(body["model"] == "judge" for body in models.sent) == 4
    row = collected(collector, recorded(9, hard=True))
    assert (row.verdicts, row.label) == ((1,), "judge")
    assert collected(collector, recorded(10)).is_for_judge
    assert not collected(collecting(), recorded(10)).is_for_judge
    assert sum(body["model"] == "judge" for body in models.sent) == 6
    first, second = (body["messages"][0]["content"] for body in models.sent[-4:-2])
    assert first.index("wrong") < first.index("right")
    assert second.index("right") < second.index("wrong")


def test_money_is_reserved_before_it_is_spent() -> None:
    """The call that does not fit is not sent; what was reserved and not used is free again."""
    models = Models()
    budget = CollectionBudget({model: Price(0.0, None, 1.0) for model in MODELS}, 30.0, 1_000_000)
    collector = collecting(models, budget=budget)
    for number in range(2):
        collected(collector, recorded(number))
    assert budget.cost == 16.0
    with pytest.raises(BudgetSpent):
        collector.collect(recorded(3))
    assert (budget.cost, len(models.sent)) == (16.0, 4)


def test_a_model_that_fails_leaves_no_row() -> None:
    """But a reason; a call that was rejected is not charged, one that gave no answer is."""
    collector = collecting(Models(), models=("large", "broken", "larger"))
    assert collector.collect(recorded(1)) is None
    assert collector.failures == {"broken answered with status 500": 1}
    assert collector.budget.tokens == 14

    def lost(_: Mapping[str, Any]) -> bytes:
        raise AnswerFailed("gave no answer")

    collector = collecting(ask=lost)
    assert collector.collect(recorded(1)) is None
    assert collector.budget.tokens > 2 * 8


def test_a_scorer_may_be_a_command(tmp_path: Path) -> None:
    """It reads JSON and prints scores; one that fails, hangs or prints other things is a failure, not the end."""
    program = tmp_path / "score.py"
    program.write_text(
        "import json, sys\ngiven = json.load(sys.stdin)\n"
        "print(json.dumps({'scores': {m: float(a == 'right') for m, a in given['answers'].items()}}))\n"
    )
    scorer = AnswerScorer.of_command([sys.executable, str(program)], 30.0)
    assert collected(collecting(scorer=scorer), recorded(1, hard=True)).scores == (0.0, 1.0)
    for words, reason in (
        ([sys.executable, "-c", "input(); input()"], "ended with status 1"),
        ([sys.executable, "-c", "import select; select.select([], [], [])"], "longer than"),
        ([sys.executable, "-c", "print('{}')"], "failed with KeyError"),
        (["/nowhere"], "failed with FileNotFoundError"),
    ):
        failing = collecting(scorer=AnswerScorer.of_command(words, 0.2 if "longer" in reason else 30.0))
        assert collected(failing, recorded(1, expected="right")).label == "expected"
        assert reason in next(iter(failing.failures))


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("no", "line 1 is not JSON"),
        ("[1]", "line 1 must be the body"),
        ('{"request": {"prompt": "x"}}', "line 1 must be the body"),
        ('{"request": {"messages": []}, "expected": 3}', "line 1: `expected` must be text"),
        ('{"messages": [], "n": 2}', "line 1: a cascade judges single answers"),
    ],
)
def test_wrong_requests_are_named(tmp_path: Path, line: str, reported: str) -> None:
    """With their line; both forms of a right one are read."""
    path = tmp_path / "requests.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(InvalidValue) as rejected:
        list(read_requests(path))
    assert reported in str(rejected.value)
    path.write_text('{"messages": [], "model": "x"}\n\n{"request": {"messages": []}, "group": "g"}\n')
    assert [(found.line, found.group) for found in read_requests(path)] == [(1, None), (3, "g")]


class Handler(BaseHTTPRequestHandler):
    """Answers chat completions as `Models` does; the first of all with 503."""

    is_busy = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if Handler.is_busy:
            Handler.is_busy = False
            self.send_response(503)
            self.send_header("retry-after", "0")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        answer = Models()(body)
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def api() -> Iterator[str]:
    Handler.is_busy = True
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
    """The written file is what `calibrate` reads; progress is shown; a second run goes on where the first stopped."""
    monkeypatch.delenv("HEARTH_CONFIG", raising=False)
    requests, out = tmp_path / "requests.jsonl", tmp_path / "labels.jsonl"
    with requests.open("w") as file:
        for number in range(160):
            request = recorded(number % 150, hard=number % 10 == 0)
            file.write(json.dumps({"request": request.body, "expected": "right"}) + "\n")
    words = ["--requests", requests, "--url", api, "--models", "small,large", "--out", out, "--max-loss", 0.05]
    command = ["cascade", "collect", *map(str, words)]
    assert main([*command, "--max-rows", "40"]) == 3
    printed = capsys.readouterr().out
    assert "40 labels: no guarantee yet" in printed
    assert "labelled by" in printed
    assert out.stat().st_mode & 0o777 == 0o600
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "160 labels: enough for the guarantee" in printed
    assert "120 rows more" in printed
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["request"] for row in rows] == list(range(1, 161))
    assert (rows[150]["group"], rows[149]["group"]) == ("line 1", "line 150")
    assert CANARY not in out.read_text()
    assert main(["cascade", "calibrate", "--data", str(out), "--max-loss", "0.05"]) == 0
    assert "expected 160" in capsys.readouterr().out
    assert main(["cascade", "calibrate", "--data", str(out), "--max-loss", "0.05", "--stage", "whole"]) == 1
    assert "conflicts with" in capsys.readouterr().err


def test_a_spent_budget_ends_the_collection(api: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the rows that it paid for; without the price of a model no limit of money is accepted."""
    requests, out = tmp_path / "requests.jsonl", tmp_path / "labels.jsonl"
    requests.write_text("".join(json.dumps(recorded(number).body) + "\n" for number in range(30)))
    words = ["--requests", requests, "--url", api, "--models", "small,large", "--out", out, "--max-cost", 90]
    command = ["cascade", "collect", *map(str, words), "--at-once", "1", "--price", "small=0,1"]
    assert main(command) == 1
    assert "needs the price of large" in capsys.readouterr().err
    assert main([*command, "--price", "large=0,1"]) == 3
    printed = capsys.readouterr().out
    assert "stopped: the next request does not fit" in printed
    assert len(out.read_text().splitlines()) == 10
    out.write_text("something else\n")
    assert main([*command, "--price", "large=0,1"]) == 1
    assert "was not written by collect" in capsys.readouterr().err


@pytest.mark.timeout(240)
async def test_the_policy_of_the_key_decides_which_models_are_collected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through a running gateway with simulated models, unary and streamed; a forbidden model leaves no row."""
    keys = {name: [sha256(f"sk-{name}".encode()).hexdigest()] for name in ("open", "narrow")}
    policy = {"auth": {"keys": keys}, "tenants": {"open": {}, "narrow": {"models": ["small"]}}}
    requests = tmp_path / "requests.jsonl"
    requests.write_text(
        "".join(json.dumps({**recorded(number).body, "stream": number == 1}) + "\n" for number in range(3))
    )
    async with some_cascade_pods(tmp_path, policy=policy) as pods:
        for tenant, count in (("open", 3), ("narrow", 0)):
            key, out = tmp_path / f"{tenant}.key", tmp_path / f"{tenant}.jsonl"
            key.write_text(f"sk-{tenant}\n")
            words = ["--requests", requests, "--url", pods.gateway.at("traffic", "/v1"), "--models", "small,big"]
            words += ["--out", out, "--api-key-file", key]
            assert await asyncio.to_thread(main, ["cascade", "collect", *map(str, words)]) == 3
            assert f"{count} rows more" in (printed := capsys.readouterr().out)
            rows = [json.loads(line) for line in out.read_text().splitlines()] if count else []
            assert len(rows) == count
            assert all(row["rungs"]["small"]["tokens"] for row in rows)
        assert "3 x big answered with status 4" in printed


@pytest.mark.parametrize(
    "reply", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nbroken"]
)
def test_a_response_that_is_not_http_is_a_failed_call(reply: bytes) -> None:
    """It does not end the collection of all other requests."""

    class Broken(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.wfile.write(reply)

    with socketserver.TCPServer(("127.0.0.1", 0), Broken) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        ask = ChatApi(f"http://127.0.0.1:{server.server_address[1]}/v1", None, 10.0)
        with pytest.raises(AnswerFailed, match="gave no answer"):
            ask({"model": "small", "messages": []})
        serving.join()

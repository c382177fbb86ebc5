"""The bench of two models behind URLs: the commands and gateways are real, the models are servers that do sums."""

from __future__ import annotations

import asyncio
import json
import re
from math import log
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.cascade.plain_questions import PATTERN, plain_questions
from bench.cascade.real_models import RealRun, UnusableModels, measure_real
from bench.cascade.real_pods import served_at
from cascade.calibration.labelling import expected_scores

QUESTIONS = 240
EASY_UP_TO = 160
"""The small model adds right up to this sum."""


def answer_of(body: dict[str, Any]) -> dict[str, Any]:
    """A sum, and how sure its model is: the small one is wrong, and unsure, for large sums."""
    first, second = map(int, re.findall(r"\d+", body["messages"][0]["content"]))
    total = first + second
    is_small = body["model"] == "adds-small"
    is_easy = total <= EASY_UP_TO or not is_small
    margin = (0.95 if is_easy else 0.2) - total / 10_000
    text = f"It is {total if is_easy else total + 1}."
    tops = [{"logprob": log((1 + margin) / 2)}, {"logprob": log((1 - margin) / 2)}]
    tokens = [{"token": "x", "logprob": tops[0]["logprob"], "top_logprobs": tops}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "logprobs": {"content": tokens} if body.get("logprobs") else None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
    }


async def served(models: tuple[str, str], measured: Any) -> Any:
    """Run something in a thread while two servers answer; it gets their URLs."""
    runners, urls = [], []
    for model in models:

        async def answer(request: web.Request, model: str = model) -> web.Response:
            if request.method == "GET":
                cards = [{"id": model, "object": "model", "max_model_len": 4096}]
                return web.json_response({"object": "list", "data": cards} if "models" in request.path else {})
            return web.json_response(answer_of(await request.json()))

        app = web.Application()
        app.add_routes([web.route("*", "/{path:.*}", answer)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        return await asyncio.to_thread(measured, (urls[0], urls[1]))
    finally:
        for runner in runners:
            await runner.cleanup()


async def test_two_models_end_to_end(tmp_path: Path) -> None:
    """The easy half is answered by the small model, the rest escalates, and the truth was not in what was collected."""
    questions = tmp_path / "questions.jsonl"
    sums = [(number, number % 83) for number in range(QUESTIONS)]
    questions.write_text("".join(json.dumps({"question": f"{a} + {b}?", "answer": str(a + b)}) + "\n" for a, b in sums))

    def measured(urls: tuple[str, str]) -> Any:
        return measure_real(RealRun(urls, questions, pattern=r"\d+", max_loss=0.05), tmp_path)

    lines, targets = await served(("adds-small", "adds-large"), measured)
    assert all(target.is_met for target in targets), (lines, targets)
    assert len(targets) == 2
    table = {line.split()[0]: [float(each) for each in line.split()[1:]] for line in lines[-5:]}
    assert 0.3 < table["cascade"][2] <= table["best"][2] + 0.05
    assert table["cascade"][0] > table["random"][0] > table["adds-small"][0]
    seen = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert 0.3 < sum("expected" in line for line in seen) / len(seen) < 0.7


async def test_one_model_twice_is_rejected(tmp_path: Path) -> None:
    """The way out is named."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    with pytest.raises(UnusableModels, match="served-model-name"):
        await served(("adds-small", "adds-small"), lambda urls: measure_real(RealRun(urls, questions), tmp_path))


def test_urls_need_no_pods() -> None:
    """Servers that run already are used as they are."""
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    with served_at(urls) as found:
        assert found == urls


def test_plain_questions_have_one_answer_that_the_pattern_finds() -> None:
    """In a sentence as well, where it stands last; no question is asked twice."""
    pairs = list(plain_questions())
    assert len(dict(pairs)) == len(pairs) > 800
    pattern = re.compile(PATTERN)
    for question, answer in pairs:
        assert expected_scores([f"The answer to {question} is {answer}."], answer, pattern) == (1.0,), question

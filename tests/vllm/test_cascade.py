"""A cascade of two real models: tiny Qwen3, that talks nonsense, below SmolLM2, that answers.

Real are the log-probabilities and how they are spelled, what an engine does when it is told to stop, and usage.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from cascade.calibration_json import write_calibration_file
from tests.vllm.gateways import Gateway, in_front, read_json, until
from tests.vllm.pods import Pod

KEEPS, NEVER = 0.0, 0.999
"""Thresholds of a margin, which lies between 0 and 1."""

PRICES = {"tinyqwen": (1e-7, 4e-7), "smollm2": (1e-6, 4e-6)}


def settings(folder: Path) -> Path:
    """Two cascades over the same models, that differ in what is good enough."""
    models: list[dict[str, Any]] = [
        {"model_name": name, "input_cost_per_token": paid, "output_cost_per_token": got}
        for name, (paid, got) in PRICES.items()
    ]
    for name, threshold in (("easy", KEEPS), ("strict", NEVER)):
        cuts = (AcceptanceThreshold(0, ANY_BUCKET, threshold),)
        promise, evidence = QualityGuarantee(0.01, 0.95), CalibrationEvidence(1000, "sha256:0", kept=0.5)
        file = CalibrationFile(tuple(PRICES), "margin", SignalStage.WINDOW, promise, evidence, cuts, is_promised=True)
        (folder / f"{name}.json").write_bytes(write_calibration_file(file))
        # These pods share two cores: what is tested here must not hang on a window's time.
        holdback = {"tokens": 6, "max_added_ttft_s": 60}
        calibration = str(folder / f"{name}.json")
        cascade = {"models": [*PRICES], "calibration": calibration, "holdback": holdback}
        models.append({"model_name": name, "cascade": cascade})
    path = folder / "hearth.yaml"
    path.write_text(json.dumps({"model_list": models}))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cascades(all_pods: tuple[Pod, ...], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    config = settings(tmp_path_factory.mktemp("ladders"))
    async with in_front([all_pods[0].url, all_pods[2].url], "--config", str(config)) as started:
        yield started


@pytest.fixture
def client(cascades: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{cascades.url}/v1", api_key="none", max_retries=0)


def asking(model: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0} | more


def cascade_results(gateway: Gateway, receipt_id: str) -> dict[str, Any]:
    """What the receipt says of the way up; it is written when the request has left."""
    receipt = until(lambda: read_json(f"{gateway.admin}/receipts/{receipt_id}"), f"a receipt {receipt_id}")
    return dict(receipt["cascade"], usage=receipt["usage"])


def streamed(client: openai.OpenAI, ladder: str) -> tuple[Any, list[Any]]:
    """An answer that was seen through to its end."""
    options = {"include_usage": True}
    raw = client.chat.completions.with_raw_response.create(**asking(ladder, stream=True, stream_options=options))
    return raw, list(raw.parse())


@pytest.mark.parametrize(("ladder", "rung"), [("easy", "tinyqwen"), ("strict", "smollm2")])
def test_a_stream_is_clean(cascades: Gateway, client: openai.OpenAI, ladder: str, rung: str) -> None:
    """One model, one id, one role, no log-probabilities; usage and receipt add up."""
    raw, chunks = streamed(client, ladder)
    assert raw.headers["x-hearth-cascade-model"] == rung
    assert {chunk.model for chunk in chunks} == {rung}
    assert len({chunk.id for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert sum(choice.delta.role is not None for choice in choices) == 1
    assert all(choice.logprobs is None for choice in choices)
    reported = chunks[-1].usage
    assert reported is not None
    way = cascade_results(cascades, raw.headers["x-hearth-request-id"])
    assert way["usage"]["output_tokens"] == reported.completion_tokens == way["steps"][-1]["output_tokens"]
    assert way["usage"]["input_tokens"] == reported.prompt_tokens
    if rung == "smollm2":
        assert way["steps"][0]["result"] == "escalated"
        assert way["steps"][0]["output_tokens"] >= 1
        assert 0 < way["steps"][0]["signal"] < NEVER
        assert "Paris" in "".join(choice.delta.content or "" for choice in choices)
        assert way["wasted_tokens"] == way["steps"][0]["output_tokens"]
    else:
        assert way["wasted_tokens"] == 0
    paid, got = PRICES[rung]
    assert way["steps"][-1]["cost"] <= paid * reported.prompt_tokens + got * reported.completion_tokens + 1e-12


@pytest.mark.parametrize(("ladder", "rung"), [("easy", "tinyqwen"), ("strict", "smollm2")])
def test_a_unary_answer_is_judged(cascades: Gateway, client: openai.OpenAI, ladder: str, rung: str) -> None:
    """By the same signal, and without what was not asked for."""
    raw = client.chat.completions.with_raw_response.create(**asking(ladder))
    answer = raw.parse()
    assert (raw.headers["x-hearth-cascade-model"], answer.model) == (rung, rung)
    assert answer.choices[0].logprobs is None
    way = cascade_results(cascades, raw.headers["x-hearth-request-id"])
    assert answer.usage is not None
    assert way["steps"][-1]["output_tokens"] == answer.usage.completion_tokens
    assert way["steps"][0]["signal"] is not None


def test_who_requests_log_probabilities_gets_them(client: openai.OpenAI) -> None:
    """As many as were asked for, from a model that was judged by more."""
    answer = client.chat.completions.create(**asking("easy", logprobs=True, top_logprobs=1))
    assert answer.model == "tinyqwen"
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content or []
    assert len(entries) == 16
    assert {len(entry.top_logprobs) for entry in entries} == {1}


def test_broken_json_goes_up(cascades: Gateway, client: openai.OpenAI) -> None:
    """Cut by its limit the small model's answer is no JSON, however sure it was; the large one's is what it is."""
    city = {"type": "object", "properties": {"capital_city": {"type": "string"}}, "required": ["capital_city"]}
    format_ = {"type": "json_schema", "json_schema": {"name": "city", "schema": city}}
    raw = client.chat.completions.with_raw_response.create(**asking("easy", response_format=format_, max_tokens=2))
    assert raw.headers["x-hearth-cascade-model"] == "smollm2"
    assert "json" in cascade_results(cascades, raw.headers["x-hearth-request-id"])["steps"][0]["reason"]


@pytest.mark.parametrize(
    ("headers", "ladder", "rung"),
    [
        ({"x-hearth-cascade-min-model": "smollm2"}, "easy", "smollm2"),
        ({"x-hearth-cascade-max-model": "tinyqwen"}, "strict", "tinyqwen"),
        ({"x-hearth-cascade-never-escalate": "true"}, "strict", "tinyqwen"),
    ],
)
def test_words_of_the_client_bind(client: openai.OpenAI, headers: dict[str, str], ladder: str, rung: str) -> None:
    """Where it begins, and whether it may escalate."""
    raw = client.chat.completions.with_raw_response.create(**asking(ladder), extra_headers=headers)
    assert raw.headers["x-hearth-cascade-model"] == rung


def test_other_apis(cascades: Gateway, client: openai.OpenAI) -> None:
    """Completions and responses are judged by their own words for log-probabilities."""
    raw = client.completions.with_raw_response.create(
        model="easy", prompt="Once upon a time", max_tokens=12, stream=True
    )
    pieces = list(raw.parse())
    assert raw.headers["x-hearth-cascade-model"] == "tinyqwen"
    assert all(choice.logprobs is None for piece in pieces for choice in piece.choices)
    reported = client.responses.with_raw_response.create(model="easy", input="Hello", max_output_tokens=12, stream=True)
    events = list(reported.parse())
    assert reported.headers["x-hearth-cascade-model"] == "tinyqwen"
    assert cascade_results(cascades, reported.headers["x-hearth-request-id"])["judged"] == 1
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert deltas
    assert all(not event.logprobs for event in deltas)


def test_nothing_is_left_behind(cascades: Gateway) -> None:
    """The ledger is empty once all have left."""
    until(lambda: not cascades.charged(), "an empty ledger")

"""Cascades as clients, operators and tenants see them: a whole gateway over simulated pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cascade.calibration_file import SignalStage
from simulator.faults import NO_FAULT, Fault, FaultKind
from simulator.profile import Profile
from tests.scenarios.cascade_pods import (
    CASCADE,
    ESCALATES,
    KEEPS,
    CascadePods,
    asking,
    calibration_file,
    empty,
    settled,
    some_cascade_pods,
)

CHAT = "/v1/chat/completions"


pytestmark = pytest.mark.asyncio(loop_scope="module")

NEVER = ESCALATES / 2 - 0.01
"""No answer is as sure as that, and the file still says that one might be."""

POLICY = {
    "auth": {
        "default_tenant": "free",
        "keys": {name: [sha256(f"sk-{name}".encode()).hexdigest()] for name in ("open", "modest", "best", "frugal")},
    },
    "tenants": {
        "free": {},
        "open": {},
        "modest": {"cascade_max_model": "small"},
        "best": {"cascade_prefer": "quality", "models": [CASCADE]},
        "frugal": {"cascade_max_escalation_share": 0},
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keeping(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CascadePods]:
    """Every answer that can be judged is good enough."""
    async with some_cascade_pods(tmp_path_factory.mktemp("keeping"), KEEPS, policy=POLICY) as rungs:
        yield rungs


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def escalating(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CascadePods]:
    """None is, and steps take a while."""
    slow = Profile(step_base_s=0.01)
    async with some_cascade_pods(tmp_path_factory.mktemp("escalating"), NEVER, policy=POLICY, profile=slow) as rungs:
        yield rungs


@pytest.mark.parametrize("rung", ["small", "big"])
@pytest.mark.parametrize("stream", [True, False])
async def test_one_model_answers(keeping: CascadePods, escalating: CascadePods, rung: str, *, stream: bool) -> None:
    """The client gets one clean answer, the receipt every model, and what was thrown away is told as waste."""
    rungs = keeping if rung == "small" else escalating
    status, body, head = await rungs.post(CHAT, asking(stream=stream))
    assert (status, head["x-hearth-cascade-model"]) == (200, rung)
    if stream:
        _is_clean(body, rung)
    else:
        complete = json.loads(body)
        assert complete["choices"][0]["logprobs"] is None
        assert complete["usage"]["completion_tokens"] == 24
        assert int(head["content-length"]) == len(body)
    receipt = await settled(rungs, head["x-hearth-request-id"])
    result, usage = receipt["cascade"], receipt["usage"]
    assert [step["model"] for step in result["steps"]] == (["small"] if rung == "small" else ["small", "big"])
    assert result["steps"][-1]["output_tokens"] == usage["output_tokens"] == 24
    assert result["wasted_tokens"] == (result["steps"][0]["output_tokens"] if rung == "big" else 0)
    assert (result["wasted_cost"] > 0) == (rung == "big")
    assert result["cost"] == pytest.approx(sum(step["cost"] for step in result["steps"]))
    assert result["cost_always_first"] < result["cost_always_largest"]
    await empty(rungs)
    metrics = await rungs.metrics()
    assert f'hearth_cascade_answers_total{{bucket="chat",cascade="auto",model_name="{rung}"}}' in metrics
    assert 'hearth_cascade_guarantee_active{cascade="auto"} 1.0' in metrics


def _is_clean(body: bytes, rung: str) -> None:
    events = [json.loads(line[6:]) for line in body.split(b"\n\n") if line and line != b"data: [DONE]"]
    assert body.endswith(b"data: [DONE]\n\n")
    assert {event["model"] for event in events} == {rung}
    assert len({event["id"] for event in events}) == 1
    roles = [event["choices"][0]["delta"].get("role") for event in events]
    assert roles == ["assistant"] + [None] * (len(events) - 1)
    assert all(event["choices"][0]["logprobs"] is None for event in events)
    assert not any("usage" in event for event in events)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 12}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 12}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_other_apis_are_judged_too(
    keeping: CascadePods, path: str, body: dict[str, Any], *, stream: bool
) -> None:
    """By their own words for log-probabilities, which are gone from what the client gets."""
    status, reported, head = await keeping.post(path, {"model": CASCADE, "stream": stream} | body)
    assert (status, head["x-hearth-cascade-model"]) == (200, "small")
    assert b'"logprobs":{' not in reported
    assert b'"logprobs":[{' not in reported
    receipt = await settled(keeping, head["x-hearth-request-id"])
    assert receipt["cascade"]["judged"] == 1


async def test_what_cannot_be_judged_is_answered_from_the_top(keeping: CascadePods) -> None:
    """Anthropic's API gives no log-probabilities, several answers to one prompt are not looked at."""
    _, _, head = await keeping.post("/v1/messages", asking(stream=True))
    assert head["x-hearth-cascade-model"] == "big"
    _, _, head = await keeping.post(CHAT, asking(n=2))
    assert head["x-hearth-cascade-model"] == "big"


async def test_log_probabilities_come_as_requested(keeping: CascadePods) -> None:
    """Who wants them gets as many as wanted, from a judged model too."""
    _, reported, head = await keeping.post(CHAT, asking(logprobs=True, top_logprobs=1))
    assert head["x-hearth-cascade-model"] == "small"
    entries = json.loads(reported)["choices"][0]["logprobs"]["content"]
    assert len(entries) == 24
    assert {len(entry["top_logprobs"]) for entry in entries} == {1}


async def test_an_openai_client_sees_a_clean_stream(escalating: CascadePods) -> None:
    """Escalated as it was; usage that it asks for is that of the answer it got."""
    async with escalating.openai("sk-open") as client:
        assert CASCADE in [model.id async for model in client.models.list()]
        stream = await client.chat.completions.create(
            model=CASCADE,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert {chunk.model for chunk in chunks} == {"big"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 16


@pytest.mark.parametrize(
    ("tenant", "body", "headers", "answered"),
    [
        ("", {}, {}, "small"),
        ("", {}, {"x-hearth-cascade-min-model": "big"}, "big"),
        ("", {"hearth": {"cascade_min_model": "big"}}, {}, "big"),
        ("", {}, {"x-hearth-cascade-prefer": "quality"}, "big"),
        ("modest", {}, {}, "small"),
        ("modest", {}, {"x-hearth-cascade-min-model": "big"}, "400 model"),
        ("best", {}, {}, "big"),
        ("", {}, {"x-hearth-cascade-max-model": "huge"}, "400 x-hearth-cascade-max-model"),
        ("", {}, {"x-hearth-cascade-never-escalate": "perhaps"}, "400 x-hearth-cascade-never-escalate"),
        ("", {"hearth": {"rung": "big"}}, {}, "400 hearth"),
    ],
)
async def test_words_of_clients_and_tenants_bind(
    keeping: CascadePods, tenant: str, body: dict[str, Any], headers: dict[str, str], answered: str
) -> None:
    """The tightest counts; what is no model is refused by name."""
    key = {"authorization": f"Bearer sk-{tenant}"} if tenant else {}
    status, reported, head = await keeping.post(CHAT, asking() | body, **headers, **key)
    stated = head["x-hearth-cascade-model"] if status == 200 else f"{status} {json.loads(reported)['error']['param']}"
    assert stated == answered


@pytest.mark.parametrize(
    ("headers", "ended", "why"),
    [
        ({"x-hearth-cascade-never-escalate": "true"}, "unjudged", ""),
        ({"authorization": "Bearer sk-frugal"}, "kept", "escalation_limit"),
    ],
)
async def test_who_may_not_escalate_gets_what_there_is(
    escalating: CascadePods, headers: dict[str, str], ended: str, why: str
) -> None:
    """Unjudged where nothing is to be thrown away; kept all the same where too much has been."""
    _, _, head = await escalating.post(CHAT, asking(stream=True), **headers)
    assert head["x-hearth-cascade-model"] == "small"
    receipt = await settled(escalating, head["x-hearth-request-id"])
    [step] = receipt["cascade"]["steps"]
    assert (step["result"], step["reason"]) == (ended, why)


async def test_broken_json_escalates(keeping: CascadePods) -> None:
    """Whatever its log-probabilities say: the simulated answer is no JSON once it is cut."""
    wanted = {"type": "json_object"}
    _, _, head = await keeping.post(CHAT, asking(response_format=wanted, max_tokens=3))
    assert head["x-hearth-cascade-model"] == "big"
    receipt = await settled(keeping, head["x-hearth-request-id"])
    assert "invalid_json" in receipt["cascade"]["steps"][0]["reason"]
    _, _, head = await keeping.post(CHAT, asking(response_format=wanted, max_tokens=200))
    assert head["x-hearth-cascade-model"] == "small"


async def test_a_conversation_stays_where_it_went(keeping: CascadePods) -> None:
    """Once answered by the higher model it goes on there, while its prefix is warm."""
    story, session = asking("A long story. " * 60), {"x-session-id": "talk"}
    _, _, head = await keeping.post(CHAT, story, **session, **{"x-hearth-cascade-min-model": "big"})
    await settled(keeping, head["x-hearth-request-id"])
    _, _, head = await keeping.post(CHAT, story, **session)
    assert head["x-hearth-cascade-model"] == "big"
    _, _, head = await keeping.post(CHAT, asking("Another story. " * 60))
    assert head["x-hearth-cascade-model"] == "small"


async def test_a_model_thrown_away_stops(escalating: CascadePods) -> None:
    """Nothing runs there afterwards, and it has made no more than its window and what was on its way."""
    engine = escalating.small.engines[0]
    before = engine.statistics().generation_tokens
    escalating.small.set_fault(Fault(FaultKind.SLOW, factor=10))  # a machine that stalls does not see it end by itself
    _, _, head = await escalating.post(CHAT, asking(stream=True, max_tokens=120, min_tokens=120))
    escalating.small.set_fault(NO_FAULT)
    assert head["x-hearth-cascade-model"] == "big"
    receipt = await settled(escalating, head["x-hearth-request-id"])
    assert engine.statistics().running == 0
    assert receipt["cascade"]["steps"][0]["output_tokens"] >= 8
    assert engine.statistics().generation_tokens - before < 120


async def test_the_ledger_is_empty_after_clients_that_leave(escalating: CascadePods) -> None:
    """At any point of a escalate."""

    async def leave(after_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await escalating.post(CHAT, asking(stream=True, max_tokens=100, min_tokens=100))

    await asyncio.gather(*(leave(0.015 * step) for step in range(1, 25)))
    await empty(escalating)


async def test_a_model_that_is_down_is_passed_over(tmp_path: Path) -> None:
    """What was thrown away is asked for again where nothing above can be had."""
    async with some_cascade_pods(tmp_path, NEVER) as rungs:
        await rungs.big.stop()
        status, body, head = await rungs.post(CHAT, asking(stream=True))
        assert (status, head["x-hearth-cascade-model"]) == (200, "small")
        assert models_of(body) == {"small"}
        assert (await settled(rungs, head["x-hearth-request-id"]))["model"] == "small"
        await empty(rungs)


@pytest.mark.parametrize(("threshold", "rung"), [(NEVER, "big"), (KEEPS, "small")])
async def test_a_cut_stream_goes_on_with_its_model(tmp_path: Path, threshold: float, rung: str) -> None:
    """Whichever model answers, first or last: the same model sends the same text as without the cut."""
    async with some_cascade_pods(tmp_path, threshold) as rungs:
        _, complete, _ = await rungs.post(CHAT, asking(stream=True, min_tokens=20))
        pod = rungs.big if rung == "big" else rungs.small
        pod.set_fault(Fault(FaultKind.ABORT, after_chunks=16, requests=1))
        status, body, head = await rungs.post(CHAT, asking(stream=True, min_tokens=20))
        assert (status, head["x-hearth-cascade-model"], models_of(body)) == (200, rung, {rung})
        assert stated(body) == stated(complete)
        receipt = await settled(rungs, head["x-hearth-request-id"])
        assert receipt["resumes"] == 1
        await empty(rungs)


def events_of(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]


def models_of(body: bytes) -> set[str]:
    return {event["model"] for event in events_of(body)}


def stated(body: bytes) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events_of(body))


async def test_what_failed_one_model_is_not_held_against_the_next(tmp_path: Path) -> None:
    """Both small pods break, and of the big ones the one that is warm: the fourth attempt is answered."""
    async with some_cascade_pods(tmp_path, copies=2) as rungs:
        requested = asking("Once upon a time there was a gateway. " * 50, stream=True)
        _, _, head = await rungs.post(CHAT, requested | {"model": "big"})
        warm = (await _left(rungs, head["x-hearth-request-id"]))["attempts"][0]["engine"]
        for pod in (rungs.small, rungs.big, *rungs.twins):
            if "small" in pod.options.models or pod.url == warm:
                pod.set_fault(Fault(FaultKind.ERROR))
        status, _, head = await rungs.post(CHAT, requested)
        assert (status, head["x-hearth-cascade-model"]) == (200, "big")
        receipt = await settled(rungs, head["x-hearth-request-id"])
        assert [attempt["result"] for attempt in receipt["attempts"]] == ["upstream_5xx"] * 3 + ["ok"]
        assert receipt["attempts"][2]["engine"] == warm


async def _left(rungs: CascadePods, receipt_id: str) -> dict[str, Any]:
    """The receipt of a request that escalated nothing."""
    async with asyncio.timeout(120):
        while not (receipt := await rungs.receipt(receipt_id)).get("attempts"):
            pass
    return receipt


async def test_a_guarantee_of_the_prompt_needs_no_judge(tmp_path: Path) -> None:
    """A file of the prompt's stage chooses where to begin; nothing is held back. Models are asked what they can."""
    easy = calibration_file(-1e6, signal="ease", stage=SignalStage.PROMPT)
    unable = {"small": {"abilities": ["json"]}}
    async with some_cascade_pods(tmp_path, file=easy, models=unable, holdback="off", check_unary=False) as rungs:
        _, _, head = await rungs.post("/v1/messages", asking(stream=True))
        assert head["x-hearth-cascade-model"] == "small"
        receipt = await settled(rungs, head["x-hearth-request-id"])
        assert receipt["cascade"]["judged"] == 0
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        _, _, head = await rungs.post(CHAT, asking(tools=[tool]))
        assert head["x-hearth-cascade-model"] == "big"
        await rungs.small.stop()
        status, _, head = await rungs.post(CHAT, asking(stream=True))
        assert (status, head["x-hearth-cascade-model"]) == (200, "big")


@pytest.mark.timeout(300)
async def test_shadows_keep_a_guarantee_true(tmp_path: Path) -> None:
    """Kept answers are asked of the next model too; two that never agree end the guarantee: the largest answers."""
    withdrawn = 'hearth_cascade_drift_alarm{cascade="auto"} 1.0'
    async with some_cascade_pods(tmp_path, KEEPS, shadow={"share": 1.0, "max_mismatch_share": 0.02}) as rungs:
        async with asyncio.timeout(240):
            for number in range(4000):
                await rungs.post(CHAT, asking(f"Question {number}", max_tokens=8, stream=number % 2 == 0))
                if number % 10 == 9 and withdrawn in await rungs.metrics():
                    break
            else:
                pytest.fail("the promise still stands")
        _, _, head = await rungs.post(CHAT, asking("Once more", max_tokens=8))
        assert head["x-hearth-cascade-model"] == "big"
        metrics = await rungs.metrics()
        assert withdrawn in metrics
        assert 'hearth_cascade_guarantee_active{cascade="auto"} 0.0' in metrics
        assert 'hearth_cascade_shadow_agreement_ratio{cascade="auto"} 0.0' in metrics
        assert 'tenant="shadow"' not in metrics
        shadows = [each for each in rungs.big.received if each.path == CHAT]
        assert shadows
        await empty(rungs)

"""Cascades that judge, behind a real Envoy: by way of the return listener clients get what the gateway's port gives."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cascade.calibration_file import CalibrationFile, SignalStage
from cascade.calibration_json import write_calibration_file
from simulator.faults import Fault, FaultKind
from simulator.options import Options
from simulator.profile import Profile
from tests.envoy.envoys import BUFFERED_NONE, BUFFERED_STREAMED, DUPLEX, Way
from tests.envoy.scene import CHAT, FAST, Scene, a_scene, asking
from tests.scenarios.cascade_pods import KEEPS, calibration_file
from tests.scenarios.test_cascades import NEVER

WAYS = {"buffered": BUFFERED_NONE, "streamed": BUFFERED_STREAMED, "duplex": DUPLEX}

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

ESCALATES = ("first", "window", "complete")
"""Cascades of which no answer of the smaller model is accepted: judged by its first token, a window, all of it."""

TRANSCRIPT: tuple[tuple[str, dict[str, Any]], ...] = (
    *((CHAT, asking(model=name, stream=stream)) for name in ("keeps", *ESCALATES) for stream in (True, False)),
    (CHAT, asking(model="window", stream=True, stream_options={"include_usage": True})),
    (CHAT, asking(model="window", stream=True, logprobs=True, top_logprobs=1)),
    (CHAT, asking(model="keeps", tools=[TOOL], max_tokens=3)),
    (CHAT, asking(model="keeps", tools=[TOOL], max_tokens=40)),
    (CHAT, asking(model="window", tools=[TOOL], max_tokens=40, stream=True)),
    (CHAT, asking(model="keeps", response_format={"type": "json_object"}, max_tokens=3)),
    (CHAT, asking(model="keeps", response_format={"type": "json_object"}, max_tokens=40)),
    ("/v1/completions", {"model": "window", "prompt": "Hi", "max_tokens": 12, "stream": True}),
    ("/v1/responses", {"model": "window", "input": "Hi", "max_output_tokens": 12}),
    ("/v1/messages", asking(model="window", stream=True)),
    (CHAT, asking(model="window", n=2)),
    (CHAT, asking(model="keeps", hearth={"cascade_min_model": "none"})),
)

MASKED = ("id", "item_id", "created", "created_at", "completed_at", "call_id", "request_id", "message")
"""Fields of answers that differ between two runs; `message` of errors, which name requests."""


def settings(folder: Path) -> dict[str, Any]:
    """Four cascades over the same two models, which differ in what they judge."""

    def cascade(name: str, threshold: float, stage: SignalStage, **holdback: Any) -> dict[str, Any]:
        file: CalibrationFile = calibration_file(threshold, stage=stage)
        path = folder / f"{name}.json"
        path.write_bytes(write_calibration_file(file))
        entry = {"models": ["small", "big"], "calibration": str(path)}
        return {"model_name": name, "cascade": entry | {"holdback": {"max_added_ttft_s": 60} | holdback}}

    return {
        "model_list": [
            cascade("keeps", KEEPS, SignalStage.WINDOW, tokens=8),
            cascade("first", NEVER, SignalStage.WINDOW, tokens=1),
            cascade("window", NEVER, SignalStage.WINDOW, tokens=4),
            cascade("complete", NEVER, SignalStage.WHOLE, tokens=8, complete_streams=True),
        ]
    }


def pods() -> Options:
    return Options(models=("big", "small"), profile=FAST, max_answer_tokens=40, calls_tools=True)


def masked(value: Any) -> Any:
    """A JSON value without what differs between two runs."""
    if isinstance(value, dict):
        return {
            name: "*" if name in MASKED and not isinstance(held, dict) else masked(held) for name, held in value.items()
        }
    return [masked(each) for each in value] if isinstance(value, list) else value


def decoded(text: str) -> list[Any]:
    """An answer's events or its JSON body."""
    if text.startswith("{"):
        return [masked(json.loads(text))]
    events = [line.partition("data: ")[2] for line in text.split("\n\n") if "data: " in line]
    return [masked(json.loads(event)) if event.startswith("{") else event for event in events]


async def answers(scene: Scene) -> list[Any]:
    """What clients of the transcript receive, and what the receipts say of each."""
    found: list[Any] = []
    for path, body in TRANSCRIPT:
        async with scene.session.post(scene.url + path, json=body) as answer:
            text, head = await answer.text(), answer.headers
        receipt = await scene.receipt(head["x-hearth-request-id"])
        steps = [(step["model"], step["result"]) for step in (receipt["cascade"] or {"steps": ()})["steps"]]
        found.append((answer.status, head.get("x-hearth-cascade-model"), decoded(text), receipt["usage"], steps))
    return found


@pytest.mark.parametrize("name", WAYS)
async def test_judged_answers_are_the_same_through_both_shells(tmp_path: Path, name: str) -> None:
    """Bodies, models, usage and steps, with escalations at the first token, in the window, after all of it, of tool
    calls and of JSON; every request is recorded and its usage counted once. One pod each: cached tokens depend on it.
    """
    way: Way = WAYS[name]
    reported = settings(tmp_path)
    returned = {"return_listen": "127.0.0.1:0"}
    async with (
        a_scene(None, settings=reported, options=pods(), extproc=returned, count=1) as own,
        a_scene(way, settings=reported, options=pods(), extproc=returned, count=1) as behind,
    ):
        expected = await answers(own)
        assert await answers(behind) == expected
        models = [model for _, model, *_ in expected]
        assert models.count("big") >= 10
        assert models.count("small") >= 4
        receipts = await behind.receipts()
        assert len(receipts) == len(TRANSCRIPT)
        counted = await behind.metrics()
        assert counted["hearth_extproc_returned_requests_total"] == len(TRANSCRIPT)
        generated = sum(receipt["usage"]["output_tokens"] for receipt in receipts if receipt["usage"])
        assert generated == sum(
            value for metric, value in counted.items() if metric.startswith("hearth_output_tokens_total")
        )


async def test_a_limit_ends_a_stream_that_envoy_returns() -> None:
    """With `returns: [limits]`, also where Envoy shows the picker nothing of a response."""
    returned = {"return_listen": "127.0.0.1:0", "returns": ["limits"]}
    long = Options(models=("big",), profile=FAST, min_answer_tokens=300, max_answer_tokens=400)
    async with a_scene(BUFFERED_NONE, extproc=returned, tenants={"one": {"output_tpm": 60}}, options=long) as scene:
        head = {"authorization": "Bearer sk-one"}
        async with scene.post(asking(stream=True, max_tokens=400), headers=head) as answer:
            text = await answer.text()
        assert answer.status == 200, text
        assert text.endswith("data: [DONE]\n\n")
        assert 10 < text.count('"content"') <= 62
        assert (await scene.metrics())["hearth_extproc_returned_requests_total"] == 1


async def test_a_cut_stream_is_resumed_behind_envoy() -> None:
    """With `returns: [resume]`: the client has the same text as without the cut, though Envoy carries the stream."""
    returned = {"return_listen": "127.0.0.1:0", "returns": ["resume"]}
    body = asking(stream=True, max_tokens=30, min_tokens=30, temperature=0)
    async with a_scene(BUFFERED_NONE, extproc=returned) as scene:
        async with scene.post(body) as answer:
            complete = text_of(await answer.text())
        for pod in scene.pods:
            pod.set_fault(Fault(FaultKind.ABORT, after_chunks=12, requests=1))
        async with scene.post(body) as answer:
            resumed = text_of(await answer.text())
            receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
    assert resumed == complete
    assert receipt["resumes"] >= 1


async def test_identical_requests_share_a_response_behind_envoy() -> None:
    """With `returns: [coalescing]`: the pods compute one answer for both clients."""
    returned = {"return_listen": "127.0.0.1:0", "returns": ["coalescing"]}
    head = {"authorization": "Bearer sk-one"}
    slow = Options(models=("big",), profile=Profile(step_base_s=0.05))
    async with a_scene(BUFFERED_NONE, extproc=returned, tenants={"one": {"coalesce": True}}, options=slow) as scene:

        async def once() -> Any:
            async with scene.post(asking(temperature=0, max_tokens=40, min_tokens=40), headers=head) as answer:
                assert answer.status == 200
                shared: str | None = answer.headers.get("x-hearth-coalesced-with")
                return shared

        found = await asyncio.gather(once(), once())
    assert len([each for each in found if each]) == 1


def text_of(stream: str) -> str:
    """The text of a streamed chat answer."""
    events = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


async def test_the_return_listener_serves_nothing_but_returned_requests(tmp_path: Path) -> None:
    """Without a ticket, or with an invented one, its answer is 401, whatever key is shown."""
    async with a_scene(None, settings=settings(tmp_path), extproc={"return_listen": "127.0.0.1:0"}) as scene:
        line = next(line for line in scene.gateway.lines if line["event"] == "listening")
        url = f"http://{line['extproc_return'][0]}{CHAT}"
        for headers in ({}, {"x-hearth-return": "invented"}, {"authorization": "Bearer sk-one"}):
            async with aiohttp.ClientSession() as session, session.post(url, json=asking(), headers=headers) as answer:
                assert answer.status == 401
                assert "Envoy" in (await answer.json())["error"]["message"]


async def test_a_cluster_without_the_listener_is_named(tmp_path: Path) -> None:
    """A pod that receives a returned request cannot serve it: the client is shown the cause, not the pod's 404."""

    def fixed(found: Any) -> Way:
        return Way(pods=tuple(pod.url.removeprefix("http://") for pod in found))

    async with a_scene(
        fixed, settings=settings(tmp_path), options=pods(), extproc={"return_listen": "127.0.0.1:0"}
    ) as scene:
        async with scene.post(asking(model="window")) as answer:
            text = await answer.text()
        assert answer.status == 500, text
        assert "return listener" in text

"""Answers that think and call tools lose their pod in the middle: at temperature 0 their clients read them unbroken."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from routing.request import Api
from simulator.faults import NO_FAULT, Fault, FaultKind
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.resume.test_replay import Heard, events_of, hear
from tests.gateway.running import serving
from tests.scenarios.place import FAST
from tests.scenarios.test_resume import Place

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "minLength": 60}}, "required": ["city"]}

SAYS = {"messages": [{"role": "user", "content": "What is the weather in Bern?"}], "max_tokens": 200, "temperature": 0}

TOOL = {"name": "weather", "description": "Now."}

ASKED: dict[Api, tuple[str, dict[str, Any]]] = {
    Api.CHAT: (
        "/v1/chat/completions",
        SAYS
        | {
            "tools": [{"type": "function", "function": TOOL | {"parameters": PARAMETERS}}],
            "tool_choice": "required",
            "stream_options": {"include_usage": True},
        },
    ),
    Api.MESSAGES: (
        "/v1/messages",
        SAYS | {"tools": [TOOL | {"input_schema": PARAMETERS}], "tool_choice": {"type": "any"}},
    ),
    Api.RESPONSES: (
        "/v1/responses",
        {
            "input": "What is the weather in Bern?",
            "max_output_tokens": 200,
            "temperature": 0,
            "tools": [TOOL | {"type": "function", "parameters": PARAMETERS}],
            "tool_choice": "required",
        },
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        options = Options(models=("tiny",), max_reasoning_tokens=12, calls_tools=True, profile=FAST)
        pods = [await stack.enter_async_context(SimulatedPod(options)) for _ in range(2)]
        flags = [word for pod in pods for word in ("--pod", pod.url)]
        gateway = await stack.enter_async_context(serving(*flags))
        for _ in pods:
            await gateway.until("pod_state_changed", state="ready")
        yield Place(gateway, pods)


async def ask(url: str, api: Api, **more: Any) -> tuple[bytes, str]:
    """A stream as it came, and the name of its receipt."""
    path, body = ASKED[api]
    requested = {"model": "tiny", "stream": True, **body, **more}
    async with aiohttp.ClientSession() as session, session.post(url + path, json=requested) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.read(), answer.headers.get("x-hearth-request-id", "")


def stated(received: Heard) -> list[str]:
    """All texts, in their order: thoughts, words, arguments."""
    return [text for text in received.texts.values() if text]


def counts(reported: bytes) -> list[Any]:
    """Usage, as it was told last."""
    words = ("completion_tokens", "output_tokens")
    found = [event.get("usage") or (event.get("response") or {}).get("usage") for event in events_of(reported)]
    return [usage[word] for usage in found if usage for word in words if word in usage][-1:]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("after", [4, 15])
@pytest.mark.parametrize("api", ASKED)
async def test_thoughts_and_calls_go_on_at_another_pod(place: Place, api: Api, after: int) -> None:
    """Both pods lose it once: what was said, why it ended and usage are those of an undisturbed run."""
    undisturbed, _ = await ask(place.pods[0].url, api)
    for pod in place.pods:
        pod.set_fault(Fault(FaultKind.CUT, after_chunks=after, requests=1))
    reported, name = await ask(place.gateway.at("traffic"), api)
    for pod in place.pods:
        pod.set_fault(NO_FAULT)
    assert len(stated(hear(api, undisturbed))) >= 2, "it thinks and calls"
    assert stated(hear(api, reported)) == stated(hear(api, undisturbed))
    assert counts(reported) == counts(undisturbed)
    receipt = await place.receipt(name)
    assert (receipt["status"], receipt["resume_failure"]) == (200, None)
    assert receipt["resumes"] >= 1
    assert receipt["wasted_tokens"] > 0
    assert receipt["attempts"][-1]["result"] == "ok"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("after", [4, 15, 22])
@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES])
async def test_an_answer_that_its_engines_give_up_goes_on(place: Place, api: Api, after: int) -> None:
    """One after the other, in a thought and in a call: no block is closed before all of it was said."""
    undisturbed, _ = await ask(place.pods[0].url, api)
    for pod in place.pods:
        pod.set_fault(Fault(FaultKind.ABORT, after_chunks=after, requests=1))
    reported, name = await ask(place.gateway.at("traffic"), api)
    for pod in place.pods:
        pod.set_fault(NO_FAULT)
    received, wanted = hear(api, reported), hear(api, undisturbed)
    assert (received.texts, received.once) == (wanted.texts, wanted.once)
    assert counts(reported) == counts(undisturbed)
    receipt = await place.receipt(name)
    assert (receipt["status"], receipt["resume_failure"]) == (200, None)
    assert [attempt["result"] for attempt in receipt["attempts"]] == ["connection_reset", "connection_reset", "ok"]


@pytest.mark.asyncio(loop_scope="module")
async def test_calls_that_are_drawn_end_with_their_pod(place: Place) -> None:
    """The next pod would draw others."""
    for pod in place.pods:
        pod.set_fault(Fault(FaultKind.CUT, after_chunks=15, requests=1))
    reported, name = await ask(place.gateway.at("traffic"), Api.CHAT, temperature=0.7)
    for pod in place.pods:
        pod.set_fault(NO_FAULT)
    assert b'"pod_lost"' in reported
    assert (await place.receipt(name))["resume_failure"] == "tool_call"

"""Answers that think, drawn at a temperature, lose their pod in thoughts or text: their clients read them unbroken."""

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
from tests.gateway.resume.test_replay import events_of, hear
from tests.gateway.running import serving
from tests.scenarios.place import FAST
from tests.scenarios.test_resume import Place

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"

ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell."}],
    "max_tokens": 40,
    "temperature": 0.7,
    "stream": True,
    "stream_options": {"include_usage": True},
}

THOUGHT = 12
"""Pieces at most; the role's event goes before them."""

POSITIONS = range(2, 32)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        # Simulated pods draw the same at any temperature, so that a continuation can be told from another answer.
        options = Options(
            models=("tiny",), max_reasoning_tokens=THOUGHT, min_answer_tokens=30, max_answer_tokens=30, profile=FAST
        )
        pods = [await stack.enter_async_context(SimulatedPod(options)) for _ in range(2)]
        flags = [word for pod in pods for word in ("--pod", pod.url)]
        gateway = await stack.enter_async_context(serving(*flags))
        for _ in pods:
            await gateway.until("pod_state_changed", state="ready")
        yield Place(gateway, pods)


async def ask(url: str, path: str = CHAT, **more: Any) -> tuple[bytes, str]:
    """A stream as it came, and the name of its receipt."""
    async with aiohttp.ClientSession() as session, session.post(url + path, json=ASKED | more) as got:
        assert got.status == 200, await got.text()
        return await got.read(), got.headers.get("x-hearth-request-id", "")


def reported(stream: bytes) -> tuple[object, ...]:
    """All that a client makes of it: texts by their kinds, why it ended, what it counts as, and under how many ids."""
    events = events_of(stream)
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    usage = [{**event["usage"], "prompt_tokens_details": None} for event in events if event.get("usage")]
    return hear(Api.CHAT, stream).texts, reasons, usage, len({event["id"] for event in events})


def cut_both(place: Place, after: int) -> None:
    for pod in place.pods:
        pod.set_fault(Fault(FaultKind.CUT, after_chunks=after, requests=1))


def cut_none(place: Place) -> None:
    for pod in place.pods:
        pod.set_fault(NO_FAULT)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("after", POSITIONS)
async def test_thoughts_go_on_at_another_pod(place: Place, after: int) -> None:
    """Wherever it is cut: inside them, beside the mark that ends them, in the text behind them."""
    undisturbed, _ = await ask(place.pods[0].url)
    cut_both(place, after)
    stream, name = await ask(place.gateway.at("traffic"))
    cut_none(place)
    assert reported(stream) == reported(undisturbed)
    receipt = await place.receipt(name)
    assert (receipt["status"], receipt["resume_failure"]) == (200, None)
    assert receipt["resumes"] >= 1


def told_of_message(stream: bytes) -> tuple[object, ...]:
    """The same of a message: its blocks in their order, why it ended, what it counts as; its one beginning names it."""
    received = hear(Api.MESSAGES, stream)
    ends = [event["delta"] for event in events_of(stream) if event["type"] == "message_delta"]
    counts = [(usage["input_tokens"], usage["output_tokens"]) for usage in received.usage]
    return received.texts, received.once, ends, counts, len(received.ids)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("after", range(1, 45))
async def test_thoughts_of_a_message_go_on_at_another_pod(place: Place, after: int) -> None:
    """Wherever it is cut: behind each of its events, the ends and beginnings of blocks among them."""
    undisturbed, _ = await ask(place.pods[0].url, MESSAGES)
    cut_both(place, after)
    stream, name = await ask(place.gateway.at("traffic"), MESSAGES)
    cut_none(place)
    assert told_of_message(stream) == told_of_message(undisturbed)
    receipt = await place.receipt(name)
    assert (receipt["status"], receipt["resume_failure"]) == (200, None)
    assert receipt["resumes"] >= 1


@pytest.mark.asyncio(loop_scope="module")
async def test_thoughts_about_a_long_prompt_go_on(place: Place) -> None:
    """The event that proves them is then longer than any that is passed on whole."""
    long: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell. " * 30_000}]}
    undisturbed, _ = await ask(place.pods[0].url, **long)
    cut_both(place, 5)
    stream, _ = await ask(place.gateway.at("traffic"), **long)
    cut_none(place)
    assert reported(stream) == reported(undisturbed)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_client_is_sent_no_ids_that_it_did_not_ask_for(place: Place) -> None:
    """They only prove that the pod goes on with the very prompt."""
    cut_both(place, 4)
    stream, _ = await ask(place.gateway.at("traffic"))
    cut_none(place)
    choices = [choice for event in events_of(stream) for choice in event["choices"]]
    assert all(choice.get("token_ids") is None for choice in choices)
    assert b'prompt_token_ids":[' not in stream


@pytest.mark.asyncio(loop_scope="module")
async def test_undelivered_thoughts_end_with_their_pod(place: Place) -> None:
    """What a client did not want to hear is not known."""
    cut_both(place, 4)
    stream, name = await ask(place.gateway.at("traffic"), include_reasoning=False)
    cut_none(place)
    assert b'"pod_lost"' in stream
    assert (await place.receipt(name))["resume_failure"] == "reasoning"

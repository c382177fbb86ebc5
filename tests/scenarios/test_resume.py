"""Streams that lose their pod in the middle, in every API and every way: their clients read one unbroken answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from routing.request import Api
from simulator.faults import NO_FAULT, Fault, FaultKind, Spot
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.resume.client_view import Read, read
from tests.gateway.running import Running, serving
from tests.scenarios.place import FAST

TOKENS = 24

WORDS: dict[Api, tuple[str, dict[str, Any]]] = {
    Api.CHAT: (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Tell."}], "stream_options": {"include_usage": True}},
    ),
    Api.COMPLETIONS: ("/v1/completions", {"prompt": "Tell.", "stream_options": {"include_usage": True}}),
    Api.MESSAGES: ("/v1/messages", {"messages": [{"role": "user", "content": "Tell."}]}),
    Api.RESPONSES: ("/v1/responses", {"input": "Tell."}),
}

LOSSES = [
    Fault(FaultKind.CUT, after_chunks=7, requests=1),
    Fault(FaultKind.CUT, after_chunks=7, requests=1, spot=Spot.EVENT),
    Fault(FaultKind.RESET, after_chunks=9, requests=1, spot=Spot.CHARACTER),
]


@dataclass(frozen=True)
class Place:
    """A gateway before two pods that give equal answers."""

    gateway: Running
    pods: list[SimulatedPod]

    async def receipt(self, name: str) -> dict[str, Any]:
        """Written when the request has left."""
        url = self.gateway.at("admin", f"/receipts/{name}")
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return dict(await answer.json())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        options = Options(models=("tiny",), min_answer_tokens=40, max_answer_tokens=40, profile=FAST, accents=True)
        pods = [await stack.enter_async_context(SimulatedPod(options)) for _ in range(2)]
        flags = [word for pod in pods for word in ("--pod", pod.url)]
        gateway = await stack.enter_async_context(serving(*flags))
        for _ in pods:
            await gateway.until("pod_state_changed", state="ready")
        yield Place(gateway, pods)


async def ask(url: str, api: Api) -> tuple[Read, str]:
    """What a client makes of an answer, and the name of its receipt."""
    path, body = WORDS[api]
    limit = "max_output_tokens" if api is Api.RESPONSES else "max_tokens"
    requested = {"model": "tiny", "stream": True, limit: TOKENS, **body}
    async with aiohttp.ClientSession() as session, session.post(url + path, json=requested) as answer:
        assert answer.status == 200, await answer.text()
        return read(api, await answer.read()), answer.headers.get("x-hearth-request-id", "")


def alike(received: Read) -> tuple[object, ...]:
    """What of an answer is the same whichever pod gives it."""
    usage = received.usage[0]
    words = ("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens")
    counts = {word: usage[word] for word in words if word in usage}
    return received.text, received.opened, len(received.closed), len(received.endings), counts


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("api", WORDS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.kind}-{loss.spot}")
async def test_a_stream_goes_on_at_another_pod(place: Place, api: Api, loss: Fault) -> None:
    """Both pods lose it once: text, end and usage are those of an undisturbed run, under one id."""
    undisturbed, _ = await ask(place.pods[0].url, api)
    for pod in place.pods:
        pod.set_fault(loss)
    received, name = await ask(place.gateway.at("traffic"), api)
    for pod in place.pods:
        pod.set_fault(NO_FAULT)
    assert alike(received) == alike(undisturbed)
    if api in (Api.CHAT, Api.COMPLETIONS):
        assert len(received.ids) == 1
    receipt = await place.receipt(name)
    assert receipt["resumes"] >= 1
    assert receipt["resume_failure"] is None
    assert receipt["wasted_tokens"] > 0
    assert receipt["status"] == 200
    assert [attempt["result"] for attempt in receipt["attempts"]][-1] == "ok"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.MESSAGES])
async def test_an_answer_that_its_engine_gave_up_goes_on(place: Place, api: Api) -> None:
    """Well framed and not finished: an end that is none. vLLM's responses do not tell it from a good one.

    vLLM closes the block of a message before it tells why: it goes on in another.
    """
    undisturbed, _ = await ask(place.pods[0].url, api)
    for pod in place.pods:
        pod.set_fault(Fault(FaultKind.ABORT, after_chunks=6, requests=1))
    received, _ = await ask(place.gateway.at("traffic"), api)
    for pod in place.pods:
        pod.set_fault(NO_FAULT)
    assert (received.text, received.endings) == (undisturbed.text, undisturbed.endings)
    assert alike(received)[-1] == alike(undisturbed)[-1]

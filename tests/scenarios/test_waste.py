"""What a cut makes engines compute again is told alike on receipt, log line and metrics, and is what they computed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from simulator.faults import NO_FAULT, Fault, FaultKind
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.running import serving
from tests.scenarios.place import FAST
from tests.scenarios.test_resume import Place

CHAT = "/v1/chat/completions"

SAID = 7
"""Events before a cut, the first of which has the role only."""

AGAIN = {"temperature": 0, "response_format": {"type": "json_object"}}
"""Cannot be gone on with, and is the same again."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        options = Options(models=("tiny",), min_answer_tokens=40, max_answer_tokens=40, profile=FAST)
        pods = [await stack.enter_async_context(SimulatedPod(options)) for _ in range(3)]
        flags = [word for pod in pods for word in ("--pod", pod.url)]
        gateway = await stack.enter_async_context(serving(*flags))
        for _ in pods:
            await gateway.until("pod_state_changed", state="ready")
        yield Place(gateway, pods)


async def sum_of(url: str, *parts: str) -> float:
    """The sum of a page's samples that have all these in their names."""
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if all(part in line for part in parts))


async def computed(pod: SimulatedPod) -> float:
    """Prompt tokens that its engine has computed, by its own count."""
    return await sum_of(f"{pod.url}/metrics", "vllm:prompt_tokens_by_source_total{", 'source="local_compute"')


async def wasted(place: Place) -> float:
    """In all, as the gateway's metrics tell."""
    return await sum_of(place.gateway.at("metrics", "/metrics"), "hearth_stream_resume_wasted_tokens_total{")


async def ask(place: Place, words: str, **more: Any) -> str:
    """The name of the receipt of a stream that was read to its end."""
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": words * 40}], "max_tokens": 24}
    url = place.gateway.at("traffic", CHAT)
    async with aiohttp.ClientSession() as session, session.post(url, json=body | more) as answer:
        assert answer.status == 200, await answer.text()
        assert b'"error"' not in await answer.read()
        return answer.headers["x-hearth-request-id"]


def other_pods(place: Place, receipt: dict[str, Any]) -> list[SimulatedPod]:
    """Those that the last attempt was not made at."""
    return [pod for pod in place.pods if pod.url != receipt["attempts"][-1]["engine"]]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("words", "more", "again"), [("Go on. ", {}, 0), ("Say it again. ", AGAIN, SAID - 1)])
async def test_what_is_computed_again_is_what_is_reported(
    place: Place, words: str, more: dict[str, Any], again: int
) -> None:
    """A continuation costs its prefill; an answer that is said again costs besides what was said of it."""
    first = await place.receipt(await ask(place, words, **more))
    assert first["wasted_tokens"] == 0
    others = other_pods(place, first)
    holder = next(pod for pod in place.pods if pod not in others)
    computed_before, wasted_before = sum([await computed(pod) for pod in others]), await wasted(place)
    holder.set_fault(Fault(FaultKind.CUT, after_chunks=SAID, requests=1))
    receipt = await place.receipt(await ask(place, words, **more))
    holder.set_fault(NO_FAULT)
    assert [attempt["result"] for attempt in receipt["attempts"]] == ["connection_reset", "ok"]
    made = sum([await computed(pod) for pod in others]) - computed_before
    assert receipt["wasted_tokens"] == made + again > again
    assert await wasted(place) - wasted_before == receipt["wasted_tokens"]
    line = await place.gateway.until("request_completed", request_id=receipt["id"])
    assert line["wasted_tokens"] == receipt["wasted_tokens"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("words", "more"), [("On, and on. ", {}), ("Again, and again. ", AGAIN)])
async def test_what_was_computed_again_in_vain_counts_too(place: Place, words: str, more: dict[str, Any]) -> None:
    """The pod that goes on is lost as well, before it could tell usage: its prefill counts as foretold."""
    first = await place.receipt(await ask(place, words, **more))
    for pod in place.pods:
        pod.set_fault(Fault(FaultKind.CUT, after_chunks=SAID, requests=1))
    others = other_pods(place, first)
    before = sum([await computed(pod) for pod in others])
    receipt = await place.receipt(await ask(place, words, **more))
    for pod in place.pods:
        pod.set_fault(NO_FAULT)
    assert [attempt["result"] for attempt in receipt["attempts"]][:2] == ["connection_reset", "connection_reset"]
    reported = sum([await computed(pod) for pod in others]) - before
    assert receipt["wasted_tokens"] > 1.5 * reported / len(others)

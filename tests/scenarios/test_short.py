"""A completion of a few tokens, cut anywhere: its client is told text, end and usage as of one that nobody disturbs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pytest
import pytest_asyncio

from routing.request import Api
from simulator.faults import NO_FAULT, Fault, FaultKind, Spot
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.resume.client_view import Read, read
from tests.gateway.running import serving
from tests.scenarios.place import FAST
from tests.scenarios.test_resume import Place

TOKENS = 5

EVENTS = TOKENS + 3
"""Of all its tokens, its end, its usage and [DONE], as far as each has one of its own."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        options = Options(models=("tiny",), min_answer_tokens=40, max_answer_tokens=40, profile=FAST, accents=True)
        pods = [await stack.enter_async_context(SimulatedPod(options)) for _ in range(2)]
        gateway = await stack.enter_async_context(serving(*(word for pod in pods for word in ("--pod", pod.url))))
        for _ in pods:
            await gateway.until("pod_state_changed", state="ready")
        yield Place(gateway, pods)


async def ask(url: str, *, tells: bool) -> tuple[Read, str]:
    """What a client makes of it, and the name of its receipt."""
    more = {"stream_options": {"include_usage": True}} if tells else {}
    body = {"model": "tiny", "prompt": "Tell.", "max_tokens": TOKENS, "stream": True, **more}
    async with aiohttp.ClientSession() as session, session.post(url + "/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return read(Api.COMPLETIONS, await answer.read()), answer.headers.get("x-hearth-request-id", "")


def counts(received: Read) -> list[tuple[int, int]]:
    return [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in received.usage]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("after", range(1, EVENTS + 1))
@pytest.mark.parametrize("tells", [True, False])
async def test_a_short_completion_may_be_cut_anywhere(place: Place, after: int, tells: bool) -> None:
    """Between two events and in the middle of one; usage is told where it was asked for, and always known to us."""
    undisturbed, _ = await ask(place.pods[0].url, tells=tells)
    for spot in (Spot.BETWEEN, Spot.EVENT):
        for pod in place.pods:
            pod.set_fault(Fault(FaultKind.RESET, after_chunks=after, requests=1, spot=spot))
        received, name = await ask(place.gateway.at("traffic"), tells=tells)
        for pod in place.pods:
            pod.set_fault(NO_FAULT)
        assert (received.text, received.endings, received.closed) == (
            undisturbed.text,
            undisturbed.endings,
            undisturbed.closed,
        )
        assert counts(received) == counts(undisturbed)
        assert len(received.usage) == tells
        assert (await place.receipt(name))["usage"]["output_tokens"] == TOKENS

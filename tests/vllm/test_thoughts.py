"""Real pods that think: they keep the contracts, and nobody hears of kill -9 of one that thinks, calls or has a schema.

Each stream is asked for again at the other, at temperature 0, and passed over as far as it was told.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.chaos.dialects import MODEL, listen
from tests.chaos.requested import Api, Asked, Heard, Tenant, Wanted
from tests.chaos.sdks import Sdks
from tests.conformance.subject import Subject, acquaint
from tests.conformance.thinking import ThinkingContract
from tests.vllm.gateways import Gateway, in_front, until
from tests.vllm.metered import Meter, metered
from tests.vllm.pods import Pod, running
from tests.vllm.test_pod_loss import drain
from tests.vllm.thinker import build, thinking

pytestmark = pytest.mark.timeout(900, func_only=True)

PATIENCE_S = 300

MIN_PIECES = 80

CUT_AT_BYTES = 8_000
"""Of each response: all are several times as long."""

MOST_TOKENS = 700
"""Long enough for all streams to begin before the first ends; what is kept of each stays below its bound."""

STREAMS = {
    "thoughts": (Api.CHAT, Wanted.TEXT, True),
    "thoughts of a message": (Api.MESSAGES, Wanted.TEXT, True),
    "thoughts of a response": (Api.RESPONSES, Wanted.TEXT, True),
    "a call": (Api.CHAT, Wanted.ORDERED_CALL, False),
    "a schema": (Api.CHAT, Wanted.SCHEMA, False),
}


def asking(number: int, name: str) -> Asked:
    api, wanted, thinks = STREAMS[name]
    prompt = f"Tell me of the harbour and its ships, and of {name}."
    return Asked(number, api, Tenant.WIDE, prompt, True, MOST_TOKENS, None, wanted, thinks)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinkers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Pod, ...]]:
    """Two alike, started when the first test here begins: they are small."""
    folder = tmp_path_factory.mktemp("models") / "thinker"
    build(folder)
    async with running([thinking(folder, MODEL)] * 2) as pods:
        yield pods


class OfAThinker:
    @pytest.fixture
    async def subject(self, thinkers: tuple[Pod, ...]) -> Subject:
        return await acquaint(thinkers[1].url)


class TestThinking(OfAThinker, ThinkingContract): ...


def ignore_event() -> None:
    """Of a stream."""


async def test_thoughts_calls_and_schemas_outlive_their_pod(thinkers: tuple[Pod, ...]) -> None:
    """Field by field: thoughts, text, calls, the reason to end, tokens."""
    victim, other = thinkers
    async with metered(victim.url, CUT_AT_BYTES, len(STREAMS)) as meter, in_front([meter.url, other.url]) as gateway:
        await outlive(gateway, meter, victim, other)


async def outlive(gateway: Gateway, meter: Meter, victim: Pod, other: Pod) -> None:
    """The victim is gone afterwards."""
    front, *direct = sdks = [Sdks(url, "none") for url in (gateway.url, victim.url, other.url)]
    requested = [asking(number, name) for number, name in enumerate(STREAMS)]
    undisturbed = [[Heard() for _ in requested] for _ in direct]
    for pod, received in zip(direct, undisturbed, strict=True):
        for each, one in zip(requested, received, strict=True):
            await listen(pod, each, one, ignore_event)
    wanted = [one.answer for one in undisturbed[0]]
    assert wanted == [one.answer for one in undisturbed[1]], "the pods do not say the same"
    for name, one in zip(STREAMS, undisturbed[0], strict=True):
        assert len(one.pieces) > MIN_PIECES, name

    received = [Heard() for _ in requested]
    drain(gateway, other)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as streams:
        for each, one in zip(requested, received, strict=True):
            streams.create_task(listen(front, each, one, ignore_event))
        await meter.all_held.wait()
        drain(gateway, other, undo=True)
        victim.kill()
        meter.cut()
    for name, one, answer in zip(STREAMS, received, wanted, strict=True):
        assert one.answer == answer, name
    await asyncio.to_thread(until, lambda: gateway.charged() == [], "nothing is charged any more")
    await asyncio.to_thread(until, lambda: len(requests_of(gateway)) == len(STREAMS), "a line of each request")
    assert [line.get("resumes") for line in requests_of(gateway)] == [1] * len(STREAMS)
    for client in sdks:
        await client.close()


def requests_of(gateway: Gateway) -> list[Any]:
    """What it has logged of them."""
    return [line for line in gateway.logged() if line.get("event") == "request_completed"]

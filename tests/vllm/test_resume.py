"""kill -9 of the real pod that is streaming: clients hear one unbroken answer, the one that nothing had disturbed."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conformance.subject import CHAT, Subject
from tests.vllm.gateways import Gateway, in_front, read_json, until
from tests.vllm.pods import BLOCK_TOKENS, CONTEXT_TOKENS, Pod
from tests.vllm.sayings import MOST_TOKENS, SAY, WALK, Heard, clients_of, heard_at, is_steady
from tests.vllm.test_pod_loss import drain

pytestmark = pytest.mark.timeout(900, func_only=True)

PATIENCE_S = 300


@pytest_asyncio.fixture
async def pair(pods: tuple[Pod, ...]) -> AsyncIterator[tuple[Gateway, Pod, Pod]]:
    """A gateway, a pod that will die, and one that stays. Both pods are well again afterwards."""
    victim, other = pods
    async with in_front([pod.url for pod in pods]) as gateway:
        try:
            yield gateway, victim, other
        finally:
            if not victim.is_running:
                victim.start_again()
                await victim.ready()


async def test_the_pod_of_every_stream_is_killed(pair: tuple[Gateway, Pod, Pod]) -> None:
    """In all four APIs: same text, one id, one role, one end, usage counted once; and a whole answer is asked again."""
    gateway, victim, other = pair
    direct = Subject(other.url, other.model, BLOCK_TOKENS, CONTEXT_TOKENS)
    await is_steady(direct)
    undisturbed = {path: await heard_at(other.url, other.model, path) for path in SAY}
    complete = direct.request(CHAT, WALK, tokens=MOST_TOKENS)
    reported = (await direct.post(CHAT, complete)).json()["choices"]

    front = Subject(gateway.url, other.model, BLOCK_TOKENS, CONTEXT_TOKENS)
    received = {path: Heard() for path in SAY}
    drain(gateway, other)
    async with asyncio.timeout(PATIENCE_S), clients_of(gateway.url) as clients, asyncio.TaskGroup() as streams:
        for path, log_event in SAY.items():
            streams.create_task(log_event(clients, other.model, received[path]))
        at_once = streams.create_task(front.post(CHAT, complete))
        for one in received.values():
            await one.has_started.wait()
        drain(gateway, other, undo=True)
        victim.kill()
    for path, one in received.items():
        assert one.answer == undisturbed[path].answer, path
        receipt = gateway.receipt(one.receipt)
        assert receipt.pods == (victim.url, other.url), path
        assert receipt.status == 200
    answer = await at_once
    assert answer.json()["choices"] == reported
    assert gateway.receipt(answer.headers["x-hearth-request-id"]).pods == (victim.url, other.url)
    await asyncio.to_thread(until, lambda: gateway.charged() == [], "nothing is charged any more")
    assert read_json(f"{gateway.admin}/receipts/{received[CHAT].receipt}")["resumes"] == 1

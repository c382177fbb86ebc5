"""A client that leaves: the engine stops within a step, what was charged is given back, and nobody counts an answer."""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence

import anthropic
import openai
import pytest

from tests.conformance.measures import value
from tests.conformance.subject import APIS, PATIENCE_S, Subject
from tests.conformance.wire import spell
from tests.vllm.gateways import Gateway, until
from tests.vllm.pods import BLOCK_TOKENS, CONTEXT_TOKENS, Pod

ENDLESS = CONTEXT_TOKENS - 200
"""Tokens; on a small machine more than ten seconds of work."""

COUNTING = "Write all the numbers from 1 to 1000, one after the other: 1, 2, 3, 4, 5, 6, 7, 8,"
"""Takes this model to its limit also by the API that cannot be told to ignore the end."""


def subject(url: str, pod: Pod) -> Subject:
    return Subject(url, pod.model, BLOCK_TOKENS, CONTEXT_TOKENS)


async def total(pods: Sequence[Pod], name: str) -> float:
    """A metric, over all pods, as they tell it themselves."""
    return sum([await value(subject(pod.url, pod), name) for pod in pods])


async def until_running(pods: Sequence[Pod], wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await total(pods, "num_requests_running") != wanted:
            pass


async def assert_left(gateway: Gateway, pods: Sequence[Pod], generated: float) -> None:
    """Nothing runs, nothing is charged, and far less was generated than was asked for."""
    await until_running(pods, 0)
    until(lambda: gateway.charged() == [], "an empty ledger")
    assert await total(pods, "generation_tokens_total") - generated < ENDLESS


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_is_cut(gateway: Gateway, pods: tuple[Pod, ...], path: str, stream: bool) -> None:
    """By each API, streamed or not: what the pod runs for it is stopped."""
    front = subject(gateway.url, pods[0])
    generated = await total(pods, "generation_tokens_total")
    reader, writer = await front.connect()
    try:
        requested = front.request(path, COUNTING, tokens=ENDLESS, stream=stream, ignore_eos=True)
        writer.write(spell("POST", path, requested, {"Content-Type": "application/json"}))
        if stream:
            await reader.readuntil(b"\n\n")
        await until_running(pods, 1)
        assert len(gateway.charged()) == 1
    finally:
        writer.close()
        await writer.wait_closed()
    await assert_left(gateway, pods, generated)


async def test_a_stream_that_openais_client_closes(gateway: Gateway, pods: tuple[Pod, ...]) -> None:
    """Leaving the loop over the chunks is enough; the receipt says that the client has gone."""
    generated = await total(pods, "generation_tokens_total")
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=pods[0].model,
            messages=[{"role": "user", "content": COUNTING}],
            max_tokens=ENDLESS,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async with raw.parse() as stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
    await assert_left(gateway, pods, generated)
    receipt = gateway.receipt(raw.headers["x-hearth-request-id"])
    assert (receipt.status, receipt.ends) == (499, ("client_gone",))


async def test_a_request_that_anthropics_client_cancels(gateway: Gateway, pods: tuple[Pod, ...]) -> None:
    """A task that is cancelled while it waits for a whole answer."""
    generated = await total(pods, "generation_tokens_total")
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none") as client:
        asking = asyncio.create_task(
            client.messages.create(
                model=pods[0].model,
                messages=[{"role": "user", "content": COUNTING}],
                max_tokens=ENDLESS,
                extra_body={"ignore_eos": True},
            )
        )
        await until_running(pods, 1)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
    await assert_left(gateway, pods, generated)


async def test_many_that_leave_at_once(gateway: Gateway, pods: tuple[Pod, ...]) -> None:
    """Also those that waited behind others, and those that had only just come."""
    front = subject(gateway.url, pods[0])
    generated = await total(pods, "generation_tokens_total")
    requested = [
        asyncio.create_task(front.post(path, front.request(path, text, tokens=ENDLESS, stream=True, ignore_eos=True)))
        for path in APIS
        for text in (f"{secrets.token_hex(2)}: {COUNTING}" for _ in range(6))
    ]
    # Eight run on each pod; the rest wait.
    await until_running(pods, 16)
    for task in requested:
        task.cancel()
    await asyncio.gather(*requested, return_exceptions=True)
    await until_running(pods, 0)
    until(lambda: gateway.charged() == [], "an empty ledger")
    assert await total(pods, "num_requests_waiting") == 0
    assert await total(pods, "generation_tokens_total") - generated < 16 * ENDLESS

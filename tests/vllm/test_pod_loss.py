"""A real pod dies under load, and comes back: who had no byte yet is served elsewhere, and its warmth is forgotten."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
import pytest_asyncio

from tests.conformance.subject import CHAT, COMPLETIONS, MESSAGES, Subject
from tests.conformance.wire import spell
from tests.vllm.gateways import Gateway, in_front, read_json, until
from tests.vllm.pods import BLOCK_TOKENS, CONTEXT_TOKENS, Pod

pytestmark = pytest.mark.timeout(900, func_only=True)

WORKERS = 6


class End(Enum):
    SERVED = "served"
    CUT = "cut after its first byte"
    FAILED = "failed before its first byte"


@dataclass(slots=True)
class Load:
    """Clients that ask again and again, streamed and not, until they are told to stop."""

    front: Subject
    ends: list[tuple[End, str]] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, number: int) -> None:
        turn = number
        while not self.stopped.is_set():
            path = (CHAT, COMPLETIONS, MESSAGES)[turn % 3]
            self.ends.append(await self.ask(path, stream=turn % 2 == 0))
            turn += 1

    async def ask(self, path: str, *, stream: bool) -> tuple[End, str]:
        try:
            answer = await self.front.post(path, self.front.request(path, tokens=32, stream=stream, ignore_eos=True))
        except (OSError, ValueError) as fault:
            return End.FAILED, f"{path} stream={stream}: {fault!r}"
        words = f"{path} stream={stream}: {answer.status} {answer.body[-300:]!r}"
        if answer.status != 200:
            return End.FAILED, words
        if not answer.is_whole or b'"error"' in answer.body:
            return End.CUT, words
        return End.SERVED, words

    async def until_served(self, more: int) -> None:
        """Wait until so many more have been served."""
        wanted = len(self.ends) + more
        async with asyncio.timeout(120):
            while len(self.ends) < wanted:
                await asyncio.wait_for(asyncio.to_thread(self.front_is_asked), 30)

    def front_is_asked(self) -> None:
        read_json(f"{self.front.url}/v1/models")


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


def drain(gateway: Gateway, pod: Pod, *, undo: bool = False) -> None:
    """Let a pod have no more requests, or again."""
    request = urllib.request.Request(
        f"{gateway.admin}/pods/{'undrain' if undo else 'drain'}", f'{{"pod": "{pod.url}"}}'.encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def running_on(gateway: Gateway, pod: Pod) -> int:
    return sum(engine["own_load"]["running"] for engine in gateway.pod(pod.url)["engines"])


async def ask_on(gateway: Gateway, pod: Pod, others: Pod, front: Subject, prompt: str) -> Any:
    """A request that only this pod can get, and its receipt."""
    drain(gateway, others)
    try:
        answer = await front.post(CHAT, front.request(CHAT, prompt))
    finally:
        drain(gateway, others, undo=True)
    assert answer.status == 200, answer.body
    receipt = gateway.receipt(answer.headers["x-hearth-request-id"])
    assert receipt.pods == (pod.url,)
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"], receipt


async def test_a_pod_dies_and_comes_back(pair: tuple[Gateway, Pod, Pod]) -> None:
    """Killed under load, gone from the choice, back through slow start with nothing believed warm."""
    gateway, victim, other = pair
    front = Subject(gateway.url, victim.model, BLOCK_TOKENS, CONTEXT_TOKENS)
    prompt = front.prompt(200)
    await ask_on(gateway, victim, other, front, prompt)
    cached, receipt = await ask_on(gateway, victim, other, front, prompt)
    assert cached > 100
    assert receipt.predicted_cached_input_tokens > 100

    load = Load(front)
    async with asyncio.TaskGroup() as clients:
        for number in range(WORKERS):
            clients.create_task(load.work(number))
        await load.until_served(WORKERS)
        await asyncio.to_thread(until, lambda: running_on(gateway, victim) >= 2, "requests on the pod that will die")
        victim.kill()
        await asyncio.to_thread(until, lambda: gateway.pod(victim.url)["state"] == "open_circuit", "an open breaker")
        await load.until_served(2 * WORKERS)
        load.stopped.set()
    assert [words for end, words in load.ends if end is End.FAILED] == []
    assert len([end for end, _ in load.ends if end is End.CUT]) <= WORKERS
    assert gateway.pod(victim.url)["breaker"]["open_count"] >= 1
    assert gateway.charged() == []
    assert any(line["event"] == "breaker_opened" for line in gateway.logged())

    victim.start_again()
    await victim.ready()
    await asyncio.to_thread(until, lambda: gateway.pod(victim.url)["state"] == "ready", "the pod back")
    shown = gateway.pod(victim.url)
    assert shown["ready_for_s"] is not None, "it counts as new"
    assert shown["engines"][0]["approximate_index_bytes"] == 0, "nothing is believed to be there"
    await assert_started_slowly(gateway, victim, other, front)
    cached, receipt = await ask_on(gateway, victim, other, front, prompt)
    assert (cached, receipt.predicted_cached_input_tokens) == (0, 0)


async def assert_started_slowly(gateway: Gateway, victim: Pod, other: Pod, front: Subject) -> None:
    """While something runs on a pod that is new, it seems the busier for being new."""
    drain(gateway, other)
    reader, writer = await front.connect()
    try:
        endless = front.request(CHAT, tokens=CONTEXT_TOKENS - 200, stream=True, ignore_eos=True)
        writer.write(spell("POST", CHAT, endless, {"Content-Type": "application/json"}))
        await reader.readuntil(b"\n\n")
        drain(gateway, other, undo=True)
        answer = await front.post(CHAT, front.request(CHAT))
    finally:
        writer.close()
        await writer.wait_closed()
    receipt = gateway.receipt(answer.headers["x-hearth-request-id"])
    assert receipt.pods == (other.url,)
    slow = {shown["engine"]: shown["scores_s"].get("slow_start", 0) for shown in receipt.candidates}
    assert slow[victim.url] > 0
    assert slow[other.url] == 0
    await asyncio.to_thread(until, lambda: gateway.charged() == [], "the stream has left")

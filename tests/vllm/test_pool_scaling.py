"""A pool of prefill pods grows and shrinks under load, on real vLLM with NIXL: no request fails, no answer differs.

The pods come and go as they do in production: an agent registers each, drains it or loses it, and the gateway is told
of Redis only. Engines may stall here and there, so nothing is judged by how fast it was.
"""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.gateway.kv_index import redis_servers
from tests.gateway.kv_index.redis_servers import redis_server
from tests.vllm.agents import AgentChild, found_on
from tests.vllm.gateways import Gateway, in_front, read_json, until
from tests.vllm.pods import FINE, Pod, PodPlan, running
from tests.vllm.test_pairs import ANSWER_TOKENS, CONFIG, GUARD_S, alone, nixl, prompt, ready

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900, func_only=True)]

CLIENTS = 4

PAIRED = 12
"""Answers by way of a prefill pod after which it counts as used."""

COMPARED = 200
"""Answers that are held against those of one pod alone."""

BY_A_POD_THAT_LEFT = frozenset(("prefill_failed", "transfer_failed", "decode_failed", "unfit_params"))
"""Fallbacks that a drained pod may not cause. A stall is no such thing: this machine may cause it."""


HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class Answer:
    """One request that was answered."""

    text: str
    prompt: str
    prefill: str | None
    """Pod that computed the prompt for another one."""
    fallbacks: tuple[str, ...]


@dataclass(slots=True)
class Load:
    """Clients that ask again and again with new prompts, streamed and not."""

    gateway: Gateway
    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Condition = field(default_factory=asyncio.Condition)
    _numbers: Any = field(default_factory=itertools.count)

    async def work(self) -> None:
        """Ask until stopped."""
        async with aiohttp.ClientSession(self.gateway.url, timeout=aiohttp.ClientTimeout(total=GUARD_S)) as session:
            while not self.stopped.is_set():
                number = next(self._numbers)
                try:
                    self.answers.append(await self._ask(session, prompt(number), stream=number % 2 == 0))
                except (aiohttp.ClientError, AssertionError, LookupError, ValueError, TimeoutError) as fault:
                    self.failures.append(f"request {number}: {fault!r}")
                async with self._ended:
                    self._ended.notify_all()

    async def _ask(self, session: aiohttp.ClientSession, text: str, *, stream: bool) -> Answer:
        generated, receipt = await ask(session, text, stream=stream)
        attempts = (await asyncio.to_thread(read_receipt, self.gateway, receipt))["attempts"]
        fallbacks = tuple(one["fallback_reason"] for one in attempts if one["fallback_reason"] is not None)
        return Answer(generated, text, attempts[-1]["prefill_engine"], fallbacks)

    async def until_paired(self, pod: Pod) -> int:
        """Wait until a pod has prefilled for some more answers. Returns the number of all answers."""
        wanted = self.prefilled(pod) + PAIRED
        return await self._until(lambda: self.prefilled(pod) >= wanted)

    async def until_answered(self, count: int) -> int:
        """Wait until so many requests have been answered in all."""
        return await self._until(lambda: len(self.answers) >= count)

    async def _until(self, holds: Callable[[], bool]) -> int:
        async with asyncio.timeout(GUARD_S), self._ended:
            await self._ended.wait_for(lambda: holds() or bool(self.failures))
        assert not self.failures, self.failures
        return len(self.answers)

    def prefilled(self, pod: Pod, since: int = 0) -> int:
        """Answers after the first `since` whose prompt a pod has computed."""
        return sum(answer.prefill == pod.url for answer in self.answers[since:])

    def fallbacks(self, since: int = 0) -> Counter[str]:
        """Why pairs were given up, of the answers after the first `since`."""
        return Counter(reason for answer in self.answers[since:] for reason in answer.fallbacks)


@dataclass(frozen=True, slots=True)
class Pool:
    """A decode pod, a prefill pod, a place for another one, and the gateway in front of them."""

    redis_url: str
    prefill: Pod
    decode: Pod
    gateway: Gateway
    stack: AsyncExitStack

    def register(self, pod: Pod, role: str) -> AgentChild:
        """Start an agent beside a pod; it ends with the test at the latest."""
        return register(self.redis_url, pod, role, self.stack)


def register(redis_url: str, pod: Pod, role: str, stack: AsyncExitStack) -> AgentChild:
    port = int(pod.url.rpartition(":")[2])
    flags = (*found_on([port]), "--role", role, "--load-listen", "off", "--probe-interval", "0.5")
    agent = AgentChild(f"{role}-{port}", redis_url, *flags)
    stack.push_async_callback(agent.stop)
    return agent


def planned(folder: Path, role: str) -> PodPlan:
    """A pod whose answers can be compared with those of another one."""
    plan = nixl(folder, role)
    return replace(plan, flags=(*plan.flags, *FINE))


@pytest_asyncio.fixture
async def pool(tmp_path: Path) -> AsyncIterator[tuple[Pool, AgentChild]]:
    """One prefill pod with its agent, one decode pod."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_servers, "LIFE_S", 3600)
        async with AsyncExitStack() as stack:
            redis = await stack.enter_async_context(redis_server(tmp_path))
            plans = [planned(tmp_path, role) for role in ("kv_producer", "kv_consumer")]
            prefill, decode = await stack.enter_async_context(running(plans))
            agent = register(redis.url, prefill, "prefill", stack)
            register(redis.url, decode, "decode", stack)
            config = tmp_path / "hearth.yaml"
            config.write_text(CONFIG.format(redis=redis.url))
            gateway = await stack.enter_async_context(in_front([], "--config", str(config)))
            until(lambda: ready(gateway) >= {prefill.url, decode.url}, "both pods by way of Redis")
            yield Pool(redis.url, prefill, decode, gateway, stack), agent


async def ask(session: aiohttp.ClientSession, text: str, *, stream: bool) -> tuple[str, str]:
    """Return the whole answer and the id of its receipt."""
    body = {"model": "tinyqwen", "prompt": text, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": stream}
    async with session.post("/v1/completions", json=body) as answer:
        raw = await answer.text()
        assert answer.status == 200, (answer.status, raw[-300:])
        receipt = answer.headers["x-hearth-request-id"]
    if not stream:
        return json.loads(raw)["choices"][0]["text"], receipt
    events = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]
    assert events[-1:] == ["[DONE]"], raw[-300:]
    chunks = [json.loads(event) for event in events[:-1]]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]), receipt


def read_receipt(gateway: Gateway, receipt: str) -> Any:
    return until(lambda: read_json(f"{gateway.admin}/receipts/{receipt}"), f"a receipt {receipt}")


async def held(pod: Pod) -> tuple[float, ...]:
    """What an engine has at work by its own metrics: requests that run and wait, the share of its cache in use."""
    async with aiohttp.ClientSession(pod.url) as session, session.get("/metrics") as answer:
        page = await answer.text()
    found = dict.fromkeys(HELD, 0.0)
    for line in page.splitlines():
        if (name := line.partition("{")[0]) in found:
            found[name] += float(line.rpartition(" ")[2])
    return tuple(found.values())


async def leave(pool: Pool, pod: Pod, agent: AgentChild, load: Load) -> None:
    """Drain a pod as its agent does before a stop, hold it against what a drained pod is, and end it."""
    stopping = asyncio.create_task(agent.stop())
    await asyncio.to_thread(until, lambda: pod.url not in ready(pool.gateway), "the pod draining")
    await stopping
    running, waiting, kv = await held(pod)
    assert (running, waiting) == (0, 0), "its requests are answered"
    assert kv == 0 or load.fallbacks()["transfer_stalled"], "its KV is fetched"
    begun = len(load.answers) + CLIENTS
    await pod.stop()
    await load.until_answered(begun + PAIRED)
    assert load.prefilled(pod, begun) == 0, "it is chosen no more"


async def test_a_prefill_pool_grows_and_shrinks_under_load(pool: tuple[Pool, AgentChild]) -> None:
    """From one prefill pod to two and back, once drained and once without a word: every request is answered in full.

    The pod that comes back has its old address and a new engine behind it: KV that is asked for by the old engine's
    name would be lost or, worse, another's.
    """
    scene, agent = pool
    first, decode = scene.prefill, scene.decode
    load = Load(scene.gateway)
    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(load.work())
        try:
            await load.until_paired(first)

            # one to two, under load
            (second,) = await scene.stack.enter_async_context(running([planned(Path(), "kv_producer")]))
            second_agent = scene.register(second, "prefill")
            both = await load.until_paired(second)
            report("two prefill pods", load, first, second)
            assert not BY_A_POD_THAT_LEFT & set(load.fallbacks()), load.fallbacks()

            # two to one: the first is drained and ended
            await leave(scene, first, agent, load)
            one = await load.until_paired(second)
            report("the first has been drained", load, first, second, both)
            assert not BY_A_POD_THAT_LEFT & set(load.fallbacks()), load.fallbacks()

            # two again: the first has another engine
            first.start_again()
            await first.ready()
            scene.register(first, "prefill")
            back = await load.until_paired(first)
            report("the first is back", load, first, second, one)
            assert not BY_A_POD_THAT_LEFT & set(load.fallbacks()), load.fallbacks()

            # one again: the second ends in the middle of its work, as without a grace period
            second.kill()
            await load.until_paired(first)
            report("the second was killed", load, first, second, back)
            await second_agent.stop()
        finally:
            load.stopped.set()
    assert not load.failures, load.failures
    assert len(load.answers) >= 5 * PAIRED
    for answer in random.sample(load.answers, min(COMPARED, len(load.answers))):
        assert answer.text == await alone(decode, answer.prompt)
    await asyncio.to_thread(until, lambda: not scene.gateway.charged(), "the ledgers back at zero")


def report(title: str, load: Load, first: Pod, second: Pod, since: int = 0) -> None:
    """Print what this part of the test did (pytest -s)."""
    counts = f"{load.prefilled(first, since)} by the first, {load.prefilled(second, since)} by the second"
    print(
        f"\n{title}: {len(load.answers) - since} answers, prefilled: {counts}; given up: {dict(load.fallbacks(since))}"
    )

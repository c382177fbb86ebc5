"""The doctor before real vLLM: faults that a CPU can show are named first, with the right pod, within 60 s of traffic.

A healthy pod stands beside each faulty one. The agent publishes how both were started; the gateway learns of them by
Redis alone.
"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.gateway.kv_index import redis_servers
from tests.gateway.kv_index.redis_servers import Server, redis_server
from tests.vllm.agents import AgentChild, found_on
from tests.vllm.children import free_port
from tests.vllm.gateways import Gateway, in_front, read_json, until
from tests.vllm.pods import Pod, PodPlan, running
from tests.vllm.test_pairs import CONFIG, ask, nixl, prompt, ready

MODEL = "tinyqwen"

NAMED_WITHIN_S = 60.0
"""Of traffic."""

PATIENT = pytest.mark.timeout(1500, func_only=True)
"""On each test itself: the folder's own limit would hold before that of the module."""

pytestmark = [pytest.mark.nightly, pytest.mark.asyncio(loop_scope="module")]

WORDS = (
    "one",
    "day",
    "the",
    "agent",
    "went",
    "home",
    "and",
    "found",
    "a",
    "small",
    "door",
    "behind",
    "it",
    "was",
    "sea",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One fault: how the pod is started, the traffic that shows it, and the finding."""

    recipe: str
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    clients: int = 3
    max_tokens: int = 32
    prompt_words: int = 40
    names_both: bool = False
    """Two pods that differ are both named: neither is the majority."""


CASES = (
    # 768 tokens of cache: one sequence of 512 fits, which vLLM demands at its start, and eight of some 300 do not.
    Case(
        "kv_pressure",
        ("--num-gpu-blocks-override", "24", "--max-model-len", "512"),
        clients=8,
        max_tokens=160,
        prompt_words=120,
    ),
    Case("chunked_prefill_off", ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048")),
    Case(
        "acceptance_decayed",
        (
            "--speculative-config",
            json.dumps(
                {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
            ),
        ),
        clients=4,
        max_tokens=64,
    ),
    Case("unlike_hashing", environment={"PYTHONHASHSEED": "77"}, names_both=True),
    Case("prefix_cache_off", ("--no-enable-prefix-caching",)),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def redis(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_servers, "LIFE_S", 3600)
        async with redis_server(tmp_path_factory.mktemp("redis")) as server:
            yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def healthy() -> AsyncIterator[Pod]:
    async with running([PodPlan(MODEL)]) as (started,):
        yield started


@contextlib.asynccontextmanager
async def diagnosed(redis: Server, pods: tuple[Pod, ...], folder: Any) -> AsyncIterator[Gateway]:
    """A gateway that knows the pods by their agent."""
    ports = [int(pod.url.rpartition(":")[2]) for pod in pods]
    agent = AgentChild(
        "doctor", redis.url, *found_on(ports), "--load-listen", f"127.0.0.1:{free_port()}", "--drain", "0"
    )
    config = folder / "hearth.yaml"
    config.write_text(f"redis: {redis.url}\ndiscovery: {{agent_registry: true}}\nrouting: round-robin\n")
    try:
        async with in_front([], "--config", str(config)) as gateway:
            await asyncio.to_thread(
                until, lambda: len(read_json(f"{gateway.admin}/fleet")["pods"]) == len(pods), "pods by way of Redis"
            )
            await gateway.finds(pod.url for pod in pods)
            yield gateway
    finally:
        await agent.stop()


async def send(gateway: Gateway, case: Case, seed: int) -> None:
    draw = random.Random(seed)
    async with aiohttp.ClientSession(gateway.url, timeout=aiohttp.ClientTimeout(total=120)) as session:
        while True:
            text = " ".join(draw.choices(WORDS, k=case.prompt_words))
            body = {"model": MODEL, "prompt": text, "max_tokens": case.max_tokens, "stream": True, "ignore_eos": True}
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.post("/v1/completions", json=body) as answer:
                    await answer.read()


@PATIENT
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.recipe)
async def test_a_fault_of_real_vllm_is_named(redis: Server, healthy: Pod, case: Case, tmp_path: Any) -> None:
    """First of all findings."""
    plan = PodPlan(MODEL, flags=case.flags, environment=case.environment)
    async with running([plan]) as (faulty,), diagnosed(redis, (healthy, faulty), tmp_path) as gateway:
        clients = [asyncio.create_task(send(gateway, case, seed)) for seed in range(case.clients)]
        begun_s, shown = time.monotonic(), {}
        try:
            while time.monotonic() - begun_s < NAMED_WITHIN_S:
                shown = read_json(f"{gateway.admin}/findings")
                if shown["findings"] and shown["findings"][0]["recipe"] == case.recipe:
                    break
                await asyncio.sleep(2)
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
        named = [(each["recipe"], each["severity"], each["pods"]) for each in shown["findings"]]
        assert named, shown["gaps"]
        assert named[0][0] == case.recipe, named
        pods = {faulty.url, healthy.url} if case.names_both else {faulty.url}
        assert set(named[0][2]) == pods, named
        assert shown["findings"][0]["first_step"]


LOST_TRANSFERS = 4

KNOWN_S = 10.0
"""Window of an engine from which the doctor tells what it counts now from what it had counted before."""

PATIENT_TOKENS = 64
"""Of answers: the gateway gives up KV that does not come the later, the longer the answer is."""


@PATIENT
async def test_a_prefill_pod_that_dies_with_its_kv_is_named(redis: Server, tmp_path: Any) -> None:
    """The decode pod is held while requests wait on it with KV to fetch; the pod that has it is killed meanwhile."""
    plans = [nixl(tmp_path, role) for role in ("kv_producer", "kv_consumer")]
    async with contextlib.AsyncExitStack() as stack:
        prefill, decode = await stack.enter_async_context(running(plans))
        for pod, role in ((prefill, "prefill"), (decode, "decode")):
            flags = (*found_on([int(pod.url.rpartition(":")[2])]), "--role", role, "--drain", "0")
            listen = ("--load-listen", f"127.0.0.1:{free_port()}")
            stack.push_async_callback(AgentChild(f"doctor-{role}", redis.url, *flags, *listen).stop)
        config = tmp_path / "hearth.yaml"
        config.write_text(CONFIG.format(redis=redis.url))
        gateway = await stack.enter_async_context(in_front([], "--config", str(config)))
        await asyncio.to_thread(until, lambda: ready(gateway) >= {prefill.url, decode.url}, "both pods by way of Redis")
        # The counters of an engine tell nothing before they have been read twice.
        while window_s(gateway, decode.url) < KNOWN_S:
            await ask(gateway.url, prompt(0))
            await asyncio.sleep(0.5)
        async with aiohttp.ClientSession(decode.url) as session:
            # Held, not aborted: requests that come are kept.
            async with session.post("/pause", params={"mode": "keep"}) as paused:
                assert paused.status == 200
            waiting = [
                asyncio.create_task(ask(gateway.url, prompt(number), max_tokens=PATIENT_TOKENS))
                for number in range(1, 1 + LOST_TRANSFERS)
            ]
            # A pair is charged to both pods when it is chosen; tokens to prefill are until the prefill pod answers.
            await asyncio.to_thread(
                until,
                lambda: (
                    charged(gateway, decode.url, "running") >= LOST_TRANSFERS
                    and not charged(gateway, prefill.url, "prefill_tokens")
                ),
                "requests with KV to fetch",
            )
            prefill.kill()
            async with session.post("/resume") as resumed:
                assert resumed.status == 200
        begun_s, shown = time.monotonic(), {}
        while time.monotonic() - begun_s < NAMED_WITHIN_S:
            shown = read_json(f"{gateway.admin}/findings")
            if shown["findings"] and shown["findings"][0]["recipe"] == "transfers_failing":
                break
            await asyncio.sleep(2)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        named = [(each["recipe"], each["pods"]) for each in shown["findings"]]
        assert named[:1] == [("transfers_failing", [decode.url])], (named, shown["gaps"])


def window_s(gateway: Gateway, url: str) -> float:
    """Return the length of the doctor's window of a pod's engines at its last look, seconds."""
    looks = read_json(f"{gateway.admin}/findings/bundle")["looks"]
    pods = looks[-1]["facts"]["pods"] if looks else ()
    return max(
        (each["end_s"] - each["start_s"] for pod in pods if pod["address"] == url for each in pod["engines"]),
        default=0.0,
    )


def charged(gateway: Gateway, url: str, what: str) -> float:
    """Return what the gateway holds of a pod: requests (`running`) or tokens that have not ended."""
    pods = read_json(f"{gateway.admin}/fleet")["pods"]
    return sum(float(engine["own_load"][what]) for pod in pods if pod["url"] == url for engine in pod["engines"])

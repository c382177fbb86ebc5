"""Prefill on one real vLLM pod and decode on another, by way of the gateway: NIXL on the CPU, and a folder they share.

Agents register the pods in Redis; the gateway finds them there with what it must know to pair them. Engines may stall
here and there: whether a transfer was used is told by their own metrics over many requests, never by how fast one was.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.gateway.kv_index import redis_servers
from tests.gateway.kv_index.redis_servers import redis_server
from tests.vllm.agents import AgentChild, found_on
from tests.vllm.children import free_port
from tests.vllm.gateways import Gateway, in_front, read_json, until
from tests.vllm.pods import Pod, PodPlan, running

GUARD_S = 200.0
"""For one transfer among many requests."""

PATIENT = pytest.mark.timeout(900, func_only=True)
"""Beyond the usual of this folder: each guard within is shorter."""

ANSWER_TOKENS = 12

CALM = {
    "CALM_VLLM": "1",
    # What vLLM sets where it is the first to load NIXL; the plugin was before it.
    "UCX_RCACHE_MAX_UNRELEASED": "1024",
    "UCX_TLS": "tcp,sm,self",
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    # A prefill pod that is paused has a request and does not answer it: so it can be killed in the middle of one.
    "VLLM_SERVER_DEV_MODE": "1",
}

CONFIG = """\
redis: {redis}
discovery: {{agent_registry: true}}
# Decode pods prefill for themselves only as a last resort: small models gain nothing by pairing, so it is asked for.
routing: {{name: warm, scorers: {{decode_role: {{penalty_s: 1000}}}}}}
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pods, and the gateway in front of them."""

    connector: str
    prefill: Pod
    decode: Pod
    gateway: Gateway


def nixl(folder: Path, role: str) -> PodPlan:
    """Pulled from pod to pod; a decode pod that cannot load computes anew."""
    policy = {"kv_load_failure_policy": "recompute"} if role == "kv_consumer" else {}
    transfer = {"kv_role": role, "kv_buffer_device": "cpu", "kv_connector_extra_config": {"num_threads": 0}, **policy}
    return plan("NixlConnector", transfer, {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())})


def example(folder: Path, role: str) -> PodPlan:
    """Left in a folder that both can read."""
    return plan(
        "ExampleConnector", {"kv_role": "kv_both", "kv_connector_extra_config": {"shared_storage_path": str(folder)}}
    )


def plan(connector: str, transfer: dict[str, Any], environment: dict[str, str] | None = None) -> PodPlan:
    flags = ("--kv-transfer-config", json.dumps({"kv_connector": connector, **transfer}))
    return PodPlan("tinyqwen", flags=flags, environment=CALM | (environment or {}))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[nixl, example], ids=["nixl", "example"])
async def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Two pods, each with an agent beside it, and a gateway that is told of Redis only."""
    folder = tmp_path_factory.mktemp("pair")
    plans = [request.param(folder / "kv", role) for role in ("kv_producer", "kv_consumer")]
    connector = json.loads(plans[0].flags[1])["kv_connector"]
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(folder))
        prefill, decode = await stack.enter_async_context(running(plans))
        for pod, role in ((prefill, "prefill"), (decode, "decode")):
            flags = (
                *found_on([int(pod.url.rpartition(":")[2])]),
                "--role",
                role,
                "--load-listen",
                "off",
                "--drain",
                "0",
            )
            stack.push_async_callback(AgentChild(f"{role}-{connector}", redis.url, *flags).stop)
        config = folder / "hearth.yaml"
        config.write_text(CONFIG.format(redis=redis.url))
        gateway = await stack.enter_async_context(in_front([], "--config", str(config)))
        until(lambda: ready(gateway) >= {prefill.url, decode.url}, "both pods by way of Redis")
        yield Pair(connector, prefill, decode, gateway)


@pytest.fixture(scope="module", autouse=True)
def long_lived_redis() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_servers, "LIFE_S", 3600)
        yield


def ready(gateway: Gateway) -> set[str]:
    pods = read_json(f"{gateway.admin}/fleet")["pods"]
    return {pod["url"] for pod in pods if pod["state"] == "ready"}


def prompt(seed: int) -> str:
    """Some 230 tokens that no pod has seen."""
    draw = random.Random(f"{seed} {time.time_ns()}")
    return " ".join(str(draw.randrange(10**6)) for _ in range(60))


async def ask(url: str, text: str, **more: Any) -> tuple[str, str]:
    """The answer's text, and the id of its receipt where there is one."""
    body = {"model": "tinyqwen", "prompt": text, "max_tokens": ANSWER_TOKENS, "temperature": 0, **more}
    async with (
        aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=GUARD_S)) as session,
        session.post("/v1/completions", json=body) as answer,
    ):
        stated = await answer.json()
        assert answer.status == 200, stated
        return stated["choices"][0]["text"], answer.headers.get("x-hearth-request-id", "")


async def alone(pod: Pod, text: str) -> str:
    """What one pod says without a gateway and without anything that it holds: the salt is nobody else's."""
    return (await ask(pod.url, text, cache_salt=f"alone {time.time_ns()}"))[0]


async def transferred(pod: Pod) -> float:
    """Prompt tokens that the engine says it took from another one, since it began."""
    async with aiohttp.ClientSession(pod.url) as session, session.get("/metrics") as answer:
        page = await answer.text()
    name, source = "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"'
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name) and source in line)


async def last_attempt(gateway: Gateway, receipt: str) -> Any:
    reported = await asyncio.to_thread(until, lambda: read_json(f"{gateway.admin}/receipts/{receipt}"), "a receipt")
    return reported["attempts"][-1]


@PATIENT
async def test_a_pair_answers_like_one_pod(pair: Pair) -> None:
    """Every answer is that of one pod alone; the decode engine's metrics show KV that came from the other."""
    before, paired, began_s = await transferred(pair.decode), 0, time.monotonic()
    requested = 0
    while requested < 8 or (not paired and time.monotonic() - began_s < GUARD_S):
        text = prompt(requested)
        answer, receipt = await ask(pair.gateway.url, text)
        assert answer == await alone(pair.prefill, text)
        attempt = await last_attempt(pair.gateway, receipt)
        if attempt["fallback_reason"] is None:
            assert (attempt["prefill_engine"], attempt["connector"]) == (pair.prefill.url, pair.connector)
            assert attempt["engine"] == pair.decode.url
            paired += 1
        requested += 1
    moved = await transferred(pair.decode) - before
    print(f"\n{pair.connector}: {paired} of {requested} in pairs, {moved:.0f} prompt tokens transferred")
    assert paired
    assert moved > 0


@PATIENT
async def test_a_prefill_pod_that_dies_over_a_request_does_not_cost_the_answer(pair: Pair) -> None:
    """It has the request and does not answer; then all of it is gone. The answer comes another way, and is the same."""
    text = prompt(99)
    wanted = await alone(pair.decode, text)
    async with aiohttp.ClientSession(pair.prefill.url) as session, session.post("/pause") as paused:
        assert paused.status == 200
    asking = asyncio.create_task(ask(pair.gateway.url, text))
    await asyncio.to_thread(until, pair.gateway.charged, "the request on its way")
    pair.prefill.kill()
    answer, receipt = await asking
    assert answer == wanted
    attempt = await last_attempt(pair.gateway, receipt)
    assert attempt["engine"] == pair.decode.url
    assert attempt["prefill_engine"] is None
    await asyncio.to_thread(until, lambda: not pair.gateway.charged(), "both ledgers back at zero")

"""The agent beside a real vLLM pod, on a machine that has no GPU: the pod comes into Redis, the gateway, and out again.

The pod is found by its port and told from anything else by what it answers; the gateway is given nothing but Redis.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from redis.asyncio.client import PubSub

from routing.pod_record import AgentRecord, read_record, record_channel, record_key
from tests.gateway.kv_index import redis_servers
from tests.gateway.kv_index.redis_servers import Server, redis_server
from tests.vllm.agents import AgentChild, found_on
from tests.vllm.children import free_port
from tests.vllm.gateways import Gateway, in_front, read_json, until
from tests.vllm.pods import BLOCK_TOKENS, STARTS_WITHIN_S, Pod, PodPlan, running

NAME = "node-of-the-test"

GUARD_S = 120.0

LOOK_S = 1.0

PATIENT = pytest.mark.timeout(900, func_only=True)
"""Beyond the usual of this folder: a pod is started again within."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def redis(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_servers, "LIFE_S", 3600)
        async with redis_server(tmp_path_factory.mktemp("redis")) as server:
            yield server


@pytest.fixture(scope="module")
def loads_at() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pod(loads_at: str) -> AsyncIterator[Pod]:
    async with running([PodPlan("tinyqwen", environment={"HEARTH_AGENT_LOAD_LISTEN": loads_at})]) as (started,):
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(redis: Server, pod: Pod, loads_at: str) -> AsyncIterator[AgentChild]:
    flags = (
        *found_on([int(pod.url.rpartition(":")[2])]),
        "--load-listen",
        loads_at,
        "--probe-interval",
        str(LOOK_S),
        "--drain",
        "0",
    )
    started = AgentChild(NAME, redis.url, *flags, "--zone", "north", "--rack", "r1")
    try:
        yield started
    finally:
        await started.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finder(
    redis: Server, pod: Pod, agent: AgentChild, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    """A gateway that is told of no pod."""
    config = tmp_path_factory.mktemp("finder") / "hearth.yaml"
    config.write_text(f"redis: {redis.url}\ndiscovery: {{agent_registry: true}}\n")
    async with in_front([], "--config", str(config)) as gateway:
        until(lambda: standing(gateway, pod.url) == "ready", "the pod by way of Redis")
        yield gateway


def standing(gateway: Gateway, url: str) -> str | None:
    """Where a pod stands, None where the gateway knows of none."""
    shown = [pod["state"] for pod in read_json(f"{gateway.admin}/fleet")["pods"] if pod["url"] == url]
    return shown[0] if shown else None


async def registered(redis: Server) -> AgentRecord | None:
    """What stands in Redis now."""
    written = await redis.log_event("GET", record_key("", NAME))
    return read_record(written) if isinstance(written, bytes) else None


async def ask(gateway: Gateway, max_tokens: int = 4) -> aiohttp.ClientResponse:
    body = {"model": "tinyqwen", "prompt": "One day the agent", "max_tokens": max_tokens, "ignore_eos": True}
    async with (
        aiohttp.ClientSession(gateway.url, timeout=aiohttp.ClientTimeout(total=GUARD_S)) as session,
        session.post("/v1/completions", json=body) as answer,
    ):
        await answer.read()
        return answer


@PATIENT
async def test_a_pod_is_registered_with_its_facts(finder: Gateway, redis: Server, pod: Pod) -> None:
    """Engine facts come from the server and its command line, places from flags; there is no GPU, and it says so."""
    record = await registered(redis)
    assert record is not None
    (found,) = record.pods
    facts = found.facts
    assert found.url == pod.url
    assert (facts.gpu, facts.gpus) == ("none", 0)
    assert (facts.version, facts.block_size, facts.dp) == ("0.32.0", BLOCK_TOKENS, 1)
    assert (facts.models, facts.zone, facts.rack) == (("tinyqwen",), "north", "r1")
    assert facts.kv_connector is None


@PATIENT
async def test_the_gateway_routes_to_what_it_found(finder: Gateway, pod: Pod) -> None:
    """Nobody has named this pod to the gateway."""
    answer = await ask(finder)
    assert answer.status == 200
    receipt = await asyncio.to_thread(finder.receipt, answer.headers["x-hearth-request-id"])
    assert receipt.pod == pod.url


@PATIENT
async def test_an_engine_reports_its_load_by_itself(finder: Gateway, redis: Server) -> None:
    """While a request runs, the channel says so: the plugin told the agent, without any scrape."""
    client = redis.client()
    try:
        async with asyncio.timeout(GUARD_S), client.pubsub(ignore_subscribe_messages=True) as received:
            await received.subscribe(record_channel(""))
            asking = asyncio.create_task(keep_asking(finder))
            try:
                while not await says_running(received):
                    pass
            finally:
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
    finally:
        await client.aclose()


async def keep_asking(gateway: Gateway) -> None:
    while True:
        await ask(gateway, max_tokens=600)


async def says_running(received: PubSub) -> bool:
    message = await received.get_message(timeout=5)
    if message is None or not isinstance(message.get("data"), bytes):
        return False
    return any(load.running for pod in read_record(message["data"]).pods for load in pod.loads)


@PATIENT
async def test_a_dead_pod_is_forgotten_and_found_again(
    finder: Gateway, redis: Server, agent: AgentChild, pod: Pod
) -> None:
    """The agent misses it at its next look, says so at once, and the gateway forgets it; back, it is found again."""
    pod.kill()
    died_s = time.monotonic()
    until(lambda: standing(finder, pod.url) is None, "the pod gone from the fleet", GUARD_S)
    print(f"\nforgotten {time.monotonic() - died_s:.1f} s after its death (look {LOOK_S:.0f} s)")
    record = await registered(redis)
    assert record is not None
    assert record.pods == ()
    pod.start_again()
    await pod.answers("/health", within_s=STARTS_WITHIN_S)
    until(lambda: standing(finder, pod.url) == "ready", "the pod again")
    assert (await ask(finder)).status == 200


@PATIENT
async def test_an_agent_that_is_stopped_takes_its_pods_out(
    finder: Gateway, redis: Server, agent: AgentChild, pod: Pod
) -> None:
    """Neither key nor pod is left."""
    await agent.stop()
    assert await registered(redis) is None
    until(lambda: standing(finder, pod.url) is None, "the pod gone from the fleet", GUARD_S)
    assert json.loads(agent.last_words(1))["event"] == "agent_stopped"

"""Tenants on a real engine: whose request it takes first, and whose cached prefixes it reuses for whom.

One pod that runs one request at a time, schedules by priority and publishes its KV events. Real are the order in which
it answers and the `cached_tokens` of its own usage.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.answers import prompt_and_cached
from tests.conformance.measures import until
from tests.conformance.subject import APIS, COMPLETIONS, Subject
from tests.conformance.wire import spell
from tests.vllm.events import believed, publishing, stated
from tests.vllm.gateways import Gateway, in_front
from tests.vllm.gateways import until as until_so
from tests.vllm.pods import BLOCK_TOKENS, Pod, running

MODEL = "smollm2"
"""Slow enough that one long answer keeps the engine at work for many seconds, while others get into its queue."""

CONTEXT = 2048

BLOCKS = 256

WORDS = 150
"""Of a prompt: some blocks long."""

POLICY = """
tiers:
  gold: {{priority: 10}}
  bronze: {{priority: -10}}
tenants:
  gold: {{tier: gold, cache_isolation: tenant}}
  plain: {{cache_isolation: tenant}}
  bronze: {{tier: bronze, cache_isolation: friends}}
  other: {{cache_isolation: friends}}
auth:
  keys: {{{keys}}}
"""

TENANTS = ("gold", "plain", "bronze", "other")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pod() -> AsyncIterator[Pod]:
    plan = publishing(MODEL, BLOCKS, CONTEXT, "--scheduling-policy", "priority", "--max-num-seqs", "1")
    async with running([plan]) as (started,):
        yield started


@contextlib.asynccontextmanager
async def gateway_of(pod: Pod, folder: Path, *words: str, model: str = "") -> AsyncIterator[Gateway]:
    """A gateway with the tenants' keys, and such words in its configuration."""
    keys = ", ".join(f"{name}: [{hashlib.sha256(name.encode()).hexdigest()}]" for name in TENANTS)
    (folder / "policy.yaml").write_text(POLICY.format(keys=keys))
    (folder / "hearth.yaml").write_text("\n".join((*words, f"model_list: [{{model_name: {MODEL}{model}}}]", "")))
    flags = ("--policy", str(folder / "policy.yaml"), "--config", str(folder / "hearth.yaml"))
    async with in_front([pod.url], *flags) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def by_priority(pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """Knows how the pod schedules; its shadow cache decides."""
    folder = tmp_path_factory.mktemp("priority")
    async with gateway_of(pod, folder, model=", scheduling_policy: priority") as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def by_events(pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """Follows the pod's events; how the pod schedules nobody has told it."""
    folder = tmp_path_factory.mktemp("events")
    async with gateway_of(pod, folder, "kv_events: {max_wait_s: 2}") as gateway:
        until_so(lambda: stated(gateway, "kv_events_subscribed"), "a subscription")
        await believed(gateway, subject(gateway.url), key_of("plain"))
        yield gateway


def subject(url: str) -> Subject:
    return Subject(url, MODEL, BLOCK_TOKENS, CONTEXT)


def key_of(tenant: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {tenant}"}


# -- whose turn it is --------------------------------------------------------------------------------------------------


async def order_of_answers(gateway: Gateway, pod: Pod, path: str) -> list[str]:
    """Whom a busy engine answers when, of three that ask one after the other while it is at work for somebody else."""
    front, engine, answered = subject(gateway.url), subject(pod.url), list[str]()

    async def ask(tenant: str) -> None:
        exchange = await front.post(path, front.request(path, tokens=4), key_of(tenant))
        assert exchange.status == 200, exchange.body
        answered.append(tenant)

    reader, writer = await front.connect()
    async with asyncio.TaskGroup() as asking:
        try:
            long = front.request(COMPLETIONS, tokens=CONTEXT - 100, stream=True, ignore_eos=True)
            writer.write(spell("POST", COMPLETIONS, long, {"Content-Type": "application/json", **key_of("gold")}))
            await reader.readuntil(b"\n\n")
            for place, tenant in enumerate(("bronze", "plain", "gold"), 1):
                asking.create_task(ask(tenant))
                await until(engine, "num_requests_waiting", place)
        finally:
            writer.close()
            await writer.wait_closed()
    return answered


@pytest.mark.parametrize("path", APIS)
async def test_the_engine_takes_the_higher_tier_first(by_priority: Gateway, pod: Pod, path: str) -> None:
    """Who came last is answered first: higher is better with us, lower is first with vLLM."""
    assert await order_of_answers(by_priority, pod, path) == ["gold", "plain", "bronze"]


async def test_an_engine_is_sent_a_priority_only_where_it_is_known_to_honours_it(by_events: Gateway, pod: Pod) -> None:
    """This one would heed it, but has not been named as such: it is told nothing, so who came first is first."""
    assert await order_of_answers(by_events, pod, COMPLETIONS) == ["bronze", "plain", "gold"]


# -- whose cache it is -------------------------------------------------------------------------------------------------


async def warm(gateway: Gateway, path: str, prompt: str, tenant: str) -> tuple[int, int, str]:
    """Ask. Returns the tokens that the engine really reused, those foretold, and by whom."""
    front = subject(gateway.url)
    exchange = await front.post(path, front.request(path, prompt), key_of(tenant))
    assert exchange.status == 200, exchange.body
    receipt = await asyncio.to_thread(gateway.receipt, exchange.headers["x-hearth-request-id"])
    return prompt_and_cached(path, exchange.json())[1], receipt.predicted_cached_input_tokens, receipt.cache_source


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("decides", ["approximate", "precise"])
async def test_a_tenants_cache_is_its_own(request: pytest.FixtureRequest, decides: str, path: str) -> None:
    """The same prompt is warm within a trust domain and cold across, on the engine and in what is foretold of it."""
    gateway: Gateway = request.getfixturevalue("by_events" if decides == "precise" else "by_priority")
    prompt = subject(gateway.url).prompt(WORDS)
    cold = 0, 0, decides
    assert await warm(gateway, path, prompt, "gold") == cold
    assert await warm(gateway, path, prompt, "plain") == cold, "another tenant, another domain"
    assert await warm(gateway, path, prompt, "bronze") == cold
    for tenant in ("gold", "plain", "bronze", "other"):
        real, foretold, by = await warm(gateway, path, prompt, tenant)
        assert real >= WORDS // BLOCK_TOKENS * BLOCK_TOKENS, tenant
        assert by == decides
        assert foretold == real if decides == "precise" else foretold > 0, tenant

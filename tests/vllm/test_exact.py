"""Exact warmth on real engines: what their events foretell of every prompt is what they say they reused.

A pod with a tiny cache, so that blocks are evicted all the time, and one whose layers keep their KV in different ways;
token IDs come from their own `/tokenize`. Real are the `cached_tokens` of the engines' own usage.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.answers import prompt_and_cached
from tests.conformance.subject import RESPONSES, Subject
from tests.vllm.events import believed, publishing, stated
from tests.vllm.gateways import Gateway, Receipt, in_front, until
from tests.vllm.load import Load, Talker
from tests.vllm.pods import BLOCK_TOKENS, STARTS_WITHIN_S, Pod, running
from tests.vllm.talks import HEARD

CONTEXT = 1024
BLOCKS = 128
"""Four thousand tokens: a dozen of the prompts below, of which eight may run at once."""

GEMMA_BLOCKS = 400
"""Four groups of layers share them, so they hold as many tokens as a hundred would."""

SERIAL = 200
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One request: foretold and real."""

    receipt: Receipt
    prompt_tokens: int
    cached_tokens: int

    @property
    def is_right(self) -> bool:
        foretold = self.receipt.predicted_input_tokens, self.receipt.predicted_cached_input_tokens
        return self.receipt.cache_source == "precise" and foretold == (self.prompt_tokens, self.cached_tokens)

    @property
    def error(self) -> int:
        return abs(self.receipt.predicted_cached_input_tokens - self.cached_tokens)


@contextlib.asynccontextmanager
async def exact_gateway(pods: Sequence[Pod], folder: Path) -> AsyncIterator[Gateway]:
    """A gateway that follows the pods' events. It may wait long for them: this machine has other work as well."""
    config = folder / "hearth.yaml"
    models = [f"  - {{model_name: {pod.model}}}" for pod in pods]
    config.write_text("\n".join(("kv_events: {max_wait_s: 2}", "model_list:", *models, "")))
    async with in_front([pod.url for pod in pods], "--config", str(config)) as gateway:
        until(lambda: stated(gateway, "kv_events_subscribed") >= len(pods), "subscriptions")
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def publishers() -> AsyncIterator[tuple[Pod, ...]]:
    plans = [publishing("tinyqwen", BLOCKS, CONTEXT), publishing("tinygemma", GEMMA_BLOCKS, CONTEXT)]
    async with running(plans) as pods:
        yield pods


@pytest.fixture(scope="module")
def evicting_pod(publishers: tuple[Pod, ...]) -> Pod:
    return publishers[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def exact(publishers: tuple[Pod, ...], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with exact_gateway(publishers, tmp_path_factory.mktemp("exact")) as gateway:
        for pod in publishers:
            await believed(gateway, front(gateway, pod.model))
        yield gateway


def front(gateway: Gateway, model: str = "tinyqwen") -> Subject:
    return Subject(gateway.url, model, BLOCK_TOKENS, CONTEXT)


async def play(gateway: Gateway, seed: int, requests: int, at_once: int = 1, model: str = "tinyqwen") -> Sequence[Row]:
    """Ask so many requests, so many of them at a time, never two of one conversation."""
    load = Load(model, seed)
    bodies, rows = iter(load), list[Row]()
    speaking: set[int] = set()

    async def ask_one_after_another() -> None:
        while len(rows) < requests:
            path, body, talker = next(turn for turn in bodies if id(turn[2]) not in speaking)
            with speaking_now(talker, speaking):
                exchange = await front(gateway, model).post(path, body)
                assert exchange.status == 200, exchange.body
                answer = exchange.json()
                if path != RESPONSES or answer["output"]:
                    load.received(talker, HEARD[path](answer)[0])
            receipt = await asyncio.to_thread(gateway.receipt, exchange.headers["x-hearth-request-id"])
            rows.append(Row(receipt, *prompt_and_cached(path, answer)))

    await asyncio.gather(*(ask_one_after_another() for _ in range(at_once)))
    return rows


@contextlib.contextmanager
def speaking_now(talker: Talker | None, speaking: set[int]) -> Iterator[None]:
    """Nobody else asks in this conversation meanwhile."""
    if talker is None:
        yield
        return
    speaking.add(id(talker))
    try:
        yield
    finally:
        speaking.discard(id(talker))


def report(what: str, rows: Sequence[Row]) -> tuple[float, float]:
    """Print and return: the share foretold to the token, and the error weighted by tokens."""
    right = sum(row.is_right for row in rows) / len(rows)
    warm, prompts = sum(row.cached_tokens for row in rows), sum(row.prompt_tokens for row in rows)
    error = sum(row.error for row in rows) / max(1, warm)
    print(
        f"\n{what}: {len(rows)} requests, {prompts / len(rows):.0f} tokens each, {warm / prompts:.0%} of them warm; "
        f"foretold to the token {right:.1%}, token-weighted error {error:.2%} of what was warm"
    )
    for row in rows:
        if not row.is_right:
            receipt = row.receipt
            foretold = f"{receipt.predicted_cached_input_tokens} of {receipt.predicted_input_tokens}"
            print(f"  {receipt.cache_source}: {foretold}, really {row.cached_tokens} of {row.prompt_tokens}")
    return right, error


def evictions(pod_blocks: int, rows: Sequence[Row]) -> float:
    """How many times the whole cache was computed anew."""
    return sum(row.prompt_tokens - row.cached_tokens for row in rows) / BLOCK_TOKENS / pod_blocks


async def test_serial_requests_are_predicted(exact: Gateway) -> None:
    """At least 98 % of requests, one after another, over four dialects, while the cache is turned over."""
    rows = await play(exact, seed=1, requests=SERIAL)
    right, _ = report("serial", rows)
    assert evictions(BLOCKS, rows) > 3
    assert right >= 0.98


async def test_requests_at_once_are_predicted(exact: Gateway) -> None:
    """Eight at a time: what others are about to leave behind, or to displace, is nearly always known."""
    rows = await play(exact, seed=2, requests=SERIAL, at_once=AT_ONCE)
    _, error = report("eight at once", rows)
    assert evictions(BLOCKS, rows) > 3
    assert error <= 0.05


async def test_layers_that_keep_their_cache_differently_are_predicted(exact: Gateway) -> None:
    """Each kind of layer tells its own blocks; warm is only what all of them can go on from.

    Measured: all of them to the token, also on a busy machine. To be fooled by one kind of layer would be far off.
    """
    rows = await play(exact, seed=6, requests=50, model="tinygemma")
    right, error = report("sliding windows", rows)
    assert sum(row.cached_tokens for row in rows) > 3000
    assert right >= 0.9
    assert error <= 0.05


async def test_an_emptied_cache_is_noticed(exact: Gateway, evicting_pod: Pod) -> None:
    """The engine tells that its cache was emptied with the next thing it says: only the first request may be wrong."""
    await play(exact, seed=3, requests=10)
    pod = Subject(evicting_pod.url, "tinyqwen", BLOCK_TOKENS, CONTEXT)
    assert (await pod.post("/reset_prefix_cache", {})).status == 200
    rows = await play(exact, seed=3, requests=61)
    right, _ = report("after a reset", rows[1:])
    assert rows[0].cached_tokens == 0
    assert right >= 0.98


async def test_a_late_joiner_knows_all_that_was_reported(exact: Gateway, evicting_pod: Pod, tmp_path: Path) -> None:
    """A second gateway has the past told again, thousands of batches of it, and foretells as well as the first."""
    async with exact_gateway([evicting_pod], tmp_path) as second:
        await believed(second, front(second))
        rows = await play(second, seed=4, requests=60)
    right, _ = report("a late joiner", rows)
    assert not stated(second, "kv_events_lost")
    assert right >= 0.98


async def test_a_restarted_engine_is_followed_again(exact: Gateway, evicting_pod: Pod) -> None:
    """Its cache is gone and it publishes on another port: nothing of its former life is believed."""
    await play(exact, seed=5, requests=10)
    before = stated(exact, "kv_events_subscribed")
    evicting_pod.kill()
    evicting_pod.start_again()
    await evicting_pod.answers("/health", within_s=STARTS_WITHIN_S)
    until(lambda: exact.pod(evicting_pod.url)["state"] == "ready", "the pod again")
    until(lambda: stated(exact, "kv_events_subscribed") > before, "a new subscription")
    await believed(exact, front(exact))
    rows = await play(exact, seed=5, requests=60)
    right, _ = report("after a restart", rows)
    assert right >= 0.98

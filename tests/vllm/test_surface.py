"""What the gateway serves besides generating, and the routings that warm routing is compared with."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.conformance.subject import CHAT, COMPLETIONS, MESSAGES, Subject
from tests.vllm.gateways import Gateway, in_front
from tests.vllm.pods import BLOCK_TOKENS, CONTEXT_TOKENS, Pod


def front_of(gateway: Gateway, pod: Pod) -> Subject:
    return Subject(gateway.url, pod.model, BLOCK_TOKENS, CONTEXT_TOKENS)


# -- the same for all routings -----------------------------------------------------------------------------------------


async def test_models_are_merged(gateway: Gateway, all_pods: tuple[Pod, ...]) -> None:
    """Each model once, as its pods list it; a model leads to the pods that serve it and to no others."""
    listed = (await front_of(gateway, all_pods[0]).get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["smollm2", "tinyqwen", "tinyqwen-embed"]
    assert {card["max_model_len"] for card in listed["data"]} == {CONTEXT_TOKENS}
    for pod in all_pods[:3]:
        front = front_of(gateway, pod)
        answer = await front.post(CHAT, front.request(CHAT))
        assert answer.json()["model"] == pod.model
        served_by = {other.url for other in all_pods if other.model == pod.model}
        assert gateway.receipt(answer.headers["x-hearth-request-id"]).pod in served_by


async def test_health_and_readiness(gateway: Gateway, pods: tuple[Pod, ...]) -> None:
    """For who asks whether to send anybody here."""
    front = front_of(gateway, pods[0])
    for path in ("/health", "/ready"):
        answer = await front.get(path)
        assert (answer.status, answer.body) == (200, b"")


async def test_tokens_are_counted_and_spelled(gateway: Gateway, pods: tuple[Pod, ...]) -> None:
    """As the pod does it; a prompt's own count is what its usage will say."""
    front = front_of(gateway, pods[0])
    pod = front_of(gateway, pods[0])
    text = {"model": front.model, "prompt": "one two three, 東京"}
    counted = (await front.post("/tokenize", text)).json()
    assert counted == (await Subject(pods[0].url, pod.model, 0, 0).post("/tokenize", text)).json()
    tokens = {"model": front.model, "tokens": counted["tokens"]}
    assert (await front.post("/detokenize", tokens)).json() == {"prompt": text["prompt"]}
    requested = front.request(CHAT)
    chat = {"model": front.model, "messages": requested["messages"]}
    reported = (await front.post("/tokenize", chat)).json()["count"]
    assert (await front.post(CHAT, requested)).json()["usage"]["prompt_tokens"] == reported
    messages = (await front.post(f"{MESSAGES}/count_tokens", front.request(MESSAGES))).json()
    assert messages["input_tokens"] > 0


@pytest.mark.parametrize("path", ["/metrics", "/version", "/docs", "/v1/nothing", "/reset_prefix_cache", "/load"])
async def test_what_is_not_ours_to_give_is_rejected(gateway: Gateway, pods: tuple[Pod, ...], path: str) -> None:
    """Neither a pod's metrics nor its levers are reached through the gateway; nor is what does not exist."""
    front = front_of(gateway, pods[0])
    for answer in (await front.get(path), await front.post(path, {})):
        assert answer.status == 404
        assert answer.json()["error"]["code"] == "unknown_url"


async def test_fields_that_are_not_the_clients_to_set(gateway: Gateway, pods: tuple[Pod, ...]) -> None:
    """What would poison, jump the queue or rename: served as if it were not there."""
    front = front_of(gateway, pods[0])
    poison: dict[str, Any] = {
        "kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "x"},
        "priority": -100,
        "request_id": "theirs",
        "cache_salt": "theirs",
    }
    prompt = front.prompt(100)
    first = await front.ask(CHAT, prompt)
    answer = await front.post(CHAT, front.request(CHAT, prompt, **poison), {"X-data-parallel-rank": "7"})
    assert answer.status == 200
    assert "theirs" not in answer.json()["id"]
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 50, "no salt of theirs parts it"
    assert answer.json()["choices"][0]["message"] == first["choices"][0]["message"]


async def test_other_pooling_paths(gateway: Gateway, embedding_pod: Pod) -> None:
    """Rerank, score and pooling by the model that does them."""
    front = front_of(gateway, embedding_pod)
    ranked = await front.post(
        "/v1/rerank", {"model": front.model, "query": "a ship", "documents": ["a boat", "a tree"]}
    )
    assert len(ranked.json()["results"]) == 2
    scored = await front.post("/score", {"model": front.model, "text_1": "a ship", "text_2": ["a boat", "a tree"]})
    assert len(scored.json()["data"]) == 2
    pooled = await front.post("/pooling", {"model": front.model, "input": "a ship"})
    assert pooled.json()["data"]


# -- routings ----------------------------------------------------------------------------------------------------------


async def test_round_robin(pods: tuple[Pod, ...]) -> None:
    """Turn by turn, however warm the prompt is on one of them."""
    async with in_front([pod.url for pod in pods], "--routing", "round-robin") as gateway:
        front = front_of(gateway, pods[0])
        prompt = front.prompt(100)
        answers = [await front.post(CHAT, front.request(CHAT, prompt)) for _ in range(6)]
        chosen = [gateway.receipt(answer.headers["x-hearth-request-id"]).pod for answer in answers]
        assert set(chosen[:2]) == {pod.url for pod in pods}
        assert chosen == chosen[:2] * 3
        assert gateway.charged() == []


async def test_least_loaded(pods: tuple[Pod, ...]) -> None:
    """Where there is least to do, however warm the prompt is elsewhere."""
    async with in_front([pod.url for pod in pods], "--routing", "least-loaded") as gateway:
        front = front_of(gateway, pods[0])
        prompt = front.prompt(100)
        await front.ask(COMPLETIONS, prompt)
        requested = [front.request(COMPLETIONS, prompt, tokens=32, ignore_eos=True) for _ in range(8)]
        answers = await asyncio.gather(*(front.post(COMPLETIONS, one) for one in requested))
        chosen = Counter(gateway.receipt(answer.headers["x-hearth-request-id"]).pod for answer in answers)
        assert chosen == {pod.url: 4 for pod in pods}

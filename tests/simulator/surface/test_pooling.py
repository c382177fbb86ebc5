"""Embeddings, pooling, scores, ranks and classes, on a pod that is there for them."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from tests.simulator.asking import LONG, MODEL, running

POOLS = frozenset({"pooling"})
POOLING_PATHS = (
    "/v1/embeddings",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
)


async def test_embeddings_follow_from_the_text() -> None:
    """Unit vectors, one a text, the same for the same text and another for another."""
    async with running(tasks=POOLS) as (_, client):
        answer = await client.ask("/v1/embeddings", {"model": MODEL, "input": ["a", "b", "a"]})
        one, other, again = (entry["embedding"] for entry in answer["data"])
        assert one == again != other
        assert sum(value * value for value in one) == pytest.approx(1.0)
        assert answer["id"].startswith("embd-")
        assert answer["usage"]["prompt_tokens"] == 3
        assert answer["usage"]["prompt_tokens_details"] is None


async def test_embeddings_come_packed_on_request() -> None:
    """Base64 of float32; so many dimensions as asked for."""
    async with running(tasks=POOLS) as (_, client):
        requested = {"model": MODEL, "input": "a", "dimensions": 3}
        plain = (await client.ask("/v1/embeddings", requested))["data"][0]["embedding"]
        packed = (await client.ask("/v1/embeddings", requested | {"encoding_format": "base64"}))["data"][0]["embedding"]
        assert struct.unpack("<3f", base64.b64decode(packed)) == pytest.approx(tuple(plain))


async def test_a_prompt_read_before_is_found_though_no_one_is_reported() -> None:
    """Only the metrics show it."""
    async with running(tasks=POOLS) as (_, client):
        for _ in range(2):
            await client.ask("/v1/embeddings", {"model": MODEL, "input": LONG})
        assert await client.metric("prefix_cache_hits_total", engine="0") > 0
        assert await client.metric("generation_tokens_total", engine="0") == 0


@pytest.mark.parametrize("given", [[1, 2, 3], [[1], [2, 3]], None], ids=["ids", "lists of ids", "messages"])
async def test_ids_and_messages_are_input_too(given: Any) -> None:
    """Whatever vLLM takes."""
    requested = {"input": given} if given else {"messages": [{"role": "user", "content": "a"}]}
    async with running(tasks=POOLS) as (_, client):
        for path, entry in (("/pooling", "data"), ("/classify", "probs")):
            answer = await client.ask(path, {"model": MODEL, **requested})
            assert answer["data"][0][entry]


async def test_a_text_is_like_itself() -> None:
    """Scores grow with the words shared; one query goes against all documents."""
    async with running(tasks=POOLS) as (_, client):
        requested = {"model": MODEL, "text_1": "a big dog", "text_2": ["a big dog", "a big cat", "no fish"]}
        scores = [entry["score"] for entry in (await client.ask("/score", requested))["data"]]
        assert scores == [1.0, 0.5, 0.0]


async def test_documents_are_ranked() -> None:
    """Best first, as many as asked for, each with its place in the request."""
    async with running(tasks=POOLS) as (_, client):
        requested = {
            "model": MODEL,
            "query": "a big dog",
            "documents": ["no fish", "a big dog", "a big cat"],
            "top_n": 2,
        }
        answer = await client.ask("/rerank", requested)
        assert [result["index"] for result in answer["results"]] == [1, 2]
        assert answer["results"][0]["document"]["text"] == "a big dog"
        assert answer["usage"]["total_tokens"] > 0


async def test_a_pod_has_the_paths_of_its_task_only() -> None:
    """What is not mounted is not found."""
    async with running(tasks=POOLS) as (_, client):
        assert (await client.post("/v1/chat/completions", {})).status == 404
    async with running() as (_, client):
        for path in POOLING_PATHS:
            assert (await client.post(path, {})).status == 404
    async with running(tasks=frozenset({"pooling", "generate"})) as (_, client):
        for path in (*POOLING_PATHS, "/v1/chat/completions"):
            assert (await client.post(path, {})).status == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {}),
        ("/v1/embeddings", {"input": ""}),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}),
        ("/score", {"text_1": "a"}),
        ("/score", {"text_1": 5, "text_2": "a"}),
        ("/rerank", {"query": "a", "documents": []}),
    ],
    ids=str,
)
async def test_what_is_missing_is_named(path: str, body: Any) -> None:
    """400, never 500."""
    async with running(tasks=POOLS) as (_, client):
        answer = await client.post(path, {"model": MODEL, **body})
        assert (answer.status, answer.json()["error"]["code"]) == (400, 400)


async def test_a_prompt_that_is_too_long_is_rejected() -> None:
    """As for an answer, one token of room is needed."""
    async with running(tasks=POOLS, max_model_len=100) as (_, client):
        answer = await client.post("/v1/embeddings", {"model": MODEL, "input": LONG})
        assert (answer.status, answer.json()["error"]["param"]) == (400, "input_tokens")

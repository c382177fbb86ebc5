"""/v1/embeddings, pooling, score, rerank and classify: prompts that are only read. Nothing here tells cached tokens."""

from __future__ import annotations

import base64
import math
import struct
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from simulator.language import state_of
from simulator.prompts import Prompt, text_parts
from simulator.script import Wish
from simulator.service import Order, Service
from simulator.surface.chat_request import chat_prompt
from simulator.surface.completions import read_prompts
from simulator.surface.fields import Body, read_body
from simulator.surface.request_options import known_model, rank_of, request_id_of, salt_of, settle_max_tokens
from simulator.surface.wire import SERVICE, ApiError, engine_issue, json_answer, malformed

DIMENSIONS = 64
MAX_DIMENSIONS = 8192
LABELS = ("LABEL_0", "LABEL_1")


async def embed(request: web.Request) -> web.StreamResponse:
    """POST /v1/embeddings."""
    body = await read_body(request)
    prompts = _inputs(request.app[SERVICE], body)
    dimensions = body.integer("dimensions", DIMENSIONS, low=1) or DIMENSIONS
    if dimensions > MAX_DIMENSIONS:
        raise ApiError(f"dimensions must be at most {MAX_DIMENSIONS}, got {dimensions}.", param="dimensions")
    is_packed = body.text("encoding_format") == "base64"
    entries = [
        {"index": index, "object": "embedding", "embedding": _encoded(_vector(prompt, dimensions), is_packed=is_packed)}
        for index, prompt in enumerate(prompts)
    ]
    return await _answer(request, body, prompts, "embd", data=entries)


async def pool(request: web.Request) -> web.StreamResponse:
    """POST /pooling."""
    body = await read_body(request)
    prompts = _inputs(request.app[SERVICE], body)
    entries = [
        {"index": index, "object": "pooling", "data": _vector(prompt, DIMENSIONS)}
        for index, prompt in enumerate(prompts)
    ]
    return await _answer(request, body, prompts, "pooling", data=entries)


async def classify(request: web.Request) -> web.StreamResponse:
    """POST /classify."""
    body = await read_body(request)
    prompts = _inputs(request.app[SERVICE], body)
    entries = []
    for index, prompt in enumerate(prompts):
        share = prompt.state / 0xFFFFFFFF
        probabilities = [share, 1.0 - share]
        label = LABELS[probabilities.index(max(probabilities))]
        entries.append({"index": index, "label": label, "probs": probabilities, "num_classes": len(LABELS)})
    return await _answer(request, body, prompts, "classify", data=entries)


async def score(request: web.Request) -> web.StreamResponse:
    """POST /score: one text against many, or pair by pair."""
    body = await read_body(request)
    left = _texts(body, "queries" if body.get("queries") is not None else "text_1")
    right = _texts(body, "documents" if body.get("documents") is not None else "text_2")
    pairs = list(zip(left * len(right) if len(left) == 1 else left, right, strict=False))
    entries = [
        {"index": index, "object": "score", "score": _likeness(one, other)} for index, (one, other) in enumerate(pairs)
    ]
    return await _answer(request, body, _pair_prompts(request, body, pairs), "score", data=entries)


async def rerank(request: web.Request) -> web.StreamResponse:
    """POST /rerank."""
    body = await read_body(request)
    query = _texts(body, "query")[0]
    documents = _texts(body, "documents")
    likeness = [_likeness(query, text) for text in documents]
    best_first = sorted(range(len(documents)), key=lambda index: -likeness[index])
    ranked = [
        {
            "index": index,
            "document": {"text": documents[index], "multi_modal": None},
            "relevance_score": likeness[index],
        }
        for index in best_first
    ]
    top = body.integer("top_n", 0, low=0) or len(documents)
    prompts = _pair_prompts(request, body, [(query, text) for text in documents])
    generated = await _read_prompts(request, body, prompts)
    usage = {"prompt_tokens": generated, "total_tokens": generated}
    model = known_model(request.app[SERVICE], body)
    answer = {"id": f"score-{request_id_of(request, body)}", "model": model, "usage": usage, "results": ranked[:top]}
    return json_answer(answer)


def _inputs(service: Service, body: Body) -> list[Prompt]:
    model = known_model(service, body)
    if body.get("messages") is not None:
        closed = Body({"add_generation_prompt": False})
        return [chat_prompt(service, model, body.objects("messages"), closed, ())]
    body.required("input")
    return read_prompts(body, "input", service.seed(model))


def _texts(body: Body, name: str) -> list[str]:
    value = body.required(name)
    items = value if isinstance(value, list) else [value]
    texts = ["".join(text_parts([item])) for item in items]
    if not texts or not all(isinstance(item, str | dict) for item in items):
        raise malformed(name, "string_type", "Input should be a valid string", value)
    return texts


def _pair_prompts(request: web.Request, body: Body, pairs: Sequence[tuple[str, str]]) -> list[Prompt]:
    service = request.app[SERVICE]
    joined = Body({"input": [f"{one}\n{other}" for one, other in pairs]})
    return read_prompts(joined, "input", service.seed(known_model(service, body)))


async def _read_prompts(request: web.Request, body: Body, prompts: Sequence[Prompt]) -> int:
    """Let the engine read them; how many tokens that were."""
    service = request.app[SERVICE]
    for prompt in prompts:
        settle_max_tokens(service.options, len(prompt.tokens), None)
    order = Order(
        model=known_model(service, body),
        prompts=prompts,
        wish=Wish(1),
        request_id=request_id_of(request, body),
        salt=salt_of(body),
        priority=body.integer("priority", 0) or 0,
        rank=rank_of(service, request),
        pools=True,
    )
    with service.generate(order) as generation:
        await generation.completed()
        if generation.has_failed:
            raise engine_issue()
        return generation.prompt_tokens


async def _answer(
    request: web.Request, body: Body, prompts: Sequence[Prompt], prefix: str, data: list[dict[str, Any]]
) -> web.Response:
    tokens = await _read_prompts(request, body, prompts)
    usage = {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    return json_answer(
        {
            "id": f"{prefix}-{request_id_of(request, body)}",
            "object": "list",
            "created": int(time.time()),
            "model": known_model(request.app[SERVICE], body),
            "data": data,
            "usage": usage,
        }
    )


def _vector(prompt: Prompt, dimensions: int) -> list[float]:
    """A unit vector that the prompt alone decides."""
    raw = [state_of(struct.pack("<I", index), prompt.state) / 0xFFFFFFFF - 0.5 for index in range(dimensions)]
    length = math.sqrt(sum(value * value for value in raw)) or 1.0
    return [value / length for value in raw]


def _encoded(vector: list[float], *, is_packed: bool) -> list[float] | str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if is_packed else vector


def _likeness(one: str, other: str) -> float:
    """How many words two texts share, from 0 to 1."""
    own_words, others = set(one.lower().split()), set(other.lower().split())
    return len(own_words & others) / max(len(own_words | others), 1)

"""Whatever a client sends: an answer or a refusal, never a fault of the pod."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulator.asking import PATIENCE_S, chat, running

TOOL = {
    "type": "function",
    "name": "f",
    "input_schema": {},
    "function": {"name": "f", "parameters": {"type": "object"}},
}
PLAUSIBLE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 1.5, 1 << 70, "", "a", "required", "auto", [], {}, [[]], [{}], ["a"], [1, 2]),
    *({"type": "any"}, {"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}, [TOOL]),
    *({"type": "json_object"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": {}}}),
    *({"json": {"type": "array", "items": 5, "minItems": "x"}}, {"choice": "a"}, {"include_usage": True}),
    *({"json": "{"}, {"json": {"required": 5}}, {"json": {"enum": 5}}, {"format": {"type": "json_object"}}),
    [{"role": "user", "content": "Hello"}],
    [{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "image"}]}],
    [{"role": 5, "content": 5, "tool_calls": 5}, {"content": {"text": 5}}],
    [{"role": "user", "content": [5, None, "a", {"type": "tool_result"}, {"type": "tool_use", "input": 5}]}],
    *([{"function": 5}], [{"function": {}}], [{"name": 5, "input_schema": 5}], [5], {"function": 5}),
    *({"json": {"type": "array", "minItems": 1 << 70}}, {"json": {"type": "string", "minLength": 1 << 70}}),
    *({"json": {"type": {}}}, {"json": {"properties": 5}}, {"json": {"anyOf": 5}}, {"json": {"minimum": "a"}}),
    [{"type": "function_call"}, {"type": "function_call_output", "output": {}}],
)
"""Values that are right for one field and wrong for the others."""

FIELDS = {
    "/v1/chat/completions": (
        *("messages", "model", "stream", "stream_options", "n", "stop", "tools", "tool_choice", "response_format"),
        *(
            "structured_outputs",
            "logprobs",
            "top_logprobs",
            "max_tokens",
            "min_tokens",
            "priority",
            "cache_salt",
            "echo",
        ),
    ),
    "/v1/completions": ("prompt", "model", "stream", "n", "stop", "logprobs", "max_tokens", "echo", "temperature"),
    "/v1/responses": (
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "max_output_tokens",
        "previous_response_id",
    ),
    "/v1/messages": ("messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream"),
    "/v1/embeddings": ("input", "messages", "dimensions", "encoding_format"),
    "/score": ("text_1", "text_2", "queries", "documents"),
    "/rerank": ("query", "documents", "top_n"),
    "/tokenize": ("prompt", "messages", "tools", "return_token_strs"),
    "/detokenize": ("tokens",),
}

WHOLE = {
    **chat("Hello"),
    "tools": [TOOL],
    "input": "Hello",
    "prompt": "Hello",
    "max_output_tokens": 8,
    "query": "a",
    "documents": ["a"],
}


def spoiled(path: str) -> Iterator[dict[str, Any]]:
    """A good request with one field replaced: every field by every value."""
    for name in FIELDS[path]:
        for value in PLAUSIBLE:
            yield {**WHOLE, name: value}


@pytest.mark.parametrize("path", FIELDS)
async def test_nonsense_is_the_clients_fault(path: str) -> None:
    """200 or 4xx, and no sequence is left behind."""
    async with running(tasks=frozenset({"generate", "pooling"}), max_model_len=200) as (pod, client):
        for body in spoiled(path):
            answer = await client.post(path, body)
            assert answer.status < 500, (body, answer.body)
        await asyncio.wait_for(pod.service.idle(), PATIENCE_S)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"n": 1e999}', b'{"n": NaN}'])
async def test_broken_bodies_are_the_clients_fault(body: bytes) -> None:
    """On every path that reads one."""
    async with running(tasks=frozenset({"generate", "pooling"})) as (_, client):
        for path in FIELDS:
            assert (await client.post(path, body)).status == 400

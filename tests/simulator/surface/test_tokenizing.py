"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator.asking import LONG, MODEL, chat, running


async def test_tokens_can_be_read_one_by_one() -> None:
    """Four bytes each; together they are the text, however long it is."""
    async with running(max_model_len=20) as (_, client):
        answer = await client.ask("/tokenize", {"model": MODEL, "prompt": LONG, "return_token_strs": True})
        assert "".join(answer["token_strs"]) == LONG
        assert answer["count"] == -(-len(LONG) // 4)
        assert answer["max_model_len"] == 20


async def test_marks_of_thoughts_are_tokens_of_their_own() -> None:
    """As they are in an answer; what stands between them is told apart by itself."""
    async with running() as (_, client):
        body = {"model": MODEL, "prompt": "<think>hm, hm</think>So", "return_token_strs": True}
        assert (await client.ask("/tokenize", body))["token_strs"] == ["<think>", "hm, ", "hm", "</think>", "So"]


async def test_messages_are_rendered_as_chat_would() -> None:
    """Opened for an answer unless told otherwise."""
    messages = chat()["messages"]
    async with running() as (_, client):
        opened = await client.ask("/tokenize", {"messages": messages})
        closed = await client.ask("/tokenize", {"messages": messages, "add_generation_prompt": False})
        assert closed["tokens"] == opened["tokens"][: closed["count"]]
        assert (await client.ask("/detokenize", {"tokens": closed["tokens"]}))["prompt"] == (
            "<|im_start|>user\nHello<|im_end|>\n"
        )


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": 5}, 400),
        ("/tokenize", {"prompt": "\ud800"}, 400),
        ("/tokenize", {"prompt": "a", "model": "nobody"}, 404),
        ("/detokenize", {"tokens": "a"}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [1 << 63]}, 400),
    ],
    ids=ascii,
)
async def test_nonsense_is_rejected(path: str, body: Any, status: int) -> None:
    """Never a 500."""
    async with running() as (_, client):
        assert (await client.post(path, body)).status == status

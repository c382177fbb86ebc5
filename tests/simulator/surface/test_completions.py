"""/v1/completions, beyond what every pod promises: texts and ids, one and many."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator.asking import LONG, MODEL, running

COMPLETIONS = "/v1/completions"


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 5, **fields}


async def test_a_text_and_its_ids_are_one_prompt() -> None:
    """Same answer, and the second way finds the first one's blocks."""
    async with running() as (_, client):
        ids = (await client.ask("/tokenize", {"model": MODEL, "prompt": LONG}))["tokens"]
        text = await client.ask(COMPLETIONS, completion(LONG))
        by_ids = await client.ask(COMPLETIONS, completion(ids))
        assert by_ids["choices"][0]["text"] == text["choices"][0]["text"]
        assert by_ids["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(ids) - 1) // 16 * 16


async def test_a_chat_is_finished_by_its_ids() -> None:
    """Prompt and half an answer as ids go on like the chat, and end with it."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "return_token_ids": True}
    async with running() as (_, client):
        parse_unary = await client.ask("/v1/chat/completions", chat)
        [choice] = parse_unary["choices"]
        half = choice["token_ids"][:7]
        rest = await client.ask(COMPLETIONS, completion([*parse_unary["prompt_token_ids"], *half], max_tokens=5000))
        stated = (await client.ask("/detokenize", {"tokens": half}))["prompt"] + rest["choices"][0]["text"]
        assert (stated, rest["choices"][0]["finish_reason"]) == (choice["message"]["content"], "stop")


@pytest.mark.parametrize("prompts", [["Once upon", "a time"], [[1, 2, 3], [4]]], ids=["texts", "ids"])
async def test_many_prompts_make_many_choices(prompts: Any) -> None:
    """Index = prompt x n + copy; one usage over all, each prompt counted once."""
    async with running() as (_, client):
        answer = await client.ask(COMPLETIONS, completion(prompts, n=2))
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        single = [await client.ask(COMPLETIONS, completion(prompt)) for prompt in prompts]
        assert answer["choices"][0]["text"] == single[0]["choices"][0]["text"]
        assert answer["choices"][2]["text"] == single[1]["choices"][0]["text"]
        assert answer["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in single)
        assert answer["usage"]["completion_tokens"] == 20


async def test_sixteen_tokens_by_default() -> None:
    """OpenAI's old default; a bare text never ends by itself."""
    async with running() as (_, client):
        answer = await client.ask(COMPLETIONS, {"model": MODEL, "prompt": "Once"})
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_the_prompt_may_be_echoed() -> None:
    """In front of the answer, once, streamed or not."""
    async with running() as (_, client):
        [choice] = (await client.ask(COMPLETIONS, completion("Once upon", echo=True)))["choices"]
        assert choice["text"].startswith("Once upon")
        values = [
            value for value in (await client.stream(COMPLETIONS, completion("Once upon", echo=True))).values if value
        ]
        assert "".join(value["choices"][0]["text"] for value in values) == choice["text"]


async def test_logprobs_have_offsets_into_the_text() -> None:
    """Each token stands where its offset says, streamed too."""
    async with running() as (_, client):
        [choice] = (await client.ask(COMPLETIONS, completion("Once", logprobs=2)))["choices"]
        reported = choice["logprobs"]
        for token, offset, tops in zip(
            reported["tokens"], reported["text_offset"], reported["top_logprobs"], strict=True
        ):
            assert choice["text"][offset : offset + len(token)] == token
            assert token in tops
        values = [value for value in (await client.stream(COMPLETIONS, completion("Once", logprobs=2))).values if value]
        offsets = [offset for value in values for offset in value["choices"][0]["logprobs"]["text_offset"]]
        assert offsets == reported["text_offset"]


@pytest.mark.parametrize("prompt", ["", [], None, 5, [""], [[]], ["a", 1], [-1], [True]], ids=str)
async def test_no_prompt_is_rejected(prompt: Any) -> None:
    """Empty, missing or of the wrong kind."""
    async with running() as (_, client):
        assert (await client.post(COMPLETIONS, completion(prompt))).status == 400


async def test_a_lone_surrogate_is_no_text() -> None:
    """JSON can say it, UTF-8 cannot."""
    async with running() as (_, client):
        answer = await client.post(COMPLETIONS, b'{"prompt": "\\ud800"}')
        assert (answer.status, answer.json()["error"]["type"]) == (400, "BadRequestError")

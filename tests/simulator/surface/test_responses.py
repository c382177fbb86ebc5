"""/v1/responses, beyond what every pod promises: items, functions, and conversations kept by the pod."""

from __future__ import annotations

import json
from typing import Any

from tests.simulator.asking import LONG, MODEL, chat, running

RESPONSES = "/v1/responses"

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"days": {"type": "integer"}}},
}


def ask_for(given: Any = "Hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": given, "max_output_tokens": 8, **fields}


def text_of(answer: Any) -> str:
    return str(answer["output"][0]["content"][0]["text"])


async def test_it_says_what_chat_says() -> None:
    """As text, as items and as parts of items."""
    async with running() as (_, client):
        stated = (await client.ask("/v1/chat/completions", chat(LONG)))["choices"][0]["message"]["content"]
        parts = [{"type": "input_text", "text": LONG}]
        for given in (LONG, [{"role": "user", "content": LONG}], [{"role": "user", "content": parts}]):
            assert text_of(await client.ask(RESPONSES, ask_for(given))) == stated


async def test_an_answer_that_ends_by_itself_is_complete() -> None:
    """With nothing incomplete about it."""
    async with running() as (_, client):
        answer = await client.ask(RESPONSES, ask_for(max_output_tokens=5000))
        assert (answer["status"], answer["incomplete_details"]) == ("completed", None)


async def test_cached_tokens_are_reported_even_by_a_silent_pod() -> None:
    """This API alone tells them without --enable-prompt-tokens-details."""
    async with running(reports_cached_tokens=False) as (_, client):
        await client.ask(RESPONSES, ask_for(LONG))
        assert (await client.ask(RESPONSES, ask_for(LONG)))["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_a_function_is_called() -> None:
    """An item of its own, with events of its own."""
    requested = ask_for(max_output_tokens=50, tools=[TOOL], tool_choice="required")
    async with running() as (_, client):
        [item] = (await client.ask(RESPONSES, requested))["output"]
        assert (item["type"], item["name"], json.loads(item["arguments"])) == ("function_call", "weather", {"days": 1})
        events = (await client.stream(RESPONSES, requested)).events
        deltas = [value["delta"] for name, value in events if name == "response.function_call_arguments.delta"]
        assert json.loads("".join(deltas)) == {"days": 1}


async def test_calls_and_their_results_are_part_of_the_conversation() -> None:
    """Items of a previous turn only append."""
    turns = [
        {"role": "user", "content": LONG},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    ]
    async with running() as (_, client):
        await client.ask(RESPONSES, ask_for(turns[:1]))
        usage = (await client.ask(RESPONSES, ask_for(turns)))["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] >= len(LONG) // 4 // 16 * 16


async def test_structured_output_is_json() -> None:
    """Any object, or one of a schema."""
    schema = {"type": "object", "properties": {"days": {"type": "integer"}}}
    async with running() as (_, client):
        for form, value in (
            ({"type": "json_schema", "name": "x", "schema": schema}, {"days": 1}),
            ({"type": "json_object"}, {"answer": "lorem"}),
        ):
            answer = await client.ask(RESPONSES, ask_for(max_output_tokens=50, text={"format": form}))
            assert json.loads(text_of(answer)) == value


async def test_a_kept_response_is_gone_on_with() -> None:
    """The pod remembers the conversation, instructions replaced by new ones, if it was told to keep any."""
    async with running(keeps_responses=True) as (_, client):
        first = await client.ask(RESPONSES, ask_for(LONG, instructions="Be brief."))
        by_id = await client.ask(RESPONSES, ask_for("And then?", previous_response_id=first["id"]))
        spelled = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": text_of(first)},
            {"role": "user", "content": "And then?"},
        ]
        assert text_of(await client.ask(RESPONSES, ask_for(spelled))) == text_of(by_id)
        spelled[0]["content"] = "Be long."
        renewed = ask_for("And then?", previous_response_id=first["id"], instructions="Be long.")
        assert text_of(await client.ask(RESPONSES, ask_for(spelled))) == text_of(await client.ask(RESPONSES, renewed))

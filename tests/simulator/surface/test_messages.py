"""/v1/messages, beyond what every pod promises: Anthropic's parts, tools and stops."""

from __future__ import annotations

import json
from typing import Any

from tests.simulator.asking import LONG, MODEL, chat, running

MESSAGES = "/v1/messages"

TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]},
}


def message(text: Any = "Hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": text}], **fields}


async def test_it_says_what_chat_says() -> None:
    """The same conversation is the same prompt, whichever API it comes by."""
    async with running() as (_, client):
        stated = (await client.ask(MESSAGES, message(LONG)))["content"][0]["text"]
        parts = [{"type": "text", "text": LONG}]
        assert (await client.ask(MESSAGES, message(parts)))["content"][0]["text"] == stated
        assert (await client.ask("/v1/chat/completions", chat(LONG)))["choices"][0]["message"]["content"] == stated


async def test_a_system_prompt_is_a_message() -> None:
    """As text or as parts."""
    async with running() as (_, client):
        as_text = await client.ask(f"{MESSAGES}/count_tokens", message(system="Be brief."))
        as_parts = await client.ask(f"{MESSAGES}/count_tokens", message(system=[{"type": "text", "text": "Be brief."}]))
        without = await client.ask(f"{MESSAGES}/count_tokens", message())
        assert as_text == as_parts
        assert as_text["input_tokens"] > without["input_tokens"]


async def test_a_tool_is_used() -> None:
    """Any, or the one named; streamed as partial JSON."""
    async with running() as (_, client):
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            requested = message(max_tokens=50, tools=[TOOL], tool_choice=choice)
            answer = await client.ask(MESSAGES, requested)
            [block] = answer["content"]
            assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {"days": 1})
            assert answer["stop_reason"] == "tool_use"
        events = [value for _, value in (await client.stream(MESSAGES, requested)).events]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert {delta["type"] for delta in deltas} == {"input_json_delta"}
        assert json.loads("".join(delta["partial_json"] for delta in deltas)) == {"days": 1}
        assert events[1]["content_block"]["type"] == "tool_use"


async def test_a_tool_call_cut_short_has_no_input() -> None:
    """The limit fell into its arguments."""
    async with running() as (_, client):
        answer = await client.ask(MESSAGES, message(max_tokens=1, tools=[TOOL], tool_choice={"type": "any"}))
        assert (answer["content"][0]["input"], answer["stop_reason"]) == ({}, "max_tokens")


async def test_a_tool_no_one_offered_is_rejected() -> None:
    """In Anthropic's shape."""
    async with running() as (_, client):
        answer = await client.post(MESSAGES, message(tools=[TOOL], tool_choice={"type": "tool", "name": "dance"}))
        assert (answer.status, answer.json()["type"]) == (400, "error")


async def test_tool_results_are_part_of_the_conversation() -> None:
    """A call and its result are turns that only append."""
    turns = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "rain"}]},
    ]
    async with running() as (_, client):
        await client.ask(MESSAGES, message() | {"messages": turns[:1]})
        usage = (await client.ask(MESSAGES, message() | {"messages": turns}))["usage"]
        assert usage["cache_read_input_tokens"] >= len(LONG) // 4 // 16 * 16


async def test_a_stop_sequence_is_named() -> None:
    """With its own stop reason."""
    async with running() as (_, client):
        stated = (await client.ask(MESSAGES, message(max_tokens=20)))["content"][0]["text"]
        answer = await client.ask(MESSAGES, message(max_tokens=20, stop_sequences=[stated[20:23]]))
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stated[20:23])


async def test_an_answer_that_ends_by_itself_ends_its_turn() -> None:
    """Neither cut nor stopped."""
    async with running() as (_, client):
        assert (await client.ask(MESSAGES, message(max_tokens=5000)))["stop_reason"] == "end_turn"


async def test_an_answer_without_text_has_no_block() -> None:
    """Stopped within its first token: it starts, says why it stopped, and ends."""
    async with running() as (_, client):
        stated = (await client.ask(MESSAGES, message()))["content"][0]["text"]
        events = (await client.stream(MESSAGES, message(stop_sequences=[stated[:2]]))).events
        assert [name for name, _ in events] == ["message_start", "message_delta", "message_stop"]

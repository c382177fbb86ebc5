"""Pods that think and call tools: told apart in every API, and gone on with word for word from token ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.surface.parsing import CallPiece, Delta, Parser
from simulator.surface.wording import Wording
from tests.simulator.asking import MODEL, running

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "minLength": 30}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}

CALLS = '{"name": "f", "arguments": {"a": "}"}}'


def requested(number: int, **fields: Any) -> dict[str, Any]:
    """Questions of which no two are answered alike."""
    turn = {"role": "user", "content": f"Question {number}"}
    return {"model": MODEL, "messages": [turn], "temperature": 0, "max_tokens": 400, **fields}


def thoughtful(**fields: Any) -> Any:
    return running(max_reasoning_tokens=12, calls_tools=True, **fields)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("cut", [0, 1])
def test_calls_are_found_however_the_text_is_cut(size: int, cut: int) -> None:
    """Text before them, then each call with its name once and its arguments whole; marks are shown to nobody."""
    stated = f"Well.\n<tool_call>\n{CALLS}\n</tool_call>\n<tool_call>\n{CALLS}\n</tool_call>"
    parser = Parser(Wording(reads_calls=True), thinks=False)
    pieces = [stated[:cut], *(stated[start : start + size] for start in range(cut, len(stated), size))]
    deltas = [parser.feed(piece) for piece in pieces]
    assert "".join(delta.content or "" for delta in deltas) == "Well.\n"
    calls = [call for delta in deltas for call in delta.calls]
    for index in range(2):
        own = [call for call in calls if call.index == index]
        assert [call.name for call in own if call.name] == ["f"]
        assert "".join(call.arguments or "" for call in own) == '{"a": "}"}'
    assert parser.has_called


def test_what_only_looks_like_a_call_is_text() -> None:
    """A beginning of a mark is held back until it is none."""
    parser = Parser(Wording(reads_calls=True), thinks=False)
    assert parser.feed("a <tool") == Delta(content="a ")
    assert parser.feed("box>") == Delta(content="<toolbox>")


def test_a_unary_answer_whose_call_was_cut_has_none() -> None:
    """As with vLLM's parsers: what cannot be read as a call is the text that it was."""
    parser = Parser(Wording(reads_calls=True), thinks=True)
    stated = parser.parse_unary('Hm.</think><tool_call>\n{"name": "f", "arguments": {"a"')
    assert stated == Delta("Hm.", '<tool_call>\n{"name": "f", "arguments": {"a"')
    assert Parser(Wording("{}", "f"), thinks=True).parse_unary("Hm.</think>{}") == Delta(
        "Hm.", None, (CallPiece(0, "f", "{}"),)
    )


async def test_thoughts_come_first_and_may_be_forbidden() -> None:
    """In chat; usage tells how many tokens they were."""
    async with thoughtful() as (_, client):
        for number in range(4):
            answer = await client.ask(CHAT, requested(number))
            message = answer["choices"][0]["message"]
            assert message["reasoning"]
            assert message["content"]
            assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] * 4 == len(message["reasoning"])
            quiet = requested(number, chat_template_kwargs={"enable_thinking": False})
            answer = await client.ask(CHAT, quiet)
            assert answer["choices"][0]["message"]["reasoning"] is None
            assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
            hidden = (await client.ask(CHAT, requested(number, include_reasoning=False)))["choices"][0]["message"]
            assert (hidden["reasoning"], hidden["content"]) == (None, message["content"])


async def test_a_stream_says_what_the_unary_answer_says() -> None:
    """Thoughts, text, calls and the reason to end."""
    reasons = set()
    async with thoughtful() as (_, client):
        for number in range(20):
            question = requested(number, tools=[TOOL])
            [parse_unary] = (await client.ask(CHAT, question))["choices"]
            values = (await client.stream(CHAT, question)).values
            choices = [choice for value in values if value for choice in value["choices"]]
            deltas = [choice["delta"] for choice in choices]
            assert "".join(delta.get("reasoning") or "" for delta in deltas) == parse_unary["message"]["reasoning"]
            assert "".join(delta.get("content") or "" for delta in deltas) == (parse_unary["message"]["content"] or "")
            calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
            reported = [call["function"] for call in parse_unary["message"].get("tool_calls", [])]
            assert [call["function"]["name"] for call in calls if "id" in call] == [each["name"] for each in reported]
            arguments = "".join(call["function"].get("arguments", "") for call in calls)
            assert arguments == "".join(each["arguments"] for each in reported)
            assert choices[-1]["finish_reason"] == parse_unary["finish_reason"]
            reasons.add(parse_unary["finish_reason"])
    assert reasons == {"stop", "tool_calls"}, "some prompts are answered with calls, some without"


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"}], ids=repr)
async def test_an_answer_goes_on_from_its_ids(fields: dict[str, Any]) -> None:
    """Wherever it was cut, inside thoughts or behind them: forwarded ids of prompt and answer are gone on with."""
    async with thoughtful(max_answer_tokens=20) as (_, client):
        for number in range(3):
            question = requested(number, return_token_ids=True, **fields)
            first, *values = [value for value in (await client.stream(CHAT, question)).values if value]
            ids = [each for value in values for each in value["choices"][0]["token_ids"]]
            for cut in range(1, len(ids)):
                forwarded = {"prompt_token_ids": first["prompt_token_ids"] + ids[:cut]}
                rest = await client.ask(
                    CHAT, requested(number, return_token_ids=True, kv_transfer_params=forwarded, **fields)
                )
                assert rest["choices"][0]["token_ids"] == ids[cut:], cut


async def test_apis_think_and_call_alike() -> None:
    """The same conversation with the same tool is the same prompt, and has the same answer in other words."""
    message_tool = {"name": "weather", "input_schema": SCHEMA}
    async with thoughtful() as (_, client):
        for number in range(4):
            [choice] = (await client.ask(CHAT, requested(number, tools=[TOOL])))["choices"]
            stated = choice["message"]
            arguments = [json.loads(call["function"]["arguments"]) for call in stated.get("tool_calls", [])]
            blocks = (await client.ask(MESSAGES, requested(number, tools=[message_tool])))["content"]
            assert [block["thinking"] for block in blocks if block["type"] == "thinking"] == [stated["reasoning"]]
            assert "".join(block["text"] for block in blocks if block["type"] == "text") == (stated["content"] or "")
            assert [block["input"] for block in blocks if block["type"] == "tool_use"] == arguments
            tool = {"type": "function", "name": "weather", "parameters": SCHEMA}
            question = {"model": MODEL, "input": f"Question {number}", "tools": [tool]}
            items = (await client.ask(RESPONSES, question))["output"]
            assert [item["content"][0]["text"] for item in items if item["type"] == "reasoning"] == [
                stated["reasoning"]
            ]
            texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
            assert "".join(texts) == (stated["content"] or "")
            assert [json.loads(item["arguments"]) for item in items if item["type"] == "function_call"] == arguments


async def test_a_tool_that_has_answered_is_not_called_again() -> None:
    """Else no agent would ever come to an end."""
    async with thoughtful() as (_, client):
        for number in range(4):
            question = requested(number, tools=[TOOL])
            question["messages"] += [
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1", **TOOL}]},
                {"role": "tool", "content": "rain", "tool_call_id": "1"},
            ]
            assert (await client.ask(CHAT, question))["choices"][0]["finish_reason"] == "stop"


async def test_a_message_left_open_has_lost_its_thoughts() -> None:
    """As with most templates: it is gone on with, but without them it is another prompt."""
    async with thoughtful() as (_, client):
        question = requested(1)
        message = (await client.ask(CHAT, question))["choices"][0]["message"]
        half = {"role": "assistant", "content": message["content"][:16]}
        open_turn = {"add_generation_prompt": False, "continue_final_message": True}
        rest = await client.ask(CHAT, {**question, "messages": [*question["messages"], half], **open_turn})
        stated = rest["choices"][0]["message"]
        assert stated["reasoning"] is None
        assert message["content"] != half["content"] + stated["content"]


async def test_a_prompt_is_reported_as_text() -> None:
    """To its end, where the template opens thoughts."""
    async with thoughtful() as (_, client):
        answer = await client.ask(CHAT, requested(1, return_prompt_text=True))
        assert answer["prompt_text"] == "<|im_start|>user\nQuestion 1<|im_end|>\n<|im_start|>assistant\n<think>"
        assert (await client.ask(CHAT, requested(1)))["prompt_text"] is None

"""The four APIs as the SDKs of OpenAI and Anthropic speak them: a request asked, and what is heard noted as it comes.

Does not retry and judges nothing: the SDKs do the one, clients.py the other.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.chaos.asked import Api, Asked, Heard, Wanted
from tests.chaos.sdks import Sdks

MODEL = "tiny"


class Left(Exception):  # noqa: N818 - nothing went wrong
    """The client had heard enough."""


Note = Callable[[], None]
"""Told when something was heard."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"type": "string", "minLength": 200}, "days": {"type": "integer"}},
    "required": ["place", "days"],
}
"""Long enough to be cut in the middle."""

NAME = "look_up"

MOST_THOUGHT = 60
"""Tokens, where an engine can be told: vLLM in its chat API. A model that was never trained thinks for ever."""

QUIET = {"chat_template_kwargs": {"enable_thinking": False}}

CALLS = {Wanted.CALL: "auto", Wanted.ORDERED_CALL: "required"}
"""What a tool is offered for, in OpenAI's words."""


async def listen(sdks: Sdks, asked: Asked, heard: Heard, note: Note) -> None:
    """Ask, and note the answer in `heard`. Raises what the SDK raises, and `Left`."""

    def noted() -> None:
        note()
        leaves = asked.is_streamed and asked.leaves_after is not None and heard.ended is None
        if leaves and len(heard.pieces) >= (asked.leaves_after or 0):
            raise Left

    await DIALECTS[asked.api](sdks, asked, heard, noted)


async def _chat(sdks: Sdks, asked: Asked, heard: Heard, note: Note) -> None:
    body = {"messages": _said(asked), "max_tokens": asked.most_tokens, **_of_chat(asked)}
    if asked.wanted in CALLS:
        body["tools"] = [{"type": "function", "function": {"name": NAME, "parameters": SCHEMA}}]
        body["tool_choice"] = CALLS[asked.wanted]
    if asked.wanted is Wanted.SCHEMA:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": NAME, "schema": SCHEMA}}
    create = sdks.openai.chat.completions.create
    if not asked.is_streamed:
        whole = await create(**body)
        _hear_chat(heard, whole.choices[0].message)
        heard.ended, heard.tokens = whole.choices[0].finish_reason, whole.usage.completion_tokens
        return
    async with await create(**body, stream=True, stream_options={"include_usage": True}) as stream:
        async for chunk in stream:
            for choice in chunk.choices:
                heard.ended = choice.finish_reason or heard.ended
                _hear_chat(heard, choice.delta)
                note()
            heard.tokens = chunk.usage.completion_tokens if chunk.usage else heard.tokens


def _hear_chat(heard: Heard, said: Any) -> None:
    """A message, or a piece of one; the SDK does not know thoughts, but keeps them."""
    heard.hear(getattr(said, "reasoning", None), "thoughts")
    heard.hear(said.content)
    for call in said.tool_calls or ():
        heard.hear_call(call.function.name, call.function.arguments)


async def _completions(sdks: Sdks, asked: Asked, heard: Heard, note: Note) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": asked.prompt, "max_tokens": asked.most_tokens, "temperature": 0}
    create = sdks.openai.completions.create
    if not asked.is_streamed:
        whole = await create(**body)
        heard.hear(whole.choices[0].text)
        heard.ended, heard.tokens = whole.choices[0].finish_reason, whole.usage.completion_tokens
        return
    async with await create(**body, stream=True, stream_options={"include_usage": True}) as stream:
        async for chunk in stream:
            for choice in chunk.choices:
                heard.ended = choice.finish_reason or heard.ended
                heard.hear(choice.text)
                note()
            heard.tokens = chunk.usage.completion_tokens if chunk.usage else heard.tokens


async def _responses(sdks: Sdks, asked: Asked, heard: Heard, note: Note) -> None:
    body = {"input": asked.prompt, "max_output_tokens": asked.most_tokens, **_of_chat(asked)}
    if asked.wanted in CALLS:
        body["tools"] = [{"type": "function", "name": NAME, "parameters": SCHEMA}]
        body["tool_choice"] = CALLS[asked.wanted]
    if asked.wanted is Wanted.SCHEMA:
        body["text"] = {"format": {"type": "json_schema", "name": NAME, "schema": SCHEMA}}
    create = sdks.openai.responses.create
    if not asked.is_streamed:
        whole = await create(**body)
        _hear_items(heard, whole.output)
        heard.ended, heard.tokens = whole.status, whole.usage.output_tokens
        return
    async with await create(**body, stream=True) as stream:
        async for event in stream:
            match event.type:
                case "response.reasoning_text.delta":
                    heard.hear(event.delta, "thoughts")
                case "response.output_text.delta":
                    heard.hear(event.delta)
                case "response.output_item.added" if event.item.type == "function_call":
                    heard.hear_call(event.item.name, None)
                case "response.function_call_arguments.delta":
                    heard.hear_call(None, event.delta)
                case "response.completed" | "response.incomplete":
                    heard.ended, heard.tokens = event.response.status, event.response.usage.output_tokens
                    _compare_with_end(heard, event.response.output)
            note()


def _hear_items(heard: Heard, items: Any) -> None:
    for item in items:
        if item.type == "function_call":
            heard.hear_call(item.name, item.arguments)
        for part in getattr(item, "content", None) or ():
            heard.hear(part.text, "thoughts" if item.type == "reasoning" else "text")


def _compare_with_end(heard: Heard, items: Any) -> None:
    """What was told in pieces is told once more as a whole."""
    whole = Heard()
    _hear_items(whole, items)
    if whole.text != heard.text:
        heard.hear(whole.text, "at its end it is")


async def _messages(sdks: Sdks, asked: Asked, heard: Heard, note: Note) -> None:
    body = {"messages": _said(asked), "max_tokens": asked.most_tokens, **_of_chat(asked)}
    # The SDK knows no temperature any more; the engine does.
    body["extra_body"] |= {"temperature": body.pop("temperature")}
    if asked.wanted in CALLS:
        body["tools"] = [{"name": NAME, "input_schema": SCHEMA}]
        body["tool_choice"] = {"type": "auto" if asked.wanted is Wanted.CALL else "any"}
    if asked.wanted is Wanted.SCHEMA:
        body["extra_body"] |= {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    create = sdks.anthropic.messages.create
    if not asked.is_streamed:
        whole = await create(**body)
        for block in whole.content:
            _hear_block(heard, block)
        heard.ended, heard.tokens = whole.stop_reason, whole.usage.output_tokens
        return
    async with await create(**body, stream=True) as stream:
        async for event in stream:
            match event.type:
                case "content_block_start":
                    _hear_block(heard, event.content_block, begins=True)
                case "content_block_delta":
                    _hear_delta(heard, event.delta)
                case "message_delta":
                    heard.ended, heard.tokens = event.delta.stop_reason, event.usage.output_tokens
            note()


def _hear_block(heard: Heard, block: Any, *, begins: bool = False) -> None:
    """A block, or the beginning of one."""
    match block.type:
        case "thinking":
            heard.hear(block.thinking, "thoughts")
        case "tool_use":
            heard.hear_call(block.name, None if begins else json.dumps(block.input))
        case _:
            heard.hear(block.text)


def _hear_delta(heard: Heard, delta: Any) -> None:
    match delta.type:
        case "thinking_delta":
            heard.hear(delta.thinking, "thoughts")
        case "input_json_delta":
            heard.hear_call(None, delta.partial_json)
        case "text_delta":
            heard.hear(delta.text)


def _of_chat(asked: Asked) -> dict[str, Any]:
    """What every API of chat has. Without temperature whoever is asked again says what the first has said."""
    thoughts = {"thinking_token_budget": MOST_THOUGHT} if asked.thinks else QUIET
    return {"model": MODEL, "temperature": 0.7 if asked.is_drawn else 0, "extra_body": dict(thoughts)}


def _said(asked: Asked) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked.prompt}]


DIALECTS: Mapping[Api, Callable[[Sdks, Asked, Heard, Note], Awaitable[None]]] = {
    Api.CHAT: _chat,
    Api.COMPLETIONS: _completions,
    Api.RESPONSES: _responses,
    Api.MESSAGES: _messages,
}

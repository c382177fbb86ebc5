"""The four APIs as the SDKs of OpenAI and Anthropic speak them: a request asked, and what is heard noted as it comes.

Does not retry and judges nothing: the SDKs do the one, clients.py the other.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.chaos.requested import Api, Asked, Heard, Wanted
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


async def listen(sdks: Sdks, requested: Asked, received: Heard, note: Note) -> None:
    """Ask, and note the answer in `received`. Raises what the SDK raises, and `Left`."""

    def noted() -> None:
        note()
        leaves = requested.is_streamed and requested.leaves_after is not None and received.ended is None
        if leaves and len(received.pieces) >= (requested.leaves_after or 0):
            raise Left

    await DIALECTS[requested.api](sdks, requested, received, noted)


async def _chat(sdks: Sdks, requested: Asked, received: Heard, note: Note) -> None:
    body = {"messages": _said(requested), "max_tokens": requested.most_tokens, **_of_chat(requested)}
    if requested.wanted in CALLS:
        body["tools"] = [{"type": "function", "function": {"name": NAME, "parameters": SCHEMA}}]
        body["tool_choice"] = CALLS[requested.wanted]
    if requested.wanted is Wanted.SCHEMA:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": NAME, "schema": SCHEMA}}
    create = sdks.openai.chat.completions.create
    if not requested.is_streamed:
        complete = await create(**body)
        _hear_chat(received, complete.choices[0].message)
        received.ended, received.tokens = complete.choices[0].finish_reason, complete.usage.completion_tokens
        return
    async with await create(**body, stream=True, stream_options={"include_usage": True}) as stream:
        async for chunk in stream:
            for choice in chunk.choices:
                received.ended = choice.finish_reason or received.ended
                _hear_chat(received, choice.delta)
                note()
            received.tokens = chunk.usage.completion_tokens if chunk.usage else received.tokens


def _hear_chat(received: Heard, stated: Any) -> None:
    """A message, or a piece of one; the SDK does not know thoughts, but keeps them."""
    received.hear(getattr(stated, "reasoning", None), "thoughts")
    received.hear(stated.content)
    for call in stated.tool_calls or ():
        received.hear_call(call.function.name, call.function.arguments)


async def _completions(sdks: Sdks, requested: Asked, received: Heard, note: Note) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": requested.prompt,
        "max_tokens": requested.most_tokens,
        "temperature": 0,
    }
    create = sdks.openai.completions.create
    if not requested.is_streamed:
        complete = await create(**body)
        received.hear(complete.choices[0].text)
        received.ended, received.tokens = complete.choices[0].finish_reason, complete.usage.completion_tokens
        return
    async with await create(**body, stream=True, stream_options={"include_usage": True}) as stream:
        async for chunk in stream:
            for choice in chunk.choices:
                received.ended = choice.finish_reason or received.ended
                received.hear(choice.text)
                note()
            received.tokens = chunk.usage.completion_tokens if chunk.usage else received.tokens


async def _responses(sdks: Sdks, requested: Asked, received: Heard, note: Note) -> None:
    body = {"input": requested.prompt, "max_output_tokens": requested.most_tokens, **_of_chat(requested)}
    if requested.wanted in CALLS:
        body["tools"] = [{"type": "function", "name": NAME, "parameters": SCHEMA}]
        body["tool_choice"] = CALLS[requested.wanted]
    if requested.wanted is Wanted.SCHEMA:
        body["text"] = {"format": {"type": "json_schema", "name": NAME, "schema": SCHEMA}}
    create = sdks.openai.responses.create
    if not requested.is_streamed:
        complete = await create(**body)
        _hear_items(received, complete.output)
        received.ended, received.tokens = complete.status, complete.usage.output_tokens
        return
    async with await create(**body, stream=True) as stream:
        async for event in stream:
            match event.type:
                case "response.reasoning_text.delta":
                    received.hear(event.delta, "thoughts")
                case "response.output_text.delta":
                    received.hear(event.delta)
                case "response.output_item.added" if event.item.type == "function_call":
                    received.hear_call(event.item.name, None)
                case "response.function_call_arguments.delta":
                    received.hear_call(None, event.delta)
                case "response.completed" | "response.incomplete":
                    received.ended, received.tokens = event.response.status, event.response.usage.output_tokens
                    _compare_with_end(received, event.response.output)
            note()


def _hear_items(received: Heard, items: Any) -> None:
    for item in items:
        if item.type == "function_call":
            received.hear_call(item.name, item.arguments)
        for part in getattr(item, "content", None) or ():
            received.hear(part.text, "thoughts" if item.type == "reasoning" else "text")


def _compare_with_end(received: Heard, items: Any) -> None:
    """What was told in pieces is told once more as a whole."""
    complete = Heard()
    _hear_items(complete, items)
    if complete.text != received.text:
        received.hear(complete.text, "at its end it is")


async def _messages(sdks: Sdks, requested: Asked, received: Heard, note: Note) -> None:
    body = {"messages": _said(requested), "max_tokens": requested.most_tokens, **_of_chat(requested)}
    # The SDK knows no temperature any more; the engine does.
    body["extra_body"] |= {"temperature": body.pop("temperature")}
    if requested.wanted in CALLS:
        body["tools"] = [{"name": NAME, "input_schema": SCHEMA}]
        body["tool_choice"] = {"type": "auto" if requested.wanted is Wanted.CALL else "any"}
    if requested.wanted is Wanted.SCHEMA:
        body["extra_body"] |= {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    create = sdks.anthropic.messages.create
    if not requested.is_streamed:
        complete = await create(**body)
        for block in complete.content:
            _hear_block(received, block)
        received.ended, received.tokens = complete.stop_reason, complete.usage.output_tokens
        return
    async with await create(**body, stream=True) as stream:
        async for event in stream:
            match event.type:
                case "content_block_start":
                    _hear_block(received, event.content_block, begins=True)
                case "content_block_delta":
                    _hear_delta(received, event.delta)
                case "message_delta":
                    received.ended, received.tokens = event.delta.stop_reason, event.usage.output_tokens
            note()


def _hear_block(received: Heard, block: Any, *, begins: bool = False) -> None:
    """A block, or the beginning of one."""
    match block.type:
        case "thinking":
            received.hear(block.thinking, "thoughts")
        case "tool_use":
            received.hear_call(block.name, None if begins else json.dumps(block.input))
        case _:
            received.hear(block.text)


def _hear_delta(received: Heard, delta: Any) -> None:
    match delta.type:
        case "thinking_delta":
            received.hear(delta.thinking, "thoughts")
        case "input_json_delta":
            received.hear_call(None, delta.partial_json)
        case "text_delta":
            received.hear(delta.text)


def _of_chat(requested: Asked) -> dict[str, Any]:
    """What every API of chat has. Without temperature whoever is asked again says what the first has said."""
    thoughts = {"thinking_token_budget": MOST_THOUGHT} if requested.thinks else QUIET
    return {"model": MODEL, "temperature": 0.7 if requested.is_drawn else 0, "extra_body": dict(thoughts)}


def _said(requested: Asked) -> list[dict[str, str]]:
    return [{"role": "user", "content": requested.prompt}]


DIALECTS: Mapping[Api, Callable[[Sdks, Asked, Heard, Note], Awaitable[None]]] = {
    Api.CHAT: _chat,
    Api.COMPLETIONS: _completions,
    Api.RESPONSES: _responses,
    Api.MESSAGES: _messages,
}

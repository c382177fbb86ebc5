"""/v1/messages and its token count: Anthropic's API over the same engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from simulator.generation import Choice, Generation
from simulator.options import Options
from simulator.prompts import Prompt
from simulator.script import ABORT, Wish
from simulator.service import Service
from simulator.surface.asking import (
    Asked,
    aborts_after,
    check_ignored,
    known_model,
    rank_of,
    request_id_of,
    salt_of,
)
from simulator.surface.chat_request import chat_prompt, fixed_json, forwarded_prompt
from simulator.surface.fields import Body, read_body
from simulator.surface.wire import (
    SERVICE,
    ApiError,
    EventStream,
    compact,
    engine_issue,
    json_answer,
    malformed,
    open_stream,
)

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", ABORT: None}


@dataclass(frozen=True, slots=True)
class Message:
    """One messages request, checked."""

    asked: Asked
    prompt: Prompt
    tool: str | None
    recital: str | None


async def create_message(request: web.Request) -> web.StreamResponse:
    """POST /v1/messages."""
    service = request.app[SERVICE]
    message = _read(service, request, await read_body(request))
    order = message.asked.order(service.options, [message.prompt], message.recital)
    with service.generate(order) as generation:
        if message.asked.stream:
            return await _stream(request, service.options, message, generation)
        await generation.completed()
        if generation.has_failed:
            raise engine_issue()
        return json_answer(_whole(service.options, message, generation))


async def count_tokens(request: web.Request) -> web.StreamResponse:
    """POST /v1/messages/count_tokens."""
    service = request.app[SERVICE]
    body = await read_body(request)
    prompt = _prompt(service, known_model(service, body), body)
    count = len(prompt.tokens)
    return json_answer({"input_tokens": count, "context_management": {"original_input_tokens": count}})


def _read(service: Service, request: web.Request, body: Body) -> Message:
    for name in ("model", "messages", "max_tokens"):
        body.required(name)
    max_tokens = body.integer("max_tokens")
    if max_tokens is not None and max_tokens < 1:
        raise malformed("max_tokens", "value_error", "max_tokens must be positive", max_tokens)
    check_ignored(body)
    model = known_model(service, body)
    stops = body.get("stop_sequences") or []
    if not isinstance(stops, list):
        raise malformed("stop_sequences", "list_type", "Input should be a valid list", stops)
    asked = Asked(
        model=model,
        request_id=request_id_of(request, body),
        rank=rank_of(service, request),
        stream=body.flag("stream"),
        include_usage=True,
        continuous_usage=True,
        copies=1,
        max_tokens=max_tokens,
        wish=Wish(0, stop=tuple(map(str, stops))),
        salt=salt_of(body),
        priority=body.integer("priority", 0) or 0,
        returns_token_ids=False,
        transfer=body.object("kv_transfer_params").fields,
        aborts_after=aborts_after(request),
    )
    tool, schema = _chosen_tool(body)
    recital = None if tool is None else fixed_json(schema)
    prompt = forwarded_prompt(service, model, body) or _prompt(service, model, body)
    return Message(asked, prompt, tool, recital)


def _chosen_tool(body: Body) -> tuple[str | None, Any]:
    """The tool that must be used, with its schema."""
    choice, tools = body.object("tool_choice"), body.objects("tools")
    for tool in tools:
        if choice.get("type") == "any" or (choice.get("type") == "tool" and choice.get("name") == tool.get("name")):
            return str(tool.get("name")), tool.get("input_schema") or {"type": "object"}
    if choice.get("type") in ("any", "tool"):
        raise ApiError("tool_choice names no tool of this request")
    return None, None


def _prompt(service: Service, model: str, body: Body) -> Prompt:
    messages = body.objects("messages")
    if not messages:
        raise ApiError("Cannot apply chat template to an empty conversation, please provide at least one message.")
    system = body.get("system")
    openers = [{"role": "system", "content": system}] if system else []
    rendered = [*openers, *(turn for message in messages for turn in _turns(message))]
    return chat_prompt(service, model, rendered, Body({}), body.objects("tools"))


def _turns(message: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """An Anthropic message as chat messages: tool results are turns of their own."""
    content = message.get("content")
    if not isinstance(content, list):
        return [message]
    if not all(isinstance(part, dict) for part in content):
        raise malformed("messages", "dict_type", "Input should be a valid dictionary", content)
    parts = [part for part in content if part.get("type") not in ("tool_use", "tool_result")]
    calls = [part for part in content if part.get("type") == "tool_use"]
    turns: list[dict[str, Any]] = [
        {"role": "tool", "content": part.get("content"), "tool_call_id": part.get("tool_use_id")}
        for part in content
        if part.get("type") == "tool_result"
    ]
    if parts or calls:
        turns.append({"role": message.get("role"), "content": parts, "tool_calls": calls})
    return turns


def _usage(options: Options, generation: Generation) -> dict[str, int]:
    """Input neither read from the cache nor written to it stands apart, if the pod tells of its cache at all."""
    prompt, output = generation.prompt_tokens, generation.completion_tokens
    if not options.tells_cached_tokens:
        return {"input_tokens": prompt, "output_tokens": output}
    cached, created = generation.cached_tokens, generation.created_cache_tokens
    return {
        "input_tokens": prompt - cached - created,
        "output_tokens": output,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": cached,
    }


def _stop(message: Message, choice: Choice) -> tuple[str | None, str | None]:
    """Why it stopped, and at which stop sequence if at one."""
    script = choice.script
    if script.stop_reason is not None:
        return "stop_sequence", script.stop_reason
    if message.tool is not None and script.finish_reason == "stop":
        return "tool_use", None
    return _STOP_REASONS[script.finish_reason], None


def _whole(options: Options, message: Message, generation: Generation) -> dict[str, Any]:
    [choice] = generation.choices
    reason, sequence = _stop(message, choice)
    content: dict[str, Any] = {"type": "text", "text": choice.text}
    if message.tool is not None:
        content = {**_tool_block(message), "input": _parsed(choice.text)}
    answer = {
        "id": f"chatcmpl-{message.asked.request_id}",
        "type": "message",
        "role": "assistant",
        "content": [content],
        "model": message.asked.model,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": _usage(options, generation),
        "kv_transfer_params": generation.transfer_params,
    }
    return {name: value for name, value in answer.items() if value is not None}


def _parsed(arguments: str) -> Any:
    """A call's arguments; one that was cut short has none."""
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:
        return {}


def _tool_block(message: Message) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"chatcmpl-tool-{message.asked.request_id}", "name": message.tool, "input": {}}


async def _send(stream: EventStream, kind: str, **fields: Any) -> None:
    await stream.send_named(kind, compact({"type": kind, **fields}))


async def _stream(
    request: web.Request, options: Options, message: Message, generation: Generation
) -> web.StreamResponse:
    stream = await open_stream(request)
    [choice] = generation.choices
    block = {"type": "text", "text": ""} if message.tool is None else _tool_block(message)
    has_block = False
    while not generation.is_told:
        for _, portion in await generation.more():
            if portion.start == 0:
                await _send(stream, "message_start", message=_opening(message, generation))
            if portion.text and not has_block:
                has_block = True
                await _send(stream, "content_block_start", index=0, content_block=block)
            if portion.text:
                await _send(stream, "content_block_delta", index=0, delta=_delta(message, portion.text))
        if generation.has_failed:
            return await stream.fail()
    if has_block:
        await _send(stream, "content_block_stop", index=0)
    reason, sequence = _stop(message, choice)
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    await _send(stream, "message_delta", delta=delta, usage=_usage(options, generation))
    await _send(stream, "message_stop")
    return await stream.close()


def _opening(message: Message, generation: Generation) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{message.asked.request_id}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": message.asked.model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": generation.prompt_tokens, "output_tokens": 0},
    }


def _delta(message: Message, text: str) -> dict[str, str]:
    if message.tool is None:
        return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}

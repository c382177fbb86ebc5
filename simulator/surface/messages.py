"""/v1/messages and its token count: Anthropic's API over the same engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from simulator.generation import Choice, Generation
from simulator.options import Options
from simulator.prompts import Prompt, text_parts
from simulator.script import ABORT, Wish
from simulator.service import Service
from simulator.surface.blocks import Blocks, unary_blocks
from simulator.surface.chat_request import chat_prompt, forwarded_prompt, opening_of
from simulator.surface.fields import Body, read_body
from simulator.surface.parsing import Parser
from simulator.surface.request_options import (
    RequestOptions,
    aborts_after,
    check_ignored,
    known_model,
    rank_of,
    request_id_of,
    salt_of,
)
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
from simulator.surface.wording import Tool, Wording, fixed_json, forced_call, free_calls

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", ABORT: None}


@dataclass(frozen=True, slots=True)
class Message:
    """One messages request, checked."""

    options_of_request: RequestOptions
    prompt: Prompt
    wording: Wording

    def parser(self) -> Parser:
        """For its answer."""
        return Parser(self.wording, thinks=self.prompt.thought is not None)


async def create_message(request: web.Request) -> web.StreamResponse:
    """POST /v1/messages."""
    service = request.app[SERVICE]
    message = _read(service, request, await read_body(request))
    order = message.options_of_request.order(service.options, [message.prompt], message.wording.text)
    with service.generate(order) as generation:
        if message.options_of_request.stream:
            return await _stream(request, service.options, message, generation)
        await generation.completed()
        if generation.has_failed:
            raise engine_issue()
        return json_answer(_unary_body(service.options, message, generation))


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
    options_of_request = RequestOptions(
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
    prompt = forwarded_prompt(service, model, body) or _prompt(service, model, body)
    return Message(options_of_request, prompt, _wording(service.options, body, prompt))


def _wording(options: Options, body: Body, prompt: Prompt) -> Wording:
    choice, tools = body.object("tool_choice"), _tools(body)
    kind = choice.get("type")
    if kind in ("any", "tool"):
        for tool in tools:
            if kind == "any" or choice.get("name") == tool.name:
                return forced_call(tool, prompt)
        raise ApiError("tool_choice names no tool of this request")
    schema = body.object("output_config").object("format").get("schema")
    if schema is not None:
        return Wording(fixed_json(schema, prompt))
    if not options.calls_tools or not tools or kind == "none":
        return Wording()
    return free_calls(tools, prompt, _conversation(body), 1 if choice.flag("disable_parallel_tool_use") else 2)


def _tools(body: Body) -> list[Tool]:
    return [
        Tool(str(tool.get("name")), tool.get("input_schema") or {"type": "object"}) for tool in body.objects("tools")
    ]


def _prompt(service: Service, model: str, body: Body) -> Prompt:
    if not body.objects("messages"):
        raise ApiError("Cannot apply chat template to an empty conversation, please provide at least one message.")
    effort = "none" if body.object("thinking").get("type") == "disabled" else None
    opening = opening_of(service.options, body, effort)
    return chat_prompt(service, model, _conversation(body), Body({}), _tools(body), opening)


def _conversation(body: Body) -> list[dict[str, Any]]:
    """As chat messages: what vLLM makes of it too."""
    system = "".join(text_parts(body.get("system")))
    openers = [{"role": "system", "content": system}] if system else []
    return [*openers, *(turn for message in body.objects("messages") for turn in _turns(message))]


def _turns(message: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """An Anthropic message as chat messages: tool results are turns of their own."""
    content = message.get("content")
    if not isinstance(content, list):
        return [message]
    if not all(isinstance(part, dict) for part in content):
        raise malformed("messages", "dict_type", "Input should be a valid dictionary", content)
    parts = [part for part in content if part.get("type") not in ("tool_use", "tool_result")]
    calls = [_call(part) for part in content if part.get("type") == "tool_use"]
    turns: list[dict[str, Any]] = [
        {"role": "tool", "content": part.get("content"), "tool_call_id": part.get("tool_use_id")}
        for part in content
        if part.get("type") == "tool_result"
    ]
    if parts or calls:
        turns.append({"role": message.get("role"), "content": parts, "tool_calls": calls})
    return turns


def _call(part: dict[str, Any]) -> dict[str, Any]:
    function = {"name": part.get("name") or "", "arguments": json.dumps(part.get("input") or {})}
    return {"id": part.get("id"), "type": "function", "function": function}


def _usage(options: Options, generation: Generation) -> dict[str, int]:
    """Input neither read from the cache nor written to it stands apart, if the pod tells of its cache at all."""
    prompt, output = generation.prompt_tokens, generation.completion_tokens
    if not options.reports_cached_tokens:
        return {"input_tokens": prompt, "output_tokens": output}
    cached, created = generation.cached_tokens, generation.created_cache_tokens
    return {
        "input_tokens": prompt - cached - created,
        "output_tokens": output,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": cached,
    }


def _stop(choice: Choice, *, has_called: bool) -> tuple[str | None, str | None]:
    """Why it stopped, and at which stop sequence if at one."""
    script = choice.script
    if script.stop_reason is not None:
        return "stop_sequence", script.stop_reason
    if has_called and script.finish_reason == "stop":
        return "tool_use", None
    return _STOP_REASONS[script.finish_reason], None


def _unary_body(options: Options, message: Message, generation: Generation) -> dict[str, Any]:
    [choice] = generation.choices
    parsed = message.parser().parse_unary(choice.text)
    reason, sequence = _stop(choice, has_called=bool(parsed.calls))
    answer = {
        "id": f"chatcmpl-{message.options_of_request.request_id}",
        "type": "message",
        "role": "assistant",
        "content": unary_blocks(parsed),
        "model": message.options_of_request.model,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": _usage(options, generation),
        "kv_transfer_params": generation.transfer_params,
    }
    return {name: value for name, value in answer.items() if value is not None}


async def _send(stream: EventStream, kind: str, **fields: Any) -> None:
    await stream.send_named(kind, compact({"type": kind, **fields}))


async def _stream(
    request: web.Request, options: Options, message: Message, generation: Generation
) -> web.StreamResponse:
    stream = await open_stream(request)
    [choice] = generation.choices
    parser, blocks = message.parser(), Blocks()
    while not generation.is_taken:
        for _, portion in await generation.more():
            if portion.start == 0:
                await _send(stream, "message_start", message=_opening(message, generation))
            for event in blocks.take(parser.feed(portion.text)):
                await _send(stream, **event)
        if generation.has_failed:
            return await stream.fail()
    for event in blocks.close():
        await _send(stream, **event)
    reason, sequence = _stop(choice, has_called=parser.has_called)
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    await _send(stream, "message_delta", delta=delta, usage=_usage(options, generation))
    await _send(stream, "message_stop")
    return await stream.close()


def _opening(message: Message, generation: Generation) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{message.options_of_request.request_id}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": message.options_of_request.model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": generation.prompt_tokens, "output_tokens": 0},
    }

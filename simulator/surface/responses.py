"""/v1/responses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from simulator.generation import Choice, Generation
from simulator.options import Options
from simulator.prompts import Prompt
from simulator.script import Wish
from simulator.service import Service
from simulator.surface.chat_request import (
    chat_prompt,
    chosen_tool,
    forwarded_prompt,
    max_calls,
    offered_tool,
    opening_of,
)
from simulator.surface.fields import Body, read_body
from simulator.surface.items import Item, Items, unary_items
from simulator.surface.logprobs import chat_logprobs
from simulator.surface.parsing import Parser
from simulator.surface.request_options import (
    RequestOptions,
    aborts_after,
    check_ignored,
    known_model,
    request_id_of,
    salt_of,
)
from simulator.surface.wire import SERVICE, ApiError, EventStream, compact, engine_issue, json_answer, open_stream
from simulator.surface.wording import Tool, Wording, fixed_json, forced_call, free_calls

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Response:
    """One responses request, checked."""

    body: Body
    options_of_request: RequestOptions
    messages: Messages
    prompt: Prompt
    wording: Wording
    created_at: int
    top_logprobs: int | None
    """Number of most likely tokens at each position; None if not requested."""

    @property
    def response_id(self) -> str:
        return f"resp_{self.options_of_request.request_id}"

    def parser(self) -> Parser:
        """For its answer."""
        return Parser(self.wording, thinks=self.prompt.thought is not None)


async def create_response(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses."""
    service = request.app[SERVICE]
    response = _read(service, request, await read_body(request))
    order = response.options_of_request.order(service.options, [response.prompt], response.wording.text)
    with service.generate(order) as generation:
        if response.options_of_request.stream:
            answer = await _stream(request, response, generation)
        else:
            await generation.completed()
            if generation.has_failed:
                raise engine_issue()
            [choice] = generation.choices
            logprobs = _logprobs(response, choice, 0, choice.script.tokens)
            items = unary_items(response.parser().parse_unary(choice.text), logprobs)
            answer = json_answer(_unary_body(response, generation, items))
        if service.options.keeps_responses and not generation.has_failed:
            message = {
                "role": "assistant",
                "content": response.parser().parse_unary(generation.choices[0].text).content,
            }
            service.responses.keep(response.response_id, [*response.messages, message])
        return answer


def _read(service: Service, request: web.Request, body: Body) -> Response:
    model = known_model(service, body)
    messages = _messages(service, body)
    check_ignored(body)
    tools = [offered_tool(each) for each in body.objects("tools")]
    opening = opening_of(service.options, body, body.object("reasoning").get("effort"))
    prompt = forwarded_prompt(service, model, body) or chat_prompt(
        service, model, messages, _opening(body), tools, opening
    )
    options_of_request = RequestOptions(
        model=model,
        request_id=request_id_of(request, body).removeprefix("resp_"),
        rank=None,
        stream=body.flag("stream"),
        include_usage=True,
        continuous_usage=False,
        copies=1,
        max_tokens=body.integer("max_output_tokens"),
        wish=Wish(0),
        salt=salt_of(body),
        priority=body.integer("priority", 0) or 0,
        returns_token_ids=False,
        transfer=body.object("kv_transfer_params").fields,
        aborts_after=aborts_after(request),
    )
    return Response(
        body=body,
        options_of_request=options_of_request,
        messages=messages,
        prompt=prompt,
        wording=_wording(service.options, body, prompt, tools, messages),
        created_at=int(time.time()),
        top_logprobs=_top_logprobs(body),
    )


def _top_logprobs(body: Body) -> int | None:
    if "message.output_text.logprobs" not in (body.get("include") or []):
        return None
    return body.integer("top_logprobs", 0, low=0) or 0


def _wording(options: Options, body: Body, prompt: Prompt, tools: list[Tool], messages: Messages) -> Wording:
    if (forced := chosen_tool(body.get("tool_choice"), tools)) is not None:
        return forced_call(forced, prompt)
    wanted = body.object("text").object("format")
    if wanted.get("type") == "json_schema":
        return Wording(fixed_json(wanted.get("schema"), prompt))
    if wanted.get("type") == "json_object":
        return Wording(json.dumps({"answer": "lorem"}))
    if not options.calls_tools or not tools or body.get("tool_choice") == "none":
        return Wording()
    return free_calls(tools, prompt, messages, max_calls(body))


def _messages(service: Service, body: Body) -> Messages:
    """The conversation: what came before, instructions, and the new input."""
    before: Messages | None = []
    if (previous := body.text("previous_response_id")) is not None:
        before = service.responses.get(previous)
    if before is None:
        raise ApiError(f"Response with id '{previous}' not found.", "invalid_request_error", "response_id", 404)
    instructions = body.text("instructions")
    openers: Messages = [{"role": "system", "content": instructions}] if instructions else []
    given = body.required("input")
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else body.objects("input")
    kept = [turn for turn in before if turn.get("role") != "system" or not openers]
    return [*openers, *kept, *map(_turn, turns)]


def _opening(body: Body) -> Body:
    """How the answer begins, as chat fields: an item that is not complete is continued."""
    given = body.get("input")
    last = given[-1] if isinstance(given, list) and given else {}
    continues = last.get("type", "message") == "message" and last.get("status") in ("in_progress", "incomplete")
    return Body({"add_generation_prompt": not continues, "continue_final_message": continues})


def _turn(item: dict[str, Any]) -> dict[str, Any]:
    """An input item as a chat message."""
    match item.get("type"):
        case "function_call":
            function = {key: item.get(key) for key in ("name", "arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "content": str(item.get("output", "")), "tool_call_id": item.get("call_id")}
        case _:
            return item


# --- The answer -------------------------------------------------------------------------------------------------------


def _unary_body(response: Response, generation: Generation | None = None, items: Sequence[Item] = ()) -> dict[str, Any]:
    """With no generation, as it begins."""
    is_over = generation is not None
    is_cut = generation is not None and generation.choices[0].script.finish_reason == "length"
    body = response.body
    return {
        "id": response.response_id,
        "created_at": response.created_at,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata"),
        "model": response.options_of_request.model,
        "object": "response",
        "output": list(items),
        "parallel_tool_calls": True,
        "temperature": body.get("temperature") or 1.0,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.objects("tools"),
        "top_p": body.get("top_p") or 1.0,
        "background": False,
        "max_output_tokens": response.options_of_request.max_tokens,
        "max_tool_calls": None,
        "previous_response_id": body.get("previous_response_id"),
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": "in_progress" if not is_over else "incomplete" if is_cut else "completed",
        "text": body.get("text"),
        "top_logprobs": response.top_logprobs,
        "truncation": "disabled",
        "usage": _usage(generation) if generation is not None else None,
        "user": body.get("user"),
        "kv_transfer_params": generation.transfer_params if generation is not None else None,
        "input_messages": None,
        "output_messages": None,
    }


def _usage(generation: Generation) -> dict[str, Any]:
    """Told whether or not the pod tells cached tokens elsewhere."""
    prompt, output = generation.prompt_tokens, generation.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": generation.cached_tokens,
            "cache_write_tokens": generation.created_cache_tokens,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": output,
        "output_tokens_details": {
            "reasoning_tokens": generation.thought_tokens,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": prompt + output,
    }


def _logprobs(response: Response, choice: Choice, start: int, end: int) -> list[Any] | None:
    top = response.top_logprobs
    return None if top is None else list(chat_logprobs(choice.script, start, end, top)["content"])


# --- The answer as events ---------------------------------------------------------------------------------------------


class _Events:
    """Numbered events of one response."""

    def __init__(self, stream: EventStream, sent: int) -> None:
        self._stream = stream
        self._number = sent

    async def send(self, new_items: Iterable[Item]) -> None:
        """The next events."""
        for fields in new_items:
            value = compact({**fields, "sequence_number": self._number})
            self._number += 1
            await self._stream.send_named(fields["type"], value)


async def _stream(request: web.Request, response: Response, generation: Generation) -> web.StreamResponse:
    opening_body = _unary_body(response)
    names = ("response.created", "response.in_progress")
    opening = [
        (name, compact({"response": opening_body, "sequence_number": number, "type": name}))
        for number, name in enumerate(names)
    ]
    stream = await open_stream(request, *opening)
    events, parser, items = _Events(stream, len(opening)), response.parser(), Items()
    while not generation.is_taken:
        for choice, portion in await generation.more():
            logprobs = _logprobs(response, choice, portion.start, portion.end)
            await events.send(items.take(parser.feed(portion.text), logprobs or []))
        if generation.has_failed:
            return await stream.fail()
    await events.send(items.close())
    await events.send(
        [{"response": _unary_body(response, generation, items.unary_items_sent), "type": "response.completed"}]
    )
    return await stream.close()

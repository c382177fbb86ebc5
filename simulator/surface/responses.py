"""/v1/responses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from aiohttp import web

from simulator.generation import Choice, Generation, Portion
from simulator.prompts import Prompt
from simulator.script import Wish
from simulator.service import Service
from simulator.surface.asking import Asked, aborts_after, check_ignored, known_model, request_id_of, salt_of
from simulator.surface.chat_request import chat_prompt, chosen_tool, fixed_json, forwarded_prompt
from simulator.surface.fields import Body, read_body
from simulator.surface.logprobs import chat_logprobs
from simulator.surface.wire import SERVICE, ApiError, EventStream, compact, engine_issue, json_answer, open_stream

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Response:
    """One responses request, checked."""

    body: Body
    asked: Asked
    messages: Messages
    prompt: Prompt
    tool: str | None
    recital: str | None
    created_at: int
    item_id: str
    top_logprobs: int | None
    """So many of the likeliest at each place, None where nobody asked."""

    @property
    def response_id(self) -> str:
        return f"resp_{self.asked.request_id}"


async def create_response(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses."""
    service = request.app[SERVICE]
    response = _read(service, request, await read_body(request))
    order = response.asked.order(service.options, [response.prompt], response.recital)
    with service.generate(order) as generation:
        if response.asked.stream:
            answer = await _stream(request, response, generation)
        else:
            await generation.completed()
            if generation.has_failed:
                raise engine_issue()
            answer = json_answer(_whole(response, generation, is_over=True))
        if service.options.keeps_responses and not generation.has_failed:
            said = {"role": "assistant", "content": generation.choices[0].text}
            service.responses.keep(response.response_id, [*response.messages, said])
        return answer


def _read(service: Service, request: web.Request, body: Body) -> Response:
    model = known_model(service, body)
    messages = _messages(service, body)
    check_ignored(body)
    tools = body.objects("tools")
    tool = chosen_tool(body.get("tool_choice"), tools)
    schemas = [each.get("parameters") for each in tools if each.get("name") == tool]
    asked = Asked(
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
        asked=asked,
        messages=messages,
        prompt=forwarded_prompt(service, model, body) or chat_prompt(service, model, messages, _opening(body), tools),
        tool=tool,
        recital=fixed_json(schemas[0]) if schemas else _structured(body),
        created_at=int(time.time()),
        item_id=f"{'msg' if tool is None else 'fc'}_{uuid4().hex}",
        top_logprobs=_top_logprobs(body),
    )


def _top_logprobs(body: Body) -> int | None:
    if "message.output_text.logprobs" not in (body.get("include") or []):
        return None
    return body.integer("top_logprobs", 0, low=0) or 0


def _structured(body: Body) -> str | None:
    wanted = body.object("text").object("format")
    if wanted.get("type") == "json_schema":
        return fixed_json(wanted.get("schema"))
    return json.dumps({"answer": "lorem"}) if wanted.get("type") == "json_object" else None


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
    """How the answer begins, in chat's words: an item that is not complete is gone on with."""
    given = body.get("input")
    last = given[-1] if isinstance(given, list) and given else {}
    continues = last.get("type", "message") == "message" and last.get("status") in ("in_progress", "incomplete")
    return Body({"add_generation_prompt": not continues, "continue_final_message": continues})


def _turn(item: dict[str, Any]) -> dict[str, Any]:
    """An input item as a chat message."""
    match item.get("type"):
        case "function_call":
            call = {key: item.get(key) for key in ("call_id", "name", "arguments")}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "content": str(item.get("output", "")), "tool_call_id": item.get("call_id")}
        case _:
            return item


# --- The answer -------------------------------------------------------------------------------------------------------


def _whole(response: Response, generation: Generation | None, *, is_over: bool) -> dict[str, Any]:
    choice = generation.choices[0] if generation is not None else None
    is_cut = is_over and choice is not None and choice.script.finish_reason == "length"
    body = response.body
    return {
        "id": response.response_id,
        "created_at": response.created_at,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata"),
        "model": response.asked.model,
        "object": "response",
        "output": [_item(response, choice)] if is_over and choice is not None and choice.text else [],
        "parallel_tool_calls": True,
        "temperature": body.get("temperature") or 1.0,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.objects("tools"),
        "top_p": body.get("top_p") or 1.0,
        "background": False,
        "max_output_tokens": response.asked.max_tokens,
        "max_tool_calls": None,
        "previous_response_id": body.get("previous_response_id"),
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": "in_progress" if not is_over else "incomplete" if is_cut else "completed",
        "text": body.get("text"),
        "top_logprobs": response.top_logprobs,
        "truncation": "disabled",
        "usage": _usage(generation) if is_over and generation is not None else None,
        "user": body.get("user"),
        "kv_transfer_params": generation.transfer_params if is_over and generation is not None else None,
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
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": prompt + output,
    }


def _item(response: Response, choice: Choice, *, is_over: bool = True) -> dict[str, Any]:
    """The one output item: a message, or a call of a function."""
    status = "completed" if is_over else "in_progress"
    if response.tool is not None:
        return {
            "arguments": choice.text if is_over else "",
            "call_id": f"call_{response.asked.request_id}",
            "name": response.tool,
            "type": "function_call",
            "id": response.item_id,
            "status": status,
        }
    part = _text_part(choice.text, _logprobs(response, choice, 0, choice.script.tokens) if is_over else None)
    content = [part] if is_over else []
    return {"id": response.item_id, "content": content, "role": "assistant", "status": status, "type": "message"}


def _text_part(text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _logprobs(response: Response, choice: Choice, start: int, end: int) -> list[Any] | None:
    top = response.top_logprobs
    return None if top is None else list(chat_logprobs(choice.script, start, end, top)["content"])


# --- The answer as events ---------------------------------------------------------------------------------------------


class _Events:
    """Numbered events of one response."""

    def __init__(self, response: Response) -> None:
        self._item_id = response.item_id
        self._number = 0

    def event(self, kind: str, **fields: Any) -> tuple[str, str]:
        """The next event: its name and what it carries."""
        value = compact({**fields, "sequence_number": self._number, "type": kind})
        self._number += 1
        return kind, value

    def event_of_item(self, kind: str, **fields: Any) -> tuple[str, str]:
        """An event about the one item."""
        return self.event(kind, item_id=self._item_id, output_index=0, **fields)


async def _stream(request: web.Request, response: Response, generation: Generation) -> web.StreamResponse:
    events = _Events(response)
    begun = _whole(response, None, is_over=False)
    opening = [events.event(kind, response=begun) for kind in ("response.created", "response.in_progress")]
    stream = await open_stream(request, *opening)
    [choice] = generation.choices
    has_item = False
    while not generation.is_told:
        for _, portion in await generation.more():
            if portion.text and not has_item:
                has_item = True
                await _send(stream, _item_begins(events, response, choice))
            if portion.text:
                await _send(stream, [_delta(events, response, choice, portion)])
        if generation.has_failed:
            return await stream.fail()
    if has_item:
        await _send(stream, _item_ends(events, response, choice))
    await _send(stream, [events.event("response.completed", response=_whole(response, generation, is_over=True))])
    return await stream.close()


async def _send(stream: EventStream, events: Iterable[tuple[str, str]]) -> None:
    for name, value in events:
        await stream.send_named(name, value)


def _item_begins(events: _Events, response: Response, choice: Choice) -> Iterator[tuple[str, str]]:
    yield events.event("response.output_item.added", output_index=0, item=_item(response, choice, is_over=False))
    if response.tool is None:
        yield events.event_of_item("response.content_part.added", content_index=0, part=_text_part(""))


def _delta(events: _Events, response: Response, choice: Choice, portion: Portion) -> tuple[str, str]:
    text = portion.text
    if response.tool is None:
        logprobs = _logprobs(response, choice, portion.start, portion.end) or []
        return events.event_of_item("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)
    return events.event_of_item("response.function_call_arguments.delta", delta=text)


def _item_ends(events: _Events, response: Response, choice: Choice) -> Iterator[tuple[str, str]]:
    text = choice.text
    if response.tool is None:
        yield events.event_of_item("response.output_text.done", content_index=0, text=text, logprobs=[])
        yield events.event_of_item("response.content_part.done", content_index=0, part=_text_part(text))
    else:
        yield events.event_of_item("response.function_call_arguments.done", arguments=text, name=response.tool)
    yield events.event("response.output_item.done", output_index=0, item=_item(response, choice))

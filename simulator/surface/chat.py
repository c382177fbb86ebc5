"""/v1/chat/completions: the answer, at once or piece by piece."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from simulator.generation import Choice, Generation, Portion
from simulator.options import Options
from simulator.script import ABORT
from simulator.surface.chat_request import Chat, read_chat
from simulator.surface.fields import read_body
from simulator.surface.logprobs import chat_logprobs
from simulator.surface.parsing import CallPiece, Delta
from simulator.surface.usage import counts, fingerprint, last_usage, unary_usage
from simulator.surface.wire import SERVICE, compact, engine_issue, json_answer, new_call_id, open_stream
from simulator.tokens import decode


async def complete_chat(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    service = request.app[SERVICE]
    chat = read_chat(service, request, await read_body(request))
    order = chat.options_of_request.order(service.options, [chat.prompt], chat.wording.text)
    with service.generate(order) as generation:
        if chat.options_of_request.stream:
            return await _stream(request, service.options, chat, generation)
        await generation.completed()
        if generation.has_failed:
            raise engine_issue()
        return json_answer(_unary_body(service.options, chat, generation))


# --- An answer at once ------------------------------------------------------------------------------------------------


def _unary_body(options: Options, chat: Chat, generation: Generation) -> dict[str, Any]:
    options_of_request = chat.options_of_request
    return {
        "id": f"chatcmpl-{options_of_request.request_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": options_of_request.model,
        "choices": [_unary_choice(chat, choice) for choice in generation.choices],
        "service_tier": None,
        "system_fingerprint": fingerprint(options),
        "usage": unary_usage(options, generation, reports_created=True),
        "prompt_logprobs": None,
        "prompt_token_ids": list(chat.prompt.tokens) if options_of_request.returns_token_ids else None,
        "prompt_text": _prompt_text(chat),
        "kv_transfer_params": generation.transfer_params,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _prompt_text(chat: Chat) -> str | None:
    return decode(chat.prompt.tokens) if chat.options_of_request.returns_prompt_text else None


def _unary_choice(chat: Chat, choice: Choice) -> dict[str, Any]:
    parsed = chat.parser().parse_unary(choice.text)
    tokens = choice.script.tokens
    return {
        "index": choice.index,
        "message": _message(chat, parsed),
        "logprobs": _logprobs(chat, choice, 0, tokens),
        "finish_reason": _finish_reason(chat, choice, has_called=bool(parsed.calls)),
        "stop_reason": choice.script.stop_reason,
        "token_ids": choice.script.token_ids(0, tokens) if chat.options_of_request.returns_token_ids else None,
        "routed_experts": None,
    }


def _message(chat: Chat, parsed: Delta) -> dict[str, Any]:
    content = parsed.content
    if chat.wording.tool is not None:
        content = ""
    elif chat.echoes:
        content = chat.prompt.text + (content or "")
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if parsed.calls:
        message["tool_calls"] = [
            {"id": new_call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.calls
        ]
    return {**message, "reasoning": parsed.reasoning}


def _finish_reason(chat: Chat, choice: Choice, *, has_called: bool) -> str:
    reason = choice.script.finish_reason
    return chat.tool_finish if has_called and reason == "stop" else reason


def _logprobs(chat: Chat, choice: Choice, start: int, end: int) -> dict[str, Any] | None:
    return None if chat.top_logprobs is None else chat_logprobs(choice.script, start, end, chat.top_logprobs)


# --- An answer piece by piece -----------------------------------------------------------------------------------------


async def _stream(request: web.Request, options: Options, chat: Chat, generation: Generation) -> web.StreamResponse:
    stream = await open_stream(request)
    writer = _ChunkWriter(options, chat, generation)
    has_started = False
    while not generation.is_taken:
        for choice, portion in await generation.more():
            if not has_started:
                has_started = True
                for each in generation.choices:
                    await stream.send(writer.opening(each))
            for chunk in writer.chunks(choice, portion):
                await stream.send(chunk)
        if generation.has_failed:
            return await stream.fail()
    if chat.options_of_request.include_usage:
        await stream.send(writer.usage())
    await stream.send("[DONE]")
    return await stream.close()


class _ChunkWriter:
    """Chunks of one stream. What is the same in all of them is written once."""

    def __init__(self, options: Options, chat: Chat, generation: Generation) -> None:
        self._options = options
        self._chat = chat
        self._generation = generation
        options_of_request = chat.options_of_request
        head = {
            "id": f"chatcmpl-{options_of_request.request_id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": options_of_request.model,
        }
        self._head = compact(head)[:-1] + ',"choices":['
        self._parsers = [chat.parser() for _ in generation.choices]
        self._reports_tokens = chat.top_logprobs is not None or options_of_request.returns_token_ids
        self._is_plain = self._parsers[0].is_plain and not self._reports_tokens
        self._prompt_tokens = generation.prompt_tokens

    def opening(self, choice: Choice) -> str:
        """The role; it comes with the first token."""
        options_of_request = self._chat.options_of_request
        text = self._chat.prompt.text if self._chat.echoes else ""
        delta = {"role": "assistant", "content": text}
        first = compact({"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None})
        ids = compact(list(self._chat.prompt.tokens)) if options_of_request.returns_token_ids else "null"
        prompt = f'"prompt_token_ids":{ids},"prompt_text":{compact(_prompt_text(self._chat))}'
        return f"{self._head}{first}],{prompt}{self._running_usage(choice, 0)}}}"

    def chunks(self, choice: Choice, portion: Portion) -> list[str]:
        """The chunks for what came since the last ones."""
        if self._is_plain and not portion.is_last:
            body = (
                f'{{"index":{choice.index},"delta":{{"content":{compact(portion.text)}}},"logprobs":null,'
                '"finish_reason":null,"token_ids":null}'
            )
            return [f"{self._head}{body}]{self._running_usage(choice, portion.end)}}}"]
        parser = self._parsers[choice.index]
        # An aborted answer's last token has no text, not even an empty one.
        is_notice = choice.script.finish_reason == ABORT and not portion.text
        delta = {} if is_notice else _delta_fields(parser.feed(portion.text))
        if not (delta or portion.is_last or self._reports_tokens):
            return []
        return [self._chunk(choice, portion, delta, has_called=parser.has_called)]

    def _chunk(self, choice: Choice, portion: Portion, delta: dict[str, Any], *, has_called: bool) -> str:
        start, end = portion.start, portion.end
        body: dict[str, Any] = {
            "index": choice.index,
            "delta": delta,
            "logprobs": _logprobs(self._chat, choice, start, end),
            "finish_reason": None,
        }
        if portion.is_last:
            body["finish_reason"] = _finish_reason(self._chat, choice, has_called=has_called)
            body["stop_reason"] = choice.script.stop_reason
        body["token_ids"] = (
            choice.script.token_ids(start, end) if self._chat.options_of_request.returns_token_ids else None
        )
        mark = ""
        if portion.is_last and not self._chat.options_of_request.include_usage:
            mark = f',"system_fingerprint":{compact(fingerprint(self._options))}'
        return f"{self._head}{compact(body)}]{mark}{self._running_usage(choice, end)}}}"

    def _running_usage(self, choice: Choice, completion_tokens: int) -> str:
        if not self._chat.options_of_request.continuous_usage:
            return ""
        thoughts = None
        if self._options.max_reasoning_tokens:
            thoughts = {"reasoning_tokens": min(completion_tokens, choice.script.thought_tokens)}
        usage = {**counts(self._prompt_tokens, completion_tokens), "completion_tokens_details": thoughts}
        return f',"usage":{compact(usage)}'

    def usage(self) -> str:
        """The chunk without choices that ends a stream whose client asked for it."""
        usage = compact(last_usage(self._options, self._generation, reports_created=True))
        return f'{self._head}],"usage":{usage},"system_fingerprint":{compact(fingerprint(self._options))}}}'


def _delta_fields(delta: Delta) -> dict[str, Any]:
    """A delta in chat's words."""
    fields: dict[str, Any] = {}
    if delta.content is not None:
        fields["content"] = delta.content
    if delta.reasoning is not None:
        fields["reasoning"] = delta.reasoning
    if delta.calls:
        fields["tool_calls"] = list(map(_call_fields, delta.calls))
    return fields


def _call_fields(piece: CallPiece) -> dict[str, Any]:
    named = {} if piece.name is None else {"id": new_call_id(), "type": "function"}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {
        **named,
        "index": piece.index,
        "function": {name: text for name, text in function.items() if text is not None},
    }

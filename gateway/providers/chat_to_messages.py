"""A chat request to an endpoint of Anthropic's Messages API, and its answer back as a chat completion. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.providers.translation import (
    UNREADABLE,
    EventSplitter,
    Fields,
    UnaryTranslator,
    Untranslatable,
    count_of,
    dicts,
)

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}

COPIED = ("temperature", "top_p", "stream")

WITHOUT_COUNTERPART = ("logprobs", "top_logprobs", "response_format", "logit_bias")
"""Fields that would change the answer and that the Messages API does not have. A `seed` is left out."""

HARMLESS: dict[str, tuple[object, ...]] = {
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
}

Block = Fields


def messages_body(chat: Fields) -> Fields:
    """Return a chat body as one of the Messages API, without model and output limit. Raises `Untranslatable`."""
    _check(chat)
    out: Fields = {name: chat[name] for name in COPIED if name in chat}
    if isinstance(out.get("temperature"), int | float):
        out["temperature"] = min(1.0, out["temperature"])  # The Messages API ends at 1.
    system, turns = _conversation(dicts(chat.get("messages")))
    if system:
        out["system"] = system
    out["messages"] = turns
    if stop := chat.get("stop"):
        out["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    _add_tools(out, chat)
    return out


def _check(chat: Fields) -> None:
    """Raise `Untranslatable` for fields that would change the answer and have no counterpart."""
    for name in WITHOUT_COUNTERPART:
        if name in chat and chat[name] not in HARMLESS.get(name, ()):
            raise Untranslatable(f"the endpoint's API has no counterpart of `{name}`")
    if chat.get("n", 1) != 1:
        raise Untranslatable("the endpoint's API gives one answer per request (`n`)")


def _conversation(messages: list[Fields]) -> tuple[str, list[Fields]]:
    """Return the system prompt, empty for none, and the turns."""
    system: list[str] = []
    turns: list[Fields] = []
    for message in messages:
        role = message.get("role")
        if role in ("system", "developer"):
            system.append(_text_of(message.get("content")))
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
            _add(turns, "user", [{**result, "content": _text_of(message.get("content"))}])
        elif role == "assistant":
            _add(
                turns,
                "assistant",
                [*_blocks(message.get("content")), *map(_tool_use, dicts(message.get("tool_calls")))],
            )
        elif role == "user":
            _add(turns, "user", _blocks(message.get("content")))
        else:
            raise Untranslatable(f"the endpoint's API has no role `{str(role)[:32]}`")
    return "\n\n".join(system), turns


def _add(turns: list[Fields], role: str, blocks: list[Block]) -> None:
    """Add blocks to the last turn if it is of the same role: roles alternate in the Messages API."""
    if not blocks:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"].extend(blocks)
    else:
        turns.append({"role": role, "content": blocks})


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in dicts(content) if part.get("type") == "text")


def _blocks(content: object) -> list[Block]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_block(part) for part in dicts(content)]


def _block(part: Fields) -> Block:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part.get("text", "")}
    if kind == "image_url" and isinstance(part.get("image_url"), dict):
        return {"type": "image", "source": _source(str(part["image_url"].get("url", "")))}
    raise Untranslatable(f"the endpoint's API has no content of type `{str(kind)[:32]}`")


def _source(url: str) -> Fields:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, _, data = url.removeprefix("data:").partition(",")
    media_type, _, coding = head.partition(";")
    if coding != "base64":
        raise Untranslatable("images in data URLs must be base64")
    return {"type": "base64", "media_type": media_type, "data": data}


def _tool_use(call: Fields) -> Block:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    try:
        given = msgspec.json.decode(str(function.get("arguments") or "{}").encode())
    except UNREADABLE:
        given = {}
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": given}


def _add_tools(out: Fields, chat: Fields) -> None:
    tools = [each["function"] for each in dicts(chat.get("tools")) if isinstance(each.get("function"), dict)]
    if not tools:
        return
    out["tools"] = [
        {
            "name": tool.get("name"),
            **({"description": tool["description"]} if tool.get("description") else {}),
            "input_schema": tool.get("parameters") or {"type": "object"},
        }
        for tool in tools
    ]
    choice: Fields = {}
    match chat.get("tool_choice"):
        case "none":
            choice = {"type": "none"}
        case "required":
            choice = {"type": "any"}
        case {"function": {"name": name}}:
            choice = {"type": "tool", "name": name}
        case "auto":
            choice = {"type": "auto"}
    if chat.get("parallel_tool_calls") is False:
        choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
    if choice:
        out["tool_choice"] = choice


USAGE_FIELDS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")

MAX_CALLS = 1024
"""Tool calls of one answer whose index is kept; a provider may begin more without end."""


def chat_usage(usage: object) -> Fields:
    """Return usage of the Messages API as chat reports it: cached tokens are a part of the prompt's there."""
    found = usage if isinstance(usage, dict) else {}
    cached = count_of(found.get("cache_read_input_tokens"))
    prompt = count_of(found.get("input_tokens")) + cached + count_of(found.get("cache_creation_input_tokens"))
    output = count_of(found.get("output_tokens"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class MessageAsChat(UnaryTranslator):
    """Translates a complete message into a chat completion."""

    def __init__(self, created_s: int) -> None:
        super().__init__()
        self._created_s = created_s

    def translate(self, answer: Fields) -> Fields:
        """Return the chat completion."""
        blocks = dicts(answer.get("content"))
        text = "".join(str(each.get("text", "")) for each in blocks if each.get("type") == "text")
        calls = [
            {
                "id": each.get("id"),
                "type": "function",
                "function": {
                    "name": each.get("name"),
                    "arguments": msgspec.json.encode(each.get("input", {})).decode(),
                },
            }
            for each in blocks
            if each.get("type") == "tool_use"
        ]
        message: Fields = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        reason = FINISH_REASONS.get(str(answer.get("stop_reason")), "stop")
        return {
            "id": answer.get("id"),
            "object": "chat.completion",
            "created": self._created_s,
            "model": answer.get("model"),
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": chat_usage(answer.get("usage")),
        }


class MessageStreamAsChat:
    """Translates the events of a message into chunks of a chat completion."""

    content_type = "text/event-stream"

    def __init__(self, created_s: int, *, includes_usage: bool) -> None:
        self._splitter = EventSplitter()
        self._created_s = created_s
        self._includes_usage = includes_usage
        self._id: Any = None
        self._model: Any = None
        self._usage: Fields = {}
        self._reason = "stop"
        self._calls: dict[str, int] = {}
        """Index of a content block to that of its tool call."""

    def feed(self, payload: bytes) -> bytes:
        """Return the chunks of the events that end with these bytes."""
        return b"".join(self._translate(event) for event in self._splitter.feed(payload))

    def finish(self) -> bytes:
        """Return nothing: a message ends with an event."""
        return b""

    def _translate(self, event: Fields) -> bytes:
        match event.get("type"):
            case "message_start":
                started = event.get("message")
                started = started if isinstance(started, dict) else {}
                self._id, self._model = started.get("id"), started.get("model")
                self._note(started.get("usage"))
                return self._chunk({"role": "assistant", "content": ""})
            case "content_block_start":
                return self._started(event)
            case "content_block_delta":
                return self._delta(event)
            case "message_delta":
                self._note(event.get("usage"))
                delta = event.get("delta")
                if isinstance(delta, dict) and delta.get("stop_reason"):
                    self._reason = FINISH_REASONS.get(str(delta["stop_reason"]), "stop")
                return b""
            case "message_stop":
                last = self._chunk({}, self._reason)
                if self._includes_usage:
                    last += _event({**self._head(), "choices": [], "usage": chat_usage(self._usage)})
                return last + b"data: [DONE]\n\n"
            case "error":
                return _event({"error": {"message": "The provider reported an error.", "code": _status_of(event)}})
        return b""

    def _started(self, event: Fields) -> bytes:
        block = event.get("content_block")
        if not isinstance(block, dict) or block.get("type") != "tool_use":
            return b""
        if len(self._calls) >= MAX_CALLS:
            raise Untranslatable(f"the provider's answer has more than {MAX_CALLS} tool calls")
        at = self._calls[str(event.get("index"))] = len(self._calls)
        function = {"name": block.get("name"), "arguments": ""}
        return self._chunk(
            {"tool_calls": [{"index": at, "id": block.get("id"), "type": "function", "function": function}]}
        )

    def _delta(self, event: Fields) -> bytes:
        delta = event.get("delta")
        if not isinstance(delta, dict):
            return b""
        if delta.get("type") == "text_delta":
            return self._chunk({"content": delta.get("text", "")})
        if delta.get("type") == "input_json_delta" and (at := self._calls.get(str(event.get("index")))) is not None:
            return self._chunk(
                {"tool_calls": [{"index": at, "function": {"arguments": delta.get("partial_json", "")}}]}
            )
        return b""

    def _note(self, usage: object) -> None:
        if isinstance(usage, dict):
            self._usage |= {name: usage[name] for name in USAGE_FIELDS if usage.get(name) is not None}

    def _head(self) -> Fields:
        return {"id": self._id, "object": "chat.completion.chunk", "created": self._created_s, "model": self._model}

    def _chunk(self, delta: Fields, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _event({**self._head(), "choices": [choice]})


STATUS_BY_TYPE = {"overloaded_error": 503, "rate_limit_error": 429, "invalid_request_error": 400}


def _status_of(event: Fields) -> int:
    error = event.get("error")
    return STATUS_BY_TYPE.get(str(error.get("type")), 500) if isinstance(error, dict) else 500


def _event(value: Fields) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"

"""A Messages request to an endpoint that speaks OpenAI's chat API, and its answer back as a message. Pure."""

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

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}

COPIED = ("temperature", "top_p", "stream")


def chat_body(message: Fields) -> Fields:
    """Return a body of the Messages API as a chat body, without model and output limit. Raises `Untranslatable`."""
    out: Fields = {name: message[name] for name in COPIED if name in message}
    if out.get("stream"):
        out["stream_options"] = {"include_usage": True}
    turns: list[Fields] = []
    if system := _text_of(message.get("system")):
        turns.append({"role": "system", "content": system})
    for each in dicts(message.get("messages")):
        turns.extend(_turns(each))
    out["messages"] = turns
    if stop := message.get("stop_sequences"):
        out["stop"] = stop
    tools = dicts(message.get("tools"))
    if tools:
        out["tools"] = [_tool(tool) for tool in tools]
        _add_choice(out, message.get("tool_choice"))
    return out


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(str(part.get("text", "")) for part in dicts(content) if part.get("type") == "text")


def _turns(message: Fields) -> list[Fields]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise Untranslatable(f"the endpoint's API has no role `{str(role)[:32]}`")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = dicts(content)
    if unknown := next((each for each in blocks if each.get("type") not in KNOWN_BLOCKS), None):
        raise Untranslatable(f"the endpoint's API has no content of type `{str(unknown.get('type'))[:32]}`")
    results = [_result(each) for each in blocks if each.get("type") == "tool_result"]
    calls = [_tool_call(each) for each in blocks if each.get("type") == "tool_use"]
    turn: Fields = {"role": role}
    if role == "assistant":
        turn["content"] = "".join(str(each.get("text", "")) for each in blocks if each.get("type") == "text") or None
        if calls:
            turn["tool_calls"] = calls
    elif parts := [_part(each) for each in blocks if each.get("type") in ("text", "image")]:
        turn["content"] = parts
    return [*results, *([turn] if turn.get("content") or calls else [])]


KNOWN_BLOCKS = frozenset(("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"))


def _part(block: Fields) -> Fields:
    if block["type"] == "image":
        return {"type": "image_url", "image_url": {"url": _url(block.get("source"))}}
    return {"type": "text", "text": block.get("text", "")}


def _result(block: Fields) -> Fields:
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _text_of(block.get("content"))}


def _tool_call(block: Fields) -> Fields:
    given = msgspec.json.encode(block.get("input", {})).decode()
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": given}}


def _url(source: object) -> str:
    match source:
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            return f"data:{media_type};base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
    raise Untranslatable("the endpoint's API has no such source of an image")


def _tool(tool: Fields) -> Fields:
    if "input_schema" not in tool:  # A tool that the provider itself would run.
        raise Untranslatable(f"the endpoint's API has no tool of type `{str(tool.get('type'))[:32]}`")
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _add_choice(out: Fields, choice: object) -> None:
    match choice:
        case {"type": "any"}:
            out["tool_choice"] = "required"
        case {"type": "tool", "name": name}:
            out["tool_choice"] = {"type": "function", "function": {"name": name}}
        case {"type": "none" | "auto" as kind}:
            out["tool_choice"] = kind
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use"):
        out["parallel_tool_calls"] = False


def message_usage(usage: object) -> Fields:
    """Return usage of chat as the Messages API reports it: cached tokens are apart from the prompt's there."""
    found = usage if isinstance(usage, dict) else {}
    details = found.get("prompt_tokens_details")
    cached = count_of(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return {
        "input_tokens": max(0, count_of(found.get("prompt_tokens")) - cached),
        "cache_read_input_tokens": cached,
        "output_tokens": count_of(found.get("completion_tokens")),
    }


def _first_choice(answer: Fields) -> Fields:
    choices = dicts(answer.get("choices"))
    return choices[0] if choices else {}


class ChatAsMessage(UnaryTranslator):
    """Translates a complete chat completion into a message."""

    def translate(self, answer: Fields) -> Fields:
        """Return the message."""
        choice = _first_choice(answer)
        answered = choice.get("message")
        answered = answered if isinstance(answered, dict) else {}
        content: list[Fields] = [{"type": "text", "text": answered["content"]}] if answered.get("content") else []
        for call in dicts(answered.get("tool_calls")):
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            content.append(
                {
                    "type": "tool_use",
                    "id": call.get("id"),
                    "name": function.get("name"),
                    "input": _arguments(function.get("arguments")),
                }
            )
        return {
            "id": answer.get("id"),
            "type": "message",
            "role": "assistant",
            "model": answer.get("model"),
            "content": content,
            "stop_reason": STOP_REASONS.get(str(choice.get("finish_reason")), "end_turn"),
            "stop_sequence": None,
            "usage": message_usage(answer.get("usage")),
        }


def _arguments(text: object) -> object:
    try:
        return msgspec.json.decode(str(text or "{}").encode())
    except UNREADABLE:
        return {}


class ChatStreamAsMessage:
    """Translates chunks of a chat completion into the events of a message."""

    content_type = "text/event-stream"

    def __init__(self) -> None:
        self._splitter = EventSplitter()
        self._has_started = False
        self._is_over = False
        self._block = -1
        """Index of the open block; -1 before the first."""
        self._open: tuple[str, object] | None = None
        """Kind of the open block, and the index of its tool call."""
        self._reason = "end_turn"
        self._has_reason = False
        self._usage: Fields = message_usage(None)

    def feed(self, payload: bytes) -> bytes:
        """Return the events of the chunks that end with these bytes."""
        return b"".join(self._translate(chunk) for chunk in self._splitter.feed(payload))

    def finish(self) -> bytes:
        """Return the last events, where the stream has given a reason for its end; else it was cut."""
        if self._is_over or not self._has_reason:
            return b""
        self._is_over = True
        delta = {"stop_reason": self._reason, "stop_sequence": None}
        return (
            self._close() + _event("message_delta", {"delta": delta, "usage": self._usage}) + _event("message_stop", {})
        )

    def _translate(self, chunk: Fields) -> bytes:
        if isinstance(chunk.get("error"), dict):
            error = {"type": "api_error", "message": "The provider reported an error."}
            return _event("error", {"error": error})
        out = b""
        if not self._has_started:
            self._has_started = True
            out = _event("message_start", {"message": _opening(chunk)})
        if isinstance(chunk.get("usage"), dict):
            self._usage = message_usage(chunk["usage"])
        choice = _first_choice(chunk)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if delta.get("content"):
                out += self._begin("text", None, {"type": "text", "text": ""})
                out += self._delta({"type": "text_delta", "text": delta["content"]})
            for call in dicts(delta.get("tool_calls")):
                out += self._call(call)
        if choice.get("finish_reason"):
            self._reason = STOP_REASONS.get(str(choice["finish_reason"]), "end_turn")
            self._has_reason = True
        return out

    def _call(self, call: Fields) -> bytes:
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        block: Fields = {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": {}}
        out = self._begin("tool_use", call.get("index"), block)
        if function.get("arguments"):
            out += self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})
        return out

    def _begin(self, kind: str, number: object, block: Fields) -> bytes:
        if self._open == (kind, number):
            return b""
        out = self._close()
        self._block += 1
        self._open = (kind, number)
        return out + _event("content_block_start", {"index": self._block, "content_block": block})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", {"index": self._block})

    def _delta(self, delta: Fields) -> bytes:
        return _event("content_block_delta", {"index": self._block, "delta": delta})


def _opening(chunk: Fields) -> dict[str, Any]:
    return {
        "id": chunk.get("id"),
        "type": "message",
        "role": "assistant",
        "model": chunk.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": message_usage(None),
    }


def _event(name: str, value: Fields) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **value}))

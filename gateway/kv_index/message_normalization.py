"""Messages as a chat template gets them: content in the form that the template looks at, arguments as objects.

Restated from vLLM's `renderers/chat_utils.py`, so that the same body becomes the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.kv_index.prompts import Message, UnseenError
from routing.reading.conversation import BILLING_HEADER

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Kinds of parts that are text, and where it stands in them."""


def normal_messages(messages: Iterable[Message], *, wants_parts: bool, knows_developers: bool) -> list[Message]:
    """The messages for a template. Raises `UnseenError` where one holds more than text."""
    made = [_normal(message, wants_parts=wants_parts) for message in messages]
    if not knows_developers and any(message["role"] == "developer" for message in made):
        made = _one_system_first([_as_system(message) for message in made])
    return made


def _normal(message: Mapping[str, Any], *, wants_parts: bool) -> Message:
    role = message["role"]
    texts = _texts(message.get("content"))
    if role == "system":
        texts = [rest for text in texts if (rest := _without_billing(text)) is not None]
    made: Message = {"role": role}
    if wants_parts and role != "tool":
        made["content"] = [{"type": "text", "text": text} for text in texts]
    else:
        made["content"] = "\n".join(texts)
    if role == "assistant":
        _add_calls_and_thoughts(made, message)
    elif role == "tool" and "tool_call_id" in message:
        made["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            made[name] = message[name]
    if role == "developer":
        made["tools"] = message.get("tools")
    return made


def _texts(content: str | Sequence[str | Mapping[str, Any]] | None) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    return [text for part in content if (text := _text_of(part)) is not None]


def _text_of(part: str | Mapping[str, Any]) -> str | None:
    if isinstance(part, str):
        return part
    field = TEXT_PARTS.get(part.get("type", ""))
    if field is None:
        raise UnseenError("media")
    text: str | None = part.get(field)
    return text


def _without_billing(text: str) -> str | None:
    """A line that is another in every request of one client; vLLM drops it too."""
    return (text.partition("\n")[2] or None) if text.startswith(BILLING_HEADER) else text


def _add_calls_and_thoughts(made: Message, message: Mapping[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls:
        made["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"].get("arguments"))}}
            for call in calls
        ]
    thought = message.get("reasoning")
    if thought is not None:
        made["reasoning"] = made["reasoning_content"] = thought


def _arguments(given: object) -> dict[str, Any]:
    """An object in any case: templates require one."""
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    return given if isinstance(given, dict) else {}


def _as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {**{name: value for name, value in message.items() if name != "tools"}, "role": "system"}


def _one_system_first(messages: Sequence[Message]) -> list[Message]:
    """All system messages as one at the start, where one stands further down."""
    systems = [message for message in messages if message["role"] == "system"]
    if len(systems) < 2 and (not systems or messages[0] is systems[0]):
        return list(messages)
    texts = [
        content
        if isinstance(content := message.get("content", ""), str)
        else "\n".join(part["text"] for part in content)
        for message in systems
    ]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(text for text in texts if text)}, *others]

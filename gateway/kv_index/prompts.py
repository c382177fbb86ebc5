"""Reads a request body as the input of the engine's tokenizer: chat messages, a text, or token ids.

One form for four APIs, restated from vLLM's own conversions. Messages are normalized for the chat template as vLLM's
`renderers/chat_utils.py` does: content in the form that the template iterates over, tool arguments as objects. Prompts
whose tokens cannot be known here (images, stored responses, several prompts) raise `UntokenizableError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from routing.reading.conversation import BILLING_HEADER
from routing.request import Api

Message = dict[str, Any]


class UntokenizableError(Exception):
    """The tokens of a prompt cannot be known here. Its text is the reason, a metric label."""


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Messages for a chat template. `settings`: further variables of the template."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = False
    special_tokens: bool = False
    salt: str = ""


@dataclass(frozen=True, slots=True)
class TextInput:
    """A prompt without a template."""

    text: str
    special_tokens: bool = True
    salt: str = ""


@dataclass(frozen=True, slots=True)
class TokenIdsInput:
    """A prompt of token ids."""

    ids: Sequence[int]
    salt: str = ""


PromptInput = ChatInput | TextInput | TokenIdsInput

PROMPT_CHANGING_FIELDS = ("chat_template", "truncate_prompt_tokens", "prompt_embeds", "mm_processor_kwargs")
"""Fields that change how the engine renders a prompt."""


def read_prompt(api: Api, body: bytes) -> PromptInput:
    """The tokenizer input of a request body. Raises `UntokenizableError`."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UntokenizableError("invalid_body") from None
    reader = _READERS.get(api)
    if reader is None or not isinstance(fields, dict):
        raise UntokenizableError("unsupported_api")
    for name in PROMPT_CHANGING_FIELDS:
        if fields.get(name) is not None:
            raise UntokenizableError("prompt_changed")
    try:
        return reader(fields)
    except (AttributeError, KeyError, TypeError, ValueError):
        # The engine will reject the body.
        raise UntokenizableError("invalid_body") from None


def _of_chat(fields: dict[str, Any]) -> PromptInput:
    return ChatInput(
        messages=[_renamed(message) for message in fields["messages"]],
        tools=_tools(fields.get("tools")),
        settings=_settings(fields, fields.get("reasoning_effort"), fields.get("add_generation_prompt", True)),
        continue_final=bool(fields.get("continue_final_message")),
        special_tokens=bool(fields.get("add_special_tokens")),
        salt=fields.get("cache_salt") or "",
    )


def _of_completions(fields: dict[str, Any]) -> PromptInput:
    prompt, salt = fields["prompt"], fields.get("cache_salt") or ""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return TextInput(prompt, bool(fields.get("add_special_tokens", True)), salt)
    if prompt and all(isinstance(token, int) for token in prompt):
        return TokenIdsInput(prompt, salt)
    raise UntokenizableError("several_prompts")


def _of_responses(fields: dict[str, Any]) -> PromptInput:
    if fields.get("previous_response_id") or fields.get("prompt"):
        raise UntokenizableError("stored_response")
    instructions, prompt = fields.get("instructions"), fields["input"]
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(prompt, str):
        messages.append({"role": "user", "content": prompt})
    else:
        for item in prompt:
            _add_item(messages, item)
        if messages and messages[-1]["role"] == "assistant":
            raise UntokenizableError("continued_message")
    effort = (fields.get("reasoning") or {}).get("effort")
    tools = [{"type": "function", "function": tool} for tool in fields.get("tools") or () if tool["type"] == "function"]
    if len(tools) != len(fields.get("tools") or ()):
        raise UntokenizableError("tools")
    return ChatInput(
        messages, _tools(tools) or None, _settings(fields, effort, True), salt=fields.get("cache_salt") or ""
    )


def _add_item(messages: list[Message], item: Message) -> None:
    """Add one item of a Responses input. Tool calls join the assistant message before them."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    kind = item.get("type", "message")
    if kind == "function_call":
        call = _call(item.get("call_id"), item["name"], item["arguments"])
        if last is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            last.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
    elif kind == "message" and item["role"] == "assistant":
        content = item.get("content")
        text = content if isinstance(content, str) or not content else content[0].get("text")
        if last is not None and last.get("content") is None:
            last["content"] = text
        else:
            messages.append({"role": "assistant", "content": text})
    elif kind == "message":
        messages.append(_renamed(item))
    else:
        raise UntokenizableError("unsupported_items")


def _of_messages(fields: dict[str, Any]) -> PromptInput:
    messages: list[Message] = []
    if system := _system_text(fields.get("system")):
        messages.append({"role": "system", "content": system})
    for message in fields["messages"]:
        _add_anthropic(messages, message)
    effort = (fields.get("output_config") or {}).get("effort")
    if (fields.get("thinking") or {}).get("type") == "disabled":
        effort = "none"
    tools = None
    if fields.get("tools") is not None:
        tools = _tools([{"function": {**tool, "parameters": tool.get("input_schema")}} for tool in fields["tools"]])
    return ChatInput(messages, tools, _settings(fields, effort, True), salt=fields.get("cache_salt") or "")


def _system_text(system: str | Iterable[Message] | None) -> str:
    if isinstance(system, str) or system is None:
        return system or ""
    texts = [block["text"] for block in system if block.get("type") == "text" and block.get("text")]
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _add_anthropic(messages: list[Message], message: Message) -> None:
    role, content = message["role"], message["content"]
    if role == "system":
        # Where vLLM puts it depends on the template.
        raise UntokenizableError("unsupported_items")
    made: Message = {"role": role}
    if isinstance(content, str):
        made["content"] = content
    else:
        _add_blocks(messages, made, content)
    if role != "user" or "content" in made:
        messages.append(made)


def _add_blocks(messages: list[Message], made: Message, blocks: Iterable[Message]) -> None:
    """Add the blocks of one message. Tool results become messages of their own before it."""
    parts: list[Message] = []
    calls: list[Message] = []
    thoughts: list[str] = []
    for block in blocks:
        match block["type"]:
            case "text" if block.get("text"):
                parts.append({"type": "text", "text": block["text"]})
            case "text" | "redacted_thinking":
                continue
            case "thinking":
                thoughts.append(block.get("thinking") or "")
            case "tool_use":
                calls.append(_call(block.get("id"), block.get("name") or "", json.dumps(block.get("input") or {})))
            case "tool_result" if made["role"] == "user":
                messages.append(_tool_result(block))
            case _:
                raise UntokenizableError("media")
    if thoughts:
        made["reasoning"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    if parts:
        made["content"] = parts[0]["text"] if len(parts) == 1 else parts


def _tool_result(block: Message) -> Message:
    content = block.get("content")
    if isinstance(content, list):
        if any(item.get("type") != "text" for item in content):
            raise UntokenizableError("media")
        content = "\n".join(item.get("text", "") for item in content)
    return {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": content or ""}


def _call(call_id: str | None, name: str, arguments: str) -> Message:
    return {"id": call_id, "function": {"arguments": arguments, "name": name}, "type": "function"}


def _renamed(message: Message) -> Message:
    """A message with reasoning under one name, and tool calls in the field order of vLLM's types."""
    made = dict(message)
    thought = made.pop("reasoning_content", None)
    if thought is not None and made.get("reasoning") is None:
        made["reasoning"] = thought
    if made.get("tool_calls"):
        made["tool_calls"] = [
            _call(call.get("id"), call["function"]["name"], call["function"].get("arguments"))
            for call in made["tool_calls"]
        ]
    return made


def _tools(tools: Iterable[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    """Tools as vLLM dumps them: known fields in one order; unset ones are null, or absent if vLLM added them later."""
    if tools is None:
        return None
    made: list[Mapping[str, Any]] = []
    for tool in tools:
        fields = tool["function"]
        function = {name: fields.get(name) for name in ("name", "description", "parameters")}
        function |= {name: fields[name] for name in ("strict", "defer_loading") if fields.get(name) is not None}
        made.append({"type": "function", "function": function})
    return made


def _settings(fields: Mapping[str, Any], effort: str | None, add_generation_prompt: object) -> dict[str, Any]:
    settings = dict(fields.get("chat_template_kwargs") or {})
    if effort is not None and "enable_thinking" not in settings:
        settings["enable_thinking"] = effort != "none"
    extra = {"documents": fields.get("documents"), "reasoning_effort": effort}
    settings |= {name: value for name, value in extra.items() if value not in (None, "auto")}
    settings["add_generation_prompt"] = bool(add_generation_prompt)
    return settings


_READERS: Mapping[Api, Callable[[dict[str, Any]], PromptInput]] = {
    Api.CHAT: _of_chat,
    Api.COMPLETIONS: _of_completions,
    Api.RESPONSES: _of_responses,
    Api.MESSAGES: _of_messages,
}


TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Types of content parts that hold text, and the field that holds it."""


def normalize_messages(messages: Iterable[Message], *, wants_parts: bool, knows_developers: bool) -> list[Message]:
    """Normalize messages for a template. Raises `UntokenizableError` where a part is not text."""
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
        raise UntokenizableError("media")
    text: str | None = part.get(field)
    return text


def _without_billing(text: str) -> str | None:
    """A text without its billing header, which differs in every request of a client; vLLM drops it too."""
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
    """Tool arguments as an object, as templates require; empty where they are not one."""
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
    """Merge all system messages into one at the start, unless only the first message is one."""
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

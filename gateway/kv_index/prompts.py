"""Reads a request body as the input of a pod's `/tokenize`: chat messages or a text; or as the client's token IDs.

Chats and completions pass unchanged; the Responses and Messages APIs become chats as in vLLM's own conversions. Prompts
whose tokens cannot be known (images, stored responses, several prompts) raise `UntokenizableError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from routing.reading.conversation import BILLING_HEADER
from routing.request import Api

Message = dict[str, Any]


class UntokenizableError(Exception):
    """The tokens of a prompt cannot be known here. Its text is the reason, a metric label."""


@dataclass(frozen=True, slots=True)
class PromptInput:
    """The body of a `/tokenize` request, apart from its model, or `ids` that the client sent; and the cache salt."""

    fields: Mapping[str, Any]
    ids: Sequence[int] | None = None
    salt: str = ""


PROMPT_CHANGING_FIELDS = ("chat_template", "truncate_prompt_tokens", "prompt_embeds", "mm_processor_kwargs")
"""Fields that change how the engine renders a prompt."""

TEXT_PARTS = frozenset(("text", "input_text", "output_text", "refusal", "thinking"))
"""Types of content parts whose tokens are those of their text alone."""


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
    continue_final = bool(fields.get("continue_final_message"))
    return _chat(
        fields,
        fields["messages"],
        fields.get("tools"),
        fields.get("reasoning_effort"),
        add_generation_prompt=bool(fields.get("add_generation_prompt", True)) and not continue_final,
        continue_final_message=continue_final,
        add_special_tokens=bool(fields.get("add_special_tokens")),
    )


def _of_completions(fields: dict[str, Any]) -> PromptInput:
    prompt, salt = fields["prompt"], fields.get("cache_salt") or ""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        adds = bool(fields.get("add_special_tokens", True))
        return PromptInput({"prompt": prompt, "add_special_tokens": adds}, salt=salt)
    if prompt and all(isinstance(token, int) for token in prompt):
        return PromptInput({}, prompt, salt)
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
    tools = fields.get("tools") or ()
    if any(tool["type"] != "function" for tool in tools):
        raise UntokenizableError("tools")
    return _chat(fields, messages, _tools(tools) or None, (fields.get("reasoning") or {}).get("effort"))


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
        messages.append(item)
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
    tools = fields.get("tools")
    if tools is not None:
        tools = _tools({**tool, "parameters": tool.get("input_schema")} for tool in tools)
    return _chat(fields, messages, tools, effort)


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


def _tools(tools: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Function tools as those of a chat, with the fields that vLLM's conversions keep."""
    made: list[Mapping[str, Any]] = []
    for tool in tools:
        function = {name: tool.get(name) for name in ("name", "description", "parameters")}
        function |= {name: tool[name] for name in ("strict", "defer_loading") if tool.get(name) is not None}
        made.append({"type": "function", "function": function})
    return made


def _chat(
    fields: Mapping[str, Any],
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    effort: str | None,
    **more: bool,
) -> PromptInput:
    """A chat for `/tokenize`, with the template variables that vLLM's chat API derives from other fields."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(
            not isinstance(part, str) and part.get("type") not in TEXT_PARTS for part in content
        ):
            raise UntokenizableError("media")
    settings = dict(fields.get("chat_template_kwargs") or {})
    if effort is not None and "enable_thinking" not in settings:
        settings["enable_thinking"] = effort != "none"
    extra = {"documents": fields.get("documents"), "reasoning_effort": effort}
    settings |= {name: value for name, value in extra.items() if value not in (None, "auto")}
    chat = {"messages": messages, "tools": tools, "chat_template_kwargs": settings, **more}
    return PromptInput(chat, salt=fields.get("cache_salt") or "")


_READERS: Mapping[Api, Callable[[dict[str, Any]], PromptInput]] = {
    Api.CHAT: _of_chat,
    Api.COMPLETIONS: _of_completions,
    Api.RESPONSES: _of_responses,
    Api.MESSAGES: _of_messages,
}

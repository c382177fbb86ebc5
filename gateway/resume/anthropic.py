"""Translate a messages request to the chat request that vLLM itself makes of it, so that both have the same prompt.

vLLM (0.32) cannot continue a message in Anthropic's API, but answers it through its chat API. Only what is known to
translate is translated: text, reasoning, tool calls and their results.
"""

from __future__ import annotations

import json
from typing import Any

Body = dict[str, Any]

BILLING_PREFIX = "x-anthropic-billing-header"
"""vLLM leaves out texts of the system prompt that begin so."""

SHARED_FIELDS = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "cache_salt",
    "priority",
    "watermarking",
    "vllm_xargs",
    "chat_template_kwargs",
)
"""Fields of the same name and meaning in both APIs."""

TOOL_CHOICES: dict[Any, str] = {"auto": "auto", "none": "none", "any": "required"}

FORMAT_TYPE = "json_schema"
"""The only type of output format, and the name that vLLM gives it."""


def chat_from_messages(fields: Body) -> Body | None:
    """Return the chat request; None where a part of the request is not known to translate."""
    turns = _turns(fields)
    if turns is None:
        return None
    chat: Body = {name: fields[name] for name in SHARED_FIELDS if fields.get(name) is not None}
    chat["messages"] = turns
    chat["stream"] = True
    chat["stream_options"] = {"include_usage": True}
    if fields.get("max_tokens") is not None:
        chat["max_completion_tokens"] = fields["max_tokens"]
    if fields.get("stop_sequences"):
        chat["stop"] = fields["stop_sequences"]
    _put_output(fields.get("output_config") or {}, chat)
    is_put = _put_thinking(fields.get("thinking"), chat) and _put_tools(fields, chat)
    return chat if is_put else None


def _put_output(wanted: Body, chat: Body) -> None:
    if wanted.get("effort") is not None:
        chat["reasoning_effort"] = wanted["effort"]
    schema = (wanted.get("format") or {}).get("schema")
    if schema is not None:
        chat["response_format"] = {"type": FORMAT_TYPE, "json_schema": {"name": FORMAT_TYPE, "schema": schema}}


def _put_thinking(thinking: Body | None, chat: Body) -> bool:
    """Set the reasoning budget. Disabled reasoning does not translate: its effort differs from model to model."""
    if thinking is None:
        return True
    if thinking.get("type") == "enabled":
        chat["thinking_token_budget"] = thinking["budget_tokens"]
    return thinking.get("type") in {"enabled", "adaptive"}


def _put_tools(fields: Body, chat: Body) -> bool:
    if not fields.get("tools"):
        return True
    tools = [_tool(tool) for tool in fields["tools"]]
    choice = fields.get("tool_choice") or {"type": "auto"}
    chosen = _forced(choice) if choice.get("type") == "tool" else TOOL_CHOICES.get(choice.get("type"))
    if None in tools or chosen is None:
        return False
    chat["tools"], chat["tool_choice"] = tools, chosen
    if fields.get("tool_choice"):
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    return True


def _forced(choice: Body) -> Body:
    return {"type": "function", "function": {"name": choice.get("name")}}


def _tool(tool: Any) -> Body | None:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom" or "input_schema" not in tool:
        return None
    schema = tool["input_schema"]
    own = {name: tool.get(name) for name in ("name", "description", "strict", "defer_loading")}
    parameters = schema if "type" in schema else {**schema, "type": "object"}
    return {"type": "function", "function": own | {"parameters": parameters}}


def _turns(fields: Body) -> list[Body] | None:
    turns: list[Body] = []
    system = _system(fields.get("system"))
    if system is None:
        return None
    if system:
        turns.append({"role": "system", "content": system})
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    for message in messages:
        made = _turn(message)
        if made is None:
            return None
        turns += made
    return turns


def _system(system: Any) -> str | None:
    if system is None or isinstance(system, str):
        return system or ""
    if not isinstance(system, list) or not all(_is_text(block) for block in system):
        return None
    return "".join([block["text"] for block in system if not block["text"].startswith(BILLING_PREFIX)])


def _turn(message: Any) -> list[Body] | None:
    """Return the chat messages of one message: tool results are messages of their own, before the rest of it."""
    if not isinstance(message, dict) or message.get("role") not in {"user", "assistant"}:
        return None
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    results: list[Body] = []
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[Body] = []
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        return None
    for block in content:
        kind = block.get("type")
        if kind == "text" and _is_text(block):
            texts += [block["text"]] if block["text"] else []
        elif kind == "thinking" and role == "assistant" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use" and role == "assistant" and block.get("id"):
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user" and (text := _result(block.get("content"))) is not None:
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": text})
        elif kind != "redacted_thinking":  # It is encrypted: vLLM leaves it out.
            return None
    return [*results, *_own(role, thoughts, texts, calls)]


def _own(role: str, thoughts: list[str], texts: list[str], calls: list[Body]) -> list[Body]:
    turn: Body = {"role": role}
    if thoughts:
        turn["reasoning"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    if texts:
        turn["content"] = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    return [turn] if texts or role == "assistant" else []


def _call(block: Body) -> Body:
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id"), "type": "function", "function": function}


def _result(content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(_is_text(item) for item in content):
        return None
    return "\n".join([item["text"] for item in content])


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)

"""The body that a provider is sent: allow-listed fields of the client's, the provider's model name, an output limit.

Whatever is not listed stays here: `user`, `metadata`, cache salts, priorities, fields for the gateway or for vLLM.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.config.providers import ProviderApi, ProviderEndpoint
from gateway.providers.chat_to_messages import messages_body
from gateway.providers.messages_to_chat import chat_body
from gateway.providers.translation import Untranslatable, dicts
from routing.request import Api

NATIVE: Mapping[ProviderApi, Mapping[Api, str]] = {
    ProviderApi.OPENAI: {
        Api.CHAT: "/v1/chat/completions",
        Api.COMPLETIONS: "/v1/completions",
        Api.RESPONSES: "/v1/responses",
    },
    ProviderApi.ANTHROPIC: {Api.MESSAGES: "/v1/messages"},
}
"""Paths of the APIs that each wire format has."""

TRANSLATED: Mapping[ProviderApi, Mapping[Api, Api]] = {
    ProviderApi.OPENAI: {Api.MESSAGES: Api.CHAT},
    ProviderApi.ANTHROPIC: {Api.CHAT: Api.MESSAGES},
}
"""APIs that are served by another one of the endpoint."""

ALLOWED_FIELDS: Mapping[Api, frozenset[str]] = {
    Api.CHAT: frozenset(
        (
            *("messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stop", "stream"),
            *("stream_options", "tools", "tool_choice", "parallel_tool_calls", "response_format", "seed"),
            *("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "reasoning_effort"),
        )
    ),
    Api.COMPLETIONS: frozenset(
        (
            *("prompt", "suffix", "max_tokens", "temperature", "top_p", "n", "stop", "stream", "stream_options"),
            *("seed", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "echo"),
        )
    ),
    Api.RESPONSES: frozenset(
        (
            *("input", "instructions", "max_output_tokens", "temperature", "top_p", "stream", "tools", "tool_choice"),
            *("parallel_tool_calls", "text", "reasoning", "truncation", "top_logprobs"),
        )
    ),
    Api.MESSAGES: frozenset(
        (
            *("messages", "system", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream"),
            *("tools", "tool_choice", "thinking"),
        )
    ),
}

MESSAGE_FIELDS: Mapping[Api, frozenset[str]] = {
    Api.CHAT: frozenset(("role", "content", "refusal", "tool_calls", "tool_call_id")),
    Api.MESSAGES: frozenset(("role", "content")),
}
"""Fields of one message; a participant's `name` stays here."""

STREAM_OPTIONS = frozenset(("include_usage",))

LIMIT_FIELDS: Mapping[Api, tuple[str, ...]] = {
    Api.CHAT: ("max_completion_tokens", "max_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
}
"""Fields that limit an answer, the one that counts first."""

CLIENT_TOOLS = frozenset((None, "function", "custom"))
"""Types of tools that the client runs. Others run at the provider, with the rights of the gateway's key and beside the
money that is reserved.
"""

STORED_KEYS = frozenset(("file_id", "vector_store_ids", "container_id"))
STORED_TYPES = frozenset(("item_reference", "container_upload"))
"""Content that is stored at the provider under the gateway's key, perhaps by others."""

PARTS = ("content", "source", "file", "output", "image_url")
"""Fields of messages and of their parts that hold further parts."""

Body = dict[str, Any]


class OutgoingBody(msgspec.Struct, frozen=True):
    """What a provider is sent."""

    path: str
    """Beneath the endpoint's base URL."""
    api: Api
    """API in which it is sent; where it differs from the client's, the answer is translated back."""
    content: bytes
    max_output_tokens: int
    """Tokens of all its answers together, at most."""
    is_stream: bool = False
    includes_usage: bool = False
    """Whether usage was requested with a stream of chat."""


def outgoing_body(endpoint: ProviderEndpoint, api: Api, body: bytes, model: str) -> OutgoingBody:
    """Return what to send an endpoint for a client's body. Raises `Untranslatable` where its API cannot express it."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Untranslatable("the body cannot be read") from None
    options = fields.get("stream_options")
    includes_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    native = api if api in NATIVE[endpoint.api] else TRANSLATED[endpoint.api].get(api)
    if native is None:
        raise Untranslatable(f"the endpoint's API ({endpoint.api}) has no counterpart of `{api}`")
    kept = _allowed(fields, api)
    _check_references(kept)
    limit = next((kept[name] for name in LIMIT_FIELDS[api] if isinstance(kept.get(name), int)), None)
    limit = endpoint.max_output_tokens if limit is None else limit
    for name in LIMIT_FIELDS[api]:
        kept.pop(name, None)
    if native is not api:
        kept = messages_body(kept) if native is Api.MESSAGES else chat_body(kept)
    kept[_limit_field(endpoint, native)] = limit
    kept["model"] = endpoint.models[model]
    if native is Api.RESPONSES:
        kept["store"] = False  # What it stores could be asked for by its id alone.
    if not endpoint.quirks.reports_stream_usage:
        kept.pop("stream_options", None)
    for name in endpoint.quirks.drops:
        kept.pop(name, None)
    sequences = kept.get("n", 1)
    count = sequences if isinstance(sequences, int) and sequences > 0 else 1
    prompts = kept.get("prompt")
    if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list):
        count *= len(prompts)  # Of completions: each has answers of its own.
    try:
        content = msgspec.json.encode(kept)
    except RecursionError:
        raise Untranslatable("the body is nested too deeply") from None
    return OutgoingBody(
        _path(endpoint, native),
        native,
        content,
        limit * count,
        is_stream=bool(fields.get("stream")),
        includes_usage=includes_usage,
    )


def _allowed(fields: Body, api: Api) -> Body:
    kept = {name: value for name, value in fields.items() if name in ALLOWED_FIELDS[api] and value is not None}
    options = kept.get("stream_options")
    if isinstance(options, dict):
        kept["stream_options"] = {name: value for name, value in options.items() if name in STREAM_OPTIONS}
    names, messages = MESSAGE_FIELDS.get(api), kept.get("messages")
    if names is not None and isinstance(messages, list):
        kept["messages"] = [
            {name: value for name, value in each.items() if name in names} if isinstance(each, dict) else each
            for each in messages
        ]
    return kept


def _check_references(body: Body) -> None:
    """Raise `Untranslatable` for tools that run at the provider, and for content that is stored there."""
    for tool in dicts(body.get("tools")):
        if _type_of(tool) not in CLIENT_TOOLS:
            raise Untranslatable(f"tools of type `{str(tool.get('type'))[:32]}` run at the provider, with its key")
    parts: list[object] = [body.get("messages"), body.get("input"), body.get("system")]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts.extend(part)
        elif isinstance(part, dict):
            if _type_of(part) in STORED_TYPES or not STORED_KEYS.isdisjoint(part):
                raise Untranslatable("content that is stored at a provider (`file_id`, `item_reference`) stays unread")
            parts.extend(part[name] for name in PARTS if name in part)


def _type_of(part: Body) -> str | None:
    """Return the type of a part; None without one, empty where it is no text."""
    kind = part.get("type")
    return kind if kind is None or isinstance(kind, str) else ""


def _limit_field(endpoint: ProviderEndpoint, api: Api) -> str:
    return str(endpoint.quirks.token_limit_field) if api is Api.CHAT else LIMIT_FIELDS[api][0]


def _path(endpoint: ProviderEndpoint, api: Api) -> str:
    if endpoint.quirks.path is not None:
        return endpoint.quirks.path
    path = NATIVE[endpoint.api][api]
    return path.removeprefix("/v1") if endpoint.url.endswith("/v1") else path

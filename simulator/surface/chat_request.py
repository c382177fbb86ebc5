"""What a chat request says: messages, tools, structured output. Shared by every API that is chat in other words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from simulator.json_instance import json_text
from simulator.language import natural_tokens, next_piece
from simulator.prompts import Prompt, image_url, prompt_of_messages, prompt_of_tokens
from simulator.service import Service
from simulator.surface.asking import Asked, read_asked
from simulator.surface.fields import Body
from simulator.surface.logprobs import MOST_LOGPROBS
from simulator.surface.wire import ApiError, malformed
from simulator.tokens import LARGEST_ID


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat request, checked."""

    asked: Asked
    prompt: Prompt
    tool: str | None
    """The function to be called, where one must be."""
    is_named_tool: bool
    recital: str | None
    top_logprobs: int | None
    echoes: bool

    @property
    def tool_finish(self) -> str:
        """A named call was the client's choice, so the model only stopped."""
        return "stop" if self.is_named_tool else "tool_calls"


def read_chat(service: Service, request: web.Request, body: Body) -> Chat:
    """All that a chat request says."""
    body.required("messages")
    messages = body.objects("messages")
    asked = read_asked(service, request, body, None)
    tools = body.objects("tools")
    tool = chosen_tool(body.get("tool_choice"), tools)
    prompt = forwarded_prompt(service, asked.model, body) or chat_prompt(service, asked.model, messages, body, tools)
    recital = None if tool is None else fixed_json(_parameters(tools, tool))
    return Chat(
        asked=asked,
        prompt=prompt,
        tool=tool,
        is_named_tool=isinstance(body.get("tool_choice"), dict),
        recital=recital if recital is not None else _structured(body, prompt),
        top_logprobs=_top_logprobs(body),
        echoes=body.flag("echo"),
    )


def chat_prompt(
    service: Service, model: str, messages: Sequence[dict[str, Any]], body: Body, tools: Sequence[dict[str, Any]]
) -> Prompt:
    """The messages as tokens, checked the way the chat template would."""
    if not messages:
        raise ApiError("Cannot apply chat template to an empty conversation, please provide at least one message.")
    opens, continues = body.flag("add_generation_prompt", default=True), body.flag("continue_final_message")
    if opens and continues:
        raise ApiError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message."
        )
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    if not service.options.sees_images and any(image_url(part) for part in parts):
        raise ApiError(f"{model} is not a multimodal model")
    try:
        seed = service.seed(model)
        return prompt_of_messages(messages, seed, tools=tools, open_answer=opens, continues=continues)
    except UnicodeEncodeError:
        raise ApiError(
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        ) from None


def forwarded_prompt(service: Service, model: str, body: Body) -> Prompt | None:
    """The prompt as token ids in `kv_transfer_params`, which stand for the messages; not where these must be read."""
    ids = body.object("kv_transfer_params").get("prompt_token_ids")
    if ids is None or body.flag("echo") or _has_images(body):
        return None
    if not isinstance(ids, list) or not ids or not all(type(each) is int and 0 <= each <= LARGEST_ID for each in ids):
        raise ApiError(
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.",
            param="kv_transfer_params.prompt_token_ids",
        )
    return prompt_of_tokens(ids, service.seed(model))


def _has_images(body: Body) -> bool:
    turns = body.get("messages") or body.get("input")
    contents = [turn.get("content") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    return any(image_url(part) for content in contents if isinstance(content, list) for part in content)


def chosen_tool(choice: Any, tools: Sequence[dict[str, Any]]) -> str | None:
    """The function that must be called; None leaves it to the model, which never calls one by itself."""
    names = [str(function_of(tool).get("name", "")) for tool in tools]
    if choice == "required":
        if not names:
            raise ApiError(
                "When using `tool_choice`, `tools` must be set.", "Bad Request", "tool_choice", is_format=True
            )
        return names[0]
    if not isinstance(choice, dict):
        return None
    name = str(function_of(choice).get("name", ""))
    if name not in names:
        raise ApiError(
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
            "Bad Request",
            "tool_choice",
            is_format=True,
        )
    return name


def function_of(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool's function, be it spelled as in chat or as in responses."""
    function = tool.get("function", tool)
    if not isinstance(function, dict):
        raise malformed("tools", "dict_type", "Input should be a valid dictionary", function)
    return function


def fixed_json(schema: Any) -> str:
    """An answer of this schema."""
    try:
        return json_text(schema)
    except ValueError as error:
        raise ApiError(f"Invalid schema: {error}") from None


def _parameters(tools: Sequence[dict[str, Any]], name: str) -> Any:
    for tool in tools:
        function = function_of(tool)
        if str(function.get("name", "")) == name:
            return function.get("parameters") or {"type": "object"}
    return {"type": "object"}


def _structured(body: Body, prompt: Prompt) -> str | None:
    """The fixed answer that a structured output asks for."""
    wanted = body.object("response_format")
    if wanted.get("type") == "json_object":
        score = natural_tokens(prompt.answer_state, 0, 100)
        return json.dumps({"answer": next_piece(prompt.answer_state).strip(), "score": score})
    if wanted.get("type") == "json_schema":
        return fixed_json(wanted.object("json_schema").get("schema"))
    structured = body.object("structured_outputs")
    if structured.get("json") is not None:
        return fixed_json(structured.get("json"))
    choices = structured.get("choice")
    return str(choices[0]) if isinstance(choices, list) and choices else None


def _top_logprobs(body: Body) -> int | None:
    if not body.flag("logprobs"):
        return None
    top = body.integer("top_logprobs", 0, low=0) or 0
    if top > MOST_LOGPROBS:
        raise ApiError(
            f"Requested sample logprobs of {top}, which is greater than max allowed: {MOST_LOGPROBS}", param="logprobs"
        )
    return top

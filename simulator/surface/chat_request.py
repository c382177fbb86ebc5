"""What a chat request says: messages, tools, structured output. Shared by every API that is chat in other words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from simulator.language import natural_tokens, next_piece
from simulator.options import Options
from simulator.prompts import Opening, Prompt, image_url, prompt_of_messages, prompt_of_tokens
from simulator.service import Service
from simulator.surface.fields import Body
from simulator.surface.logprobs import MAX_LOGPROBS
from simulator.surface.parsing import Parser
from simulator.surface.request_options import RequestOptions, read_request_options
from simulator.surface.wire import ApiError, malformed
from simulator.surface.wording import Tool, Wording, fixed_json, forced_call, free_calls
from simulator.tokens import MAX_ID


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat request, checked."""

    options_of_request: RequestOptions
    prompt: Prompt
    wording: Wording
    is_named_tool: bool
    top_logprobs: int | None
    echoes: bool
    reports_reasoning: bool

    @property
    def tool_finish(self) -> str:
        """A named call was the client's choice, so the model only stopped."""
        return "stop" if self.is_named_tool else "tool_calls"

    def parser(self) -> Parser:
        """For one answer."""
        return Parser(self.wording, thinks=self.prompt.thought is not None, reports_reasoning=self.reports_reasoning)


def read_chat(service: Service, request: web.Request, body: Body) -> Chat:
    """All that a chat request says."""
    body.required("messages")
    messages = body.objects("messages")
    options_of_request = read_request_options(service, request, body, None)
    tools = [offered_tool(each) for each in body.objects("tools")]
    forced = chosen_tool(body.get("tool_choice"), tools)
    opening = opening_of(service.options, body, body.get("reasoning_effort"))
    prompt = forwarded_prompt(service, options_of_request.model, body) or chat_prompt(
        service, options_of_request.model, messages, body, tools, opening
    )
    return Chat(
        options_of_request=options_of_request,
        prompt=prompt,
        wording=_wording(service.options, body, prompt, tools, forced),
        is_named_tool=isinstance(body.get("tool_choice"), dict),
        top_logprobs=_top_logprobs(body),
        echoes=body.flag("echo"),
        reports_reasoning=body.flag("include_reasoning", default=True),
    )


def _wording(options: Options, body: Body, prompt: Prompt, tools: Sequence[Tool], forced: Tool | None) -> Wording:
    if forced is not None:
        return forced_call(forced, prompt)
    if (text := _structured(body, prompt)) is not None:
        return Wording(text)
    if not options.calls_tools or not tools or body.get("tool_choice") == "none":
        return Wording()
    return free_calls(tools, prompt, body.objects("messages"), max_calls(body))


def max_calls(body: Body) -> int:
    """How many calls an answer may make, in OpenAI's words; more than two are never made."""
    return 2 if body.flag("parallel_tool_calls", default=True) else 1


def opening_of(options: Options, body: Body, effort: Any = None) -> Opening:
    """How an answer begins: with thoughts, if the pod thinks and the client lets it."""
    if not options.max_reasoning_tokens:
        return Opening.PLAIN
    thinks = body.object("chat_template_kwargs").flag("enable_thinking", default=effort != "none")
    return Opening.THOUGHT if thinks else Opening.NO_THOUGHT


def chat_prompt(
    service: Service,
    model: str,
    messages: Sequence[dict[str, Any]],
    body: Body,
    tools: Sequence[Tool] = (),
    opening: Opening = Opening.PLAIN,
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
        offered = [{"name": tool.name, "parameters": tool.schema} for tool in tools]
        return prompt_of_messages(
            messages, seed, tools=offered, open_answer=opens, continues=continues, opening=opening
        )
    except UnicodeEncodeError:
        raise ApiError(
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        ) from None


def forwarded_prompt(service: Service, model: str, body: Body) -> Prompt | None:
    """The prompt as token ids in `kv_transfer_params`, which replace the messages; not if these must be read."""
    ids = body.object("kv_transfer_params").get("prompt_token_ids")
    if ids is None or body.flag("echo") or _has_images(body):
        return None
    if not isinstance(ids, list) or not ids or not all(type(each) is int and 0 <= each <= MAX_ID for each in ids):
        raise ApiError(
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.",
            param="kv_transfer_params.prompt_token_ids",
        )
    return prompt_of_tokens(ids, service.seed(model))


def _has_images(body: Body) -> bool:
    turns = body.get("messages") or body.get("input")
    contents = [turn.get("content") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    return any(image_url(part) for content in contents if isinstance(content, list) for part in content)


def chosen_tool(choice: Any, tools: Sequence[Tool]) -> Tool | None:
    """The function that must be called; None leaves it to the model."""
    if choice == "required":
        if not tools:
            raise ApiError(
                "When using `tool_choice`, `tools` must be set.", "Bad Request", "tool_choice", is_format=True
            )
        return tools[0]
    if not isinstance(choice, dict):
        return None
    name = str(function_of(choice).get("name", ""))
    for tool in tools:
        if tool.name == name:
            return tool
    raise ApiError(
        "The tool specified in `tool_choice` does not match any of the specified `tools`",
        "Bad Request",
        "tool_choice",
        is_format=True,
    )


def function_of(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool's function, be it spelled as in chat or as in responses."""
    function = tool.get("function", tool)
    if not isinstance(function, dict):
        raise malformed("tools", "dict_type", "Input should be a valid dictionary", function)
    return function


def offered_tool(tool: dict[str, Any]) -> Tool:
    """One of chat's or responses' tools."""
    function = function_of(tool)
    return Tool(str(function.get("name", "")), function.get("parameters") or {"type": "object"})


def _structured(body: Body, prompt: Prompt) -> str | None:
    """The fixed answer that a structured output asks for."""
    wanted = body.object("response_format")
    if wanted.get("type") == "json_object":
        score = natural_tokens(prompt.answer_state, 0, 100)
        return json.dumps({"answer": next_piece(prompt.answer_state).strip(), "score": score})
    if wanted.get("type") == "json_schema":
        return fixed_json(wanted.object("json_schema").get("schema"), prompt)
    structured = body.object("structured_outputs")
    if structured.get("json") is not None:
        return fixed_json(structured.get("json"), prompt)
    choices = structured.get("choice")
    return str(choices[0]) if isinstance(choices, list) and choices else None


def _top_logprobs(body: Body) -> int | None:
    if not body.flag("logprobs"):
        return None
    top = body.integer("top_logprobs", 0, low=0) or 0
    if top > MAX_LOGPROBS:
        raise ApiError(
            f"Requested sample logprobs of {top}, which is greater than max allowed: {MAX_LOGPROBS}", param="logprobs"
        )
    return top

"""What a request makes the model say word for word: calls of tools, and output that must have a structure.

Each API has its own fields for the tools and the tool choice. Independent of how the response is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.json_instance import json_text
from simulator.language import Speech, natural_tokens
from simulator.prompts import Prompt
from simulator.surface.wire import ApiError

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
"""What a model puts around a call that it makes of its own accord, as Hermes and Qwen do."""

FEWEST_WITHOUT = 3
"""One of this many more prompts than one that offer tools is answered without."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One that is offered."""

    name: str
    schema: Any


@dataclass(frozen=True, slots=True)
class Wording:
    """`text` is the whole output, None for free text; with `tool` it is the arguments of a forced call."""

    text: str | None = None
    tool: str | None = None
    reads_calls: bool = False
    """Calls of tools are looked for in it."""


def forced_call(tool: Tool, prompt: Prompt) -> Wording:
    """The call that the client has asked for."""
    return Wording(fixed_json(tool.schema, prompt), tool.name)


def free_calls(tools: Sequence[Tool], prompt: Prompt, messages: Sequence[Mapping[str, Any]], max_calls: int) -> Wording:
    """What the model makes of tools that it may call or not: it depends on the prompt alone."""
    may_call = tools and not _has_result(messages) and natural_tokens(prompt.answer_state ^ 1, 0, FEWEST_WITHOUT)
    return Wording("".join(_calls(tools, prompt, max_calls)) if may_call else None, reads_calls=True)


def _has_result(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a tool has answered since the user spoke: then it is the model's turn to speak."""
    roles = [message.get("role") for message in messages]
    return "tool" in roles[::-1][: (*roles[::-1], "user").index("user")]


def _calls(tools: Sequence[Tool], prompt: Prompt, max_calls: int) -> Iterator[str]:
    """Sometimes some words before the first, sometimes two in a row."""
    state = prompt.answer_state
    yield "".join(Speech(state ^ 2).pieces(0, natural_tokens(state ^ 2, 0, 5)))
    for number in range(min(max_calls, 1 + (natural_tokens(state ^ 3, 0, 2) == 0))):
        tool = tools[natural_tokens(state ^ 4 + number, 0, len(tools) - 1)]
        arguments = fixed_json(tool.schema, prompt, purpose=4 + number)
        yield f'{CALL_START}\n{{"name": {json.dumps(tool.name)}, "arguments": {arguments}}}\n{CALL_END}'


def fixed_json(schema: Any, prompt: Prompt, *, purpose: int = 1) -> str:
    """A value of this schema; its long texts are the prompt's own."""
    try:
        return json_text(schema, prompt.answer_state ^ purpose)
    except ValueError as error:
        raise ApiError(f"Invalid schema: {error}") from None

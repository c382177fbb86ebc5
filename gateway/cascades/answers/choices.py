"""Chat and completions: an event and a whole answer are both told as choices."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gateway.cascades.answers.entries import Entry, of_entries
from gateway.cascades.evidence import Evidence, Token


class Logprobs(Struct, gc=False):
    """Chat spells one of these, completions the other two."""

    content: list[Entry] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class Function(Struct, gc=False):
    arguments: str | None = None


class Call(Struct, gc=False):
    index: int = 0
    function: Function | None = None


class Said(Struct, gc=False):
    """A delta or a whole message."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class Choice(Struct, gc=False):
    index: int = 0
    delta: Said | None = None
    message: Said | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Choices(Struct, gc=False):
    choices: list[Choice] = []


CHOICES = msgspec.json.Decoder(Choices)


def hear_choices(told: bytes, evidence: Evidence) -> None:
    """Take in an event, or all of an answer."""
    for choice in CHOICES.decode(told).choices:
        if choice.index:
            continue
        said = choice.delta or choice.message or Said(content=choice.text)
        tokens = _tokens(choice.logprobs)
        if (said.reasoning or said.reasoning_content) and not (said.content or said.tool_calls):
            evidence.reasoning += tokens
            evidence.reasoning_pieces += 1
        elif said.content or said.tool_calls or tokens:
            evidence.answer += tokens
            evidence.pieces += 1
            _add(evidence, said)
        evidence.finish_reason = choice.finish_reason or evidence.finish_reason


def _add(evidence: Evidence, said: Said) -> None:
    if said.content:
        evidence.text.append(said.content)
    for at, call in enumerate(said.tool_calls or ()):
        pieces = evidence.arguments.setdefault(call.index or at, [])
        if call.function is not None:
            pieces.append(call.function.arguments or "")


def _tokens(logprobs: Logprobs | None) -> list[Token]:
    if logprobs is None:
        return []
    if logprobs.content is not None:
        return of_entries(logprobs.content)
    tops = logprobs.top_logprobs or []
    return [
        (sure, tuple(sorted((tops[at] or {}).values(), reverse=True)) if at < len(tops) else ())
        for at, sure in enumerate(logprobs.token_logprobs or [])
        if sure is not None
    ]

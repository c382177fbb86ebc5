"""Parsers of answers into evidence, for each API that generates. What does not conform to its API is skipped.

Chat and completions send events and whole answers as choices; responses and messages send typed events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

from cascade.judging import AnswerEvidence
from cascade.signals.tokens import TokenLogprobs
from routing.request import Api

LENGTH, STOP, TOOL_CALLS = "length", "stop", "tool_calls"
"""Finish reasons, in the words of the chat API."""


class _TopLogprob(Struct, gc=False):
    logprob: float = 0.0


class _TokenLogprob(Struct, gc=False):
    """One token, in chat and responses alike."""

    logprob: float = 0.0
    top_logprobs: list[_TopLogprob] | None = None


def _tokens(entries: Iterable[_TokenLogprob]) -> list[TokenLogprobs]:
    return [(entry.logprob, tuple([top.logprob for top in entry.top_logprobs or ()])) for entry in entries]


# Chat and completions


class _Logprobs(Struct, gc=False):
    """`content` is of chat, the other fields are of completions."""

    content: list[_TokenLogprob] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Function(Struct, gc=False):
    arguments: str | None = None


class _ToolCall(Struct, gc=False):
    index: int = 0
    function: _Function | None = None


class _ChatMessage(Struct, gc=False):
    """A delta or a whole message."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct, gc=False):
    index: int = 0
    delta: _ChatMessage | None = None
    message: _ChatMessage | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Choices(Struct, gc=False):
    choices: list[_Choice] = []


CHOICES = msgspec.json.Decoder(_Choices)


def _add_choices(event: bytes, evidence: AnswerEvidence) -> None:
    """Add an event, or a whole answer; of several choices the first."""
    for choice in CHOICES.decode(event).choices:
        if choice.index:
            continue
        message = choice.delta or choice.message or _ChatMessage(content=choice.text)
        tokens = _choice_tokens(choice.logprobs)
        if (message.reasoning or message.reasoning_content) and not (message.content or message.tool_calls):
            evidence.reasoning += tokens
            evidence.reasoning_events += 1
        elif message.content or message.tool_calls or tokens:
            evidence.answer += tokens
            evidence.answer_events += 1
            _add_message(message, evidence)
        evidence.finish_reason = choice.finish_reason or evidence.finish_reason


def _add_message(message: _ChatMessage, evidence: AnswerEvidence) -> None:
    if message.content:
        evidence.text.append(message.content)
    for at, call in enumerate(message.tool_calls or ()):
        pieces = evidence.arguments.setdefault(call.index or at, [])
        if call.function is not None:
            pieces.append(call.function.arguments or "")


def _choice_tokens(logprobs: _Logprobs | None) -> list[TokenLogprobs]:
    if logprobs is None:
        return []
    if logprobs.content is not None:
        return _tokens(logprobs.content)
    tops = logprobs.top_logprobs or []
    return [
        (logprob, tuple(sorted((tops[at] or {}).values(), reverse=True)) if at < len(tops) else ())
        for at, logprob in enumerate(logprobs.token_logprobs or [])
        if logprob is not None
    ]


# Responses


class _OutputPart(Struct, gc=False):
    text: str | None = None
    logprobs: list[_TokenLogprob] | None = None


class _OutputItem(Struct, gc=False):
    type: str = ""
    content: list[_OutputPart] | None = None
    arguments: str | None = None


class _IncompleteDetails(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    status: str = ""
    incomplete_details: _IncompleteDetails | None = None
    output: list[_OutputItem] = []


class _ResponseEvent(Struct, gc=False):
    type: str = ""
    delta: str | None = None
    output_index: int = 0
    logprobs: list[_TokenLogprob] | None = None
    response: _Response | None = None


RESPONSE = msgspec.json.Decoder(_Response)
RESPONSE_EVENT = msgspec.json.Decoder(_ResponseEvent)

REASONING_DELTAS = frozenset({"response.reasoning_text.delta", "response.reasoning_summary_text.delta"})


def _add_response_event(body: bytes, evidence: AnswerEvidence) -> None:
    event = RESPONSE_EVENT.decode(body)
    if event.type == "response.output_text.delta":
        evidence.answer += _tokens(event.logprobs or ())
        evidence.text.append(event.delta or "")
        evidence.answer_events += 1
    elif event.type == "response.function_call_arguments.delta":
        evidence.arguments.setdefault(event.output_index, []).append(event.delta or "")
        evidence.answer_events += 1
    elif event.type in REASONING_DELTAS:
        evidence.reasoning += _tokens(event.logprobs or ())
        evidence.reasoning_events += 1
    elif event.response is not None:
        evidence.finish_reason = _finish_reason(event.response) or evidence.finish_reason


def _add_response(body: bytes, evidence: AnswerEvidence) -> None:
    response = RESPONSE.decode(body)
    for at, item in enumerate(response.output):
        if item.type == "function_call":
            evidence.arguments[at] = [item.arguments or ""]
        for part in item.content or () if item.type == "message" else ():
            evidence.answer += _tokens(part.logprobs or ())
            evidence.text.append(part.text or "")
    evidence.finish_reason = _finish_reason(response)


def _finish_reason(response: _Response) -> str | None:
    reason = response.incomplete_details.reason if response.incomplete_details else None
    if response.status == "completed":
        return STOP
    return LENGTH if response.status == "incomplete" and reason in {None, "max_output_tokens", "max_tokens"} else reason


# Messages: vLLM sends no log-probabilities here.


class _BlockDelta(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _BlockEvent(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _BlockDelta | None = None


class _ContentBlock(Struct, gc=False):
    type: str = ""
    text: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class _Message(Struct, gc=False):
    content: list[_ContentBlock] = []
    stop_reason: str | None = None


BLOCK_EVENT = msgspec.json.Decoder(_BlockEvent)
MESSAGE = msgspec.json.Decoder(_Message)

STOP_REASONS = {"max_tokens": LENGTH, "end_turn": STOP, "stop_sequence": STOP, "tool_use": TOOL_CALLS}


def _add_message_event(body: bytes, evidence: AnswerEvidence) -> None:
    event = BLOCK_EVENT.decode(body)
    delta = event.delta
    if delta is None:
        return
    if delta.thinking:
        evidence.reasoning_events += 1
    elif delta.text or delta.partial_json:
        evidence.answer_events += 1
        if delta.text:
            evidence.text.append(delta.text)
        else:
            evidence.arguments.setdefault(event.index, []).append(delta.partial_json or "")
    if delta.stop_reason:
        evidence.finish_reason = STOP_REASONS.get(delta.stop_reason, delta.stop_reason)


def _add_unary_message(body: bytes, evidence: AnswerEvidence) -> None:
    message = MESSAGE.decode(body)
    for at, block in enumerate(message.content):
        if block.type == "text":
            evidence.text.append(block.text or "")
            evidence.answer_events += 1
        elif block.type == "tool_use":
            evidence.arguments[at] = [bytes(block.input).decode("utf-8", "replace")]
            evidence.answer_events += 1
        elif block.type == "thinking":
            evidence.reasoning_events += 1
    evidence.finish_reason = STOP_REASONS.get(message.stop_reason or "", message.stop_reason)


# Every API

_Parser = Callable[[bytes, AnswerEvidence], None]

EVENT_PARSERS: dict[Api, _Parser] = {
    Api.CHAT: _add_choices,
    Api.COMPLETIONS: _add_choices,
    Api.RESPONSES: _add_response_event,
    Api.MESSAGES: _add_message_event,
}

BODY_PARSERS: dict[Api, _Parser] = {
    Api.CHAT: _add_choices,
    Api.COMPLETIONS: _add_choices,
    Api.RESPONSES: _add_response,
    Api.MESSAGES: _add_unary_message,
}

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised by a parser for what does not conform to its API."""


def add_events(api: Api, events: bytes, evidence: AnswerEvidence) -> None:
    """Add whole events of a stream to the evidence."""
    add = EVENT_PARSERS.get(api)
    if add is None:
        return
    for event in _data_of(events):
        try:
            add(event, evidence)
        except MALFORMED:
            continue


def add_body(api: Api, body: bytes, evidence: AnswerEvidence) -> None:
    """Add an answer in one piece to the evidence."""
    add = BODY_PARSERS.get(api)
    if add is not None:
        try:
            add(body, evidence)
        except MALFORMED:
            return


def _data_of(events: bytes) -> Iterator[bytes]:
    for line in events.split(b"\n"):
        if line.startswith(b"data:") and not line.endswith(b"[DONE]"):
            yield line[5:]

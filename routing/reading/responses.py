"""A pod's response: usage, finish reason and id that it reports, and the canonical bytes of what it generated.

The bytes are those that the next turn's prompt will have. Raw dechunked bytes are read once, when the response has
ended: the events of a stream are parsed together, as one JSON array. What is uncertain (several choices, reasoning, a
stream that was cut) is taken as unknown: predicting a cache hit that does not occur costs more than missing one. A
unary response of chat or completions is parsed once, for facts and bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct

from routing.reading.conversation import (
    ChatMessage,
    ContentPart,
    ResponsesItem,
    open_message,
    write_call,
    write_content,
    write_items,
    write_messages,
)
from routing.request import Api, Usage

NO_RESPONSE = b""

DATA = b"data:"
DONE = b"[DONE]"

FINAL_STATUS = frozenset({"completed", "incomplete"})


class AnsweredMessage(ChatMessage):
    """A chat answer as a whole."""

    reasoning: str | None = None
    reasoning_content: str | None = None


class FunctionPiece(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class CallPiece(Struct, gc=False):
    index: int = 0
    function: FunctionPiece | None = None


class Delta(Struct, gc=False):
    """A piece of a chat answer."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallPiece] | None = None


class StreamChoice(Struct, gc=False):
    index: int = 0
    text: str | None = None
    message: AnsweredMessage | None = None
    delta: Delta | None = None


class ResponseChoices(Struct, gc=False):
    """A chat or completions answer, or one event of it."""

    choices: list[StreamChoice] = []
    error: Raw = Raw()


class ResponseBlocks(Struct, gc=False):
    """An Anthropic answer."""

    type: str = ""
    content: list[ContentPart] = []


class ResponseBlockDelta(Struct, gc=False):
    text: str | None = None
    partial_json: str | None = None


class ResponseBlockEvent(Struct, gc=False):
    """One event of an Anthropic stream."""

    type: str = ""
    index: int = 0
    content_block: ContentPart | None = None
    delta: ResponseBlockDelta | None = None


class ResponseOutput(Struct, gc=False):
    status: str = ""
    output: list[ResponsesItem] = []


class ResponseOutputEvent(Struct, gc=False):
    response: ResponseOutput | None = None


CHOICES = msgspec.json.Decoder(ResponseChoices)
CHOICES_EVENTS = msgspec.json.Decoder(list[ResponseChoices])
BLOCKS = msgspec.json.Decoder(ResponseBlocks)
BLOCK_EVENTS = msgspec.json.Decoder(list[ResponseBlockEvent])
RESPONSE = msgspec.json.Decoder(ResponseOutput)
RESPONSE_EVENT = msgspec.json.Decoder(ResponseOutputEvent)


def response_bytes(api: Api, raw: bytes, stream: bool) -> bytes:  # noqa: FBT001 - asked of every answer in these words
    """Canonical bytes of the generated message, `b""` where they cannot be known."""
    read = (STREAMS if stream else COMPLETE_BODIES).get(api)
    try:
        return read(raw) if read else NO_RESPONSE
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NO_RESPONSE


def _chat(raw: bytes) -> bytes:
    choices = CHOICES.decode(raw).choices
    return message_bytes(choices[0].message if len(choices) == 1 else None)


def message_bytes(message: AnsweredMessage | None) -> bytes:
    """Canonical bytes of a whole chat message."""
    if message is None or message.reasoning or message.reasoning_content:
        return NO_RESPONSE
    out: list[bytes] = []
    write_messages(out, (ChatMessage("assistant", message.content, None, message.tool_calls),))
    return b"".join(out)


def _chat_stream(raw: bytes) -> bytes:
    text: list[str] = []
    calls: dict[int, tuple[list[str], list[str]]] = {}
    for choice in _streamed_choices(raw):
        delta = choice.delta
        if delta is None:
            continue
        if delta.reasoning or delta.reasoning_content:
            return NO_RESPONSE
        if delta.content:
            text.append(delta.content)
        if delta.tool_calls:
            _add_calls(calls, delta.tool_calls)
    if not text and not calls:
        return NO_RESPONSE
    out: list[bytes] = []
    write_content(out, open_message("assistant"), "".join(text))
    for name, arguments in calls.values():
        write_call(out, "".join(name), "".join(arguments))
    return b"".join(out)


def _add_calls(calls: dict[int, tuple[list[str], list[str]]], pieces: list[CallPiece]) -> None:
    for piece in pieces:
        name, arguments = calls.setdefault(piece.index, ([], []))
        if piece.function:
            name.append(piece.function.name or "")
            arguments.append(piece.function.arguments or "")


def _completions(raw: bytes) -> bytes:
    choices = CHOICES.decode(raw).choices
    return (choices[0].text or "").encode() if len(choices) == 1 else NO_RESPONSE


def _completions_stream(raw: bytes) -> bytes:
    return "".join([choice.text or "" for choice in _streamed_choices(raw)]).encode()


def _streamed_choices(raw: bytes) -> list[StreamChoice]:
    """The pieces of the only answer; none where there are several, or the stream was cut or told an error."""
    events = _events(raw)
    if not events or events.pop().strip() != DONE:
        return []
    pieces: list[StreamChoice] = []
    for chunk in CHOICES_EVENTS.decode(_as_array(events)):
        if chunk.error:
            return []
        for choice in chunk.choices:
            if choice.index:
                return []
            pieces.append(choice)
    return pieces


def _messages(raw: bytes) -> bytes:
    answer = BLOCKS.decode(raw)
    return _blocks(answer.content) if answer.type == "message" else NO_RESPONSE


def _messages_stream(raw: bytes) -> bytes:
    events = BLOCK_EVENTS.decode(_as_array(_events(raw)))
    if not events or events[-1].type != "message_stop" or any(event.type == "error" for event in events):
        return NO_RESPONSE
    blocks: dict[int, ContentPart] = {}
    pieces: dict[int, list[str]] = {}
    for event in events:
        if event.content_block:
            blocks[event.index] = event.content_block
            pieces[event.index] = []
        elif event.delta and event.index in pieces:
            pieces[event.index].append(event.delta.text or event.delta.partial_json or "")
    return _blocks([_filled(block, "".join(pieces[index])) for index, block in blocks.items()])


def _filled(block: ContentPart, streamed: str) -> ContentPart:
    if block.type == "tool_use":
        return ContentPart(type=block.type, name=block.name, input=Raw(streamed.encode()) if streamed else block.input)
    return ContentPart(type=block.type, text=streamed)


def _blocks(blocks: list[ContentPart]) -> bytes:
    if not blocks or any(block.type not in {"text", "tool_use"} for block in blocks):
        return NO_RESPONSE
    out: list[bytes] = []
    write_content(out, open_message("assistant"), [*blocks])
    return b"".join(out)


def _response(raw: bytes) -> bytes:
    return _items(RESPONSE.decode(raw))


def _response_stream(raw: bytes) -> bytes:
    """The last event repeats the whole answer."""
    events = _events(raw)
    last = RESPONSE_EVENT.decode(events[-1]).response if events else None
    return _items(last) if last else NO_RESPONSE


def _items(response: ResponseOutput) -> bytes:
    if response.status not in FINAL_STATUS or any(item.type == "reasoning" for item in response.output):
        return NO_RESPONSE
    out: list[bytes] = []
    write_items(out, response.output)
    return b"".join(out)


def _events(raw: bytes) -> list[bytes]:
    """The JSON of each event. A line break cannot stand inside of JSON text, so a line is a line."""
    return [line[5:] for line in raw.split(b"\n") if line[:5] == DATA]


def _as_array(events: list[bytes]) -> bytes:
    return b"[" + b",".join(events) + b"]"


COMPLETE_BODIES: dict[Api, Callable[[bytes], bytes]] = {
    Api.CHAT: _chat,
    Api.COMPLETIONS: _completions,
    Api.MESSAGES: _messages,
    Api.RESPONSES: _response,
}
STREAMS: dict[Api, Callable[[bytes], bytes]] = {
    Api.CHAT: _chat_stream,
    Api.COMPLETIONS: _completions_stream,
    Api.MESSAGES: _messages_stream,
    Api.RESPONSES: _response_stream,
}


class ResponseFacts(Struct, frozen=True, gc=False):
    """What an answer, or one event of its stream, tells. None where it does not."""

    usage: Usage | None = None
    finish_reason: str | None = None
    """In the engine's own words, which differ from API to API."""
    response_id: str | None = None


NO_RESPONSE_FACTS = ResponseFacts()

MAX_TOKENS = (1 << 31) - 1
"""Tokens of one request that a pod may report: 128 answers, each with a context of ten million, have fewer."""


class CachedTokens(Struct):
    cached_tokens: int | None = None


class ReportedUsage(Struct):
    """Usage in the words of all APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: CachedTokens | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class FinishedChoice(Struct):
    finish_reason: str | None = None


class IncompleteDetails(Struct):
    reason: str | None = None


class StopDelta(Struct):
    stop_reason: str | None = None


class ResponseEnvelope(Struct):
    """An answer or an event, in the words of all APIs."""

    id: str | None = None
    usage: ReportedUsage | None = None
    choices: list[FinishedChoice] | None = None
    status: str | None = None
    incomplete_details: IncompleteDetails | None = None
    stop_reason: str | None = None
    delta: StopDelta | str | None = None
    response: ResponseEnvelope | None = None
    message: ResponseEnvelope | str | None = None


ENVELOPE = msgspec.json.Decoder(ResponseEnvelope)

ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})
"""Status words of a response that has ended."""


def read_response_facts(api: Api, body: bytes) -> ResponseFacts:
    """The facts in a whole JSON answer, or in the JSON of one event. Nothing where it is not as the API says."""
    try:
        answer = ENVELOPE.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NO_RESPONSE_FACTS
    inner = answer.response or (answer.message if isinstance(answer.message, ResponseEnvelope) else None) or answer
    stop = answer.delta.stop_reason if isinstance(answer.delta, StopDelta) else None
    return ResponseFacts(usage_of(api, inner.usage), stop or _finish_reason(inner), inner.id)


def read_usage(api: Api, body: bytes) -> Usage | None:
    """The usage in a whole JSON answer or in one event."""
    return read_response_facts(api, body).usage


def _finish_reason(answer: ResponseEnvelope) -> str | None:
    if answer.choices:
        for choice in answer.choices:
            if choice.finish_reason:
                return choice.finish_reason
        return None
    if answer.status in ENDED:
        return (answer.incomplete_details and answer.incomplete_details.reason) or answer.status
    return answer.stop_reason


def usage_of(api: Api, body: ReportedUsage | None) -> Usage | None:
    """Usage in one form, whichever API's words told it."""
    if body is None:
        return None
    if body.prompt_tokens is not None:
        return _counted(body.prompt_tokens, body.completion_tokens, body.prompt_tokens_details)
    if body.input_tokens is None:
        return None
    if api is not Api.MESSAGES:
        return _counted(body.input_tokens, body.output_tokens, body.input_tokens_details)
    # Anthropic counts apart what was read from the cache, what was written to it, and the rest.
    read, written = body.cache_read_input_tokens, body.cache_creation_input_tokens
    return _counted(body.input_tokens + (read or 0) + (written or 0), body.output_tokens, CachedTokens(read))


def _counted(prompt: int, completion: int | None, cached: CachedTokens | None) -> Usage | None:
    """Return usage, None where a count is negative or larger than any engine can have: accounts and learned costs would
    keep it.
    """
    usage = Usage(prompt, completion or 0, cached.cached_tokens if cached else None)
    counts = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens or 0)
    return usage if all(0 <= count <= MAX_TOKENS for count in counts) else None


class CompleteChoice(Struct, gc=False):
    finish_reason: str | None = None
    text: str | None = None
    message: AnsweredMessage | None = None


class CompleteResponseBody(Struct, gc=False):
    id: str | None = None
    usage: ReportedUsage | None = None
    choices: list[CompleteChoice] = []


COMPLETE = msgspec.json.Decoder(CompleteResponseBody)


def read_complete(api: Api, body: bytes) -> tuple[ResponseFacts, bytes]:
    """The facts in an answer, and the canonical bytes of what it generated; as `read_facts` and `answer_bytes` say."""
    if api is not Api.CHAT and api is not Api.COMPLETIONS:
        return read_response_facts(api, body), response_bytes(api, body, stream=False)
    try:
        answer = COMPLETE.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return read_response_facts(api, body), response_bytes(api, body, stream=False)
    choices = answer.choices
    ended = next((choice.finish_reason for choice in choices if choice.finish_reason), None)
    facts = ResponseFacts(usage_of(api, answer.usage), ended, answer.id)
    if len(choices) != 1:
        return facts, NO_RESPONSE
    return facts, message_bytes(choices[0].message) if api is Api.CHAT else (choices[0].text or "").encode()

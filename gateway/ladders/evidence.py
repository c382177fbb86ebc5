"""What an answer shows of itself while it comes: how sure its tokens were, what it says, how it ended.

Read from the events of a stream, or from a whole body, of each API that generates. Knows no HTTP and judges nothing.
Text is kept only until an answer is judged, and goes no further than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct, field

from routing.request import Api

Token = tuple[float, tuple[float, ...]]
"""The log-probability of a token that was said, and those of the likeliest at its place, best first."""

DATA = b"data:"


class Evidence(Struct):
    """Grows with the answer. Of several answers to one prompt only the first is looked at."""

    answer: list[Token] = field(default_factory=list)
    """The tokens of the answer, reasoning left out."""
    reasoning: list[Token] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    arguments: dict[int, list[str]] = field(default_factory=dict)
    """Of the tools that are called, by their place."""
    pieces: int = 0
    """Of the answer, however they were counted: where no log-probabilities come, an event is a token."""
    reasoning_pieces: int = 0
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far."""
        return max(self.pieces, len(self.answer))

    @property
    def reasoning_tokens(self) -> int:
        return max(self.reasoning_pieces, len(self.reasoning))

    def said(self) -> str:
        """The text of the answer so far."""
        return "".join(self.text)

    def calls(self) -> list[str]:
        """The arguments of each tool that is called, as JSON text."""
        return ["".join(pieces) for pieces in self.arguments.values()]


# -- how the APIs spell it ---------------------------------------------------------------------------------------------


class Ranked(Struct, gc=False):
    logprob: float = 0.0


class Entry(Struct, gc=False):
    logprob: float = 0.0
    top_logprobs: list[Ranked] | None = None


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


class Part(Struct, gc=False):
    type: str = ""
    text: str | None = None
    logprobs: list[Entry] | None = None
    thinking: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class Item(Struct, gc=False):
    type: str = ""
    content: list[Part] | None = None
    arguments: str | None = None


class Incomplete(Struct, gc=False):
    reason: str | None = None


class Response(Struct, gc=False):
    status: str = ""
    incomplete_details: Incomplete | None = None
    output: list[Item] = []


class ResponseEvent(Struct, gc=False):
    type: str = ""
    delta: str | None = None
    output_index: int = 0
    logprobs: list[Entry] | None = None
    response: Response | None = None


class BlockDelta(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class Block(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: BlockDelta | None = None


class Message(Struct, gc=False):
    content: list[Part] = []
    stop_reason: str | None = None


CHOICES = msgspec.json.Decoder(Choices)
RESPONSE = msgspec.json.Decoder(Response)
RESPONSE_EVENT = msgspec.json.Decoder(ResponseEvent)
BLOCK = msgspec.json.Decoder(Block)
MESSAGE = msgspec.json.Decoder(Message)

LENGTH = "length"
STOP = "stop"
REASONING = frozenset({"response.reasoning_text.delta", "response.reasoning_summary_text.delta"})


def hear_events(api: Api, events: bytes, evidence: Evidence) -> None:
    """Take in whole events of a stream. What is not as the API says is passed over."""
    hear = STREAMS.get(api)
    for told in _told(events) if hear else ():
        try:
            hear(told, evidence)  # type: ignore[misc]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue


def hear_whole(api: Api, body: bytes, evidence: Evidence) -> None:
    """Take in an answer in one piece."""
    hear = WHOLES.get(api)
    if hear is not None:
        try:
            hear(body, evidence)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return


def _told(events: bytes) -> Iterator[bytes]:
    for line in events.split(b"\n"):
        if line.startswith(DATA) and not line.endswith(b"[DONE]"):
            yield line[5:]


# -- chat and completions ----------------------------------------------------------------------------------------------


def _hear_choices(told: bytes, evidence: Evidence) -> None:
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
        return _of_entries(logprobs.content)
    tops = logprobs.top_logprobs or []
    return [
        (sure, tuple(sorted((tops[at] or {}).values(), reverse=True)) if at < len(tops) else ())
        for at, sure in enumerate(logprobs.token_logprobs or [])
        if sure is not None
    ]


def _of_entries(entries: Iterable[Entry]) -> list[Token]:
    return [(entry.logprob, tuple([top.logprob for top in entry.top_logprobs or ()])) for entry in entries]


# -- responses and messages --------------------------------------------------------------------------------------------


def _hear_response_event(told: bytes, evidence: Evidence) -> None:
    event = RESPONSE_EVENT.decode(told)
    if event.type == "response.output_text.delta":
        evidence.answer += _of_entries(event.logprobs or ())
        evidence.text.append(event.delta or "")
        evidence.pieces += 1
    elif event.type == "response.function_call_arguments.delta":
        evidence.arguments.setdefault(event.output_index, []).append(event.delta or "")
        evidence.pieces += 1
    elif event.type in REASONING:
        evidence.reasoning += _of_entries(event.logprobs or ())
        evidence.reasoning_pieces += 1
    elif event.response is not None:
        evidence.finish_reason = _ended(event.response) or evidence.finish_reason


def _hear_response(body: bytes, evidence: Evidence) -> None:
    response = RESPONSE.decode(body)
    for at, item in enumerate(response.output):
        if item.type == "function_call":
            evidence.arguments[at] = [item.arguments or ""]
        for part in item.content or () if item.type == "message" else ():
            evidence.answer += _of_entries(part.logprobs or ())
            evidence.text.append(part.text or "")
    evidence.finish_reason = _ended(response)


def _ended(response: Response) -> str | None:
    why = response.incomplete_details.reason if response.incomplete_details else None
    if response.status == "completed":
        return STOP
    return LENGTH if response.status == "incomplete" and why in {None, "max_output_tokens", "max_tokens"} else why


ANTHROPIC_ENDS = {"max_tokens": LENGTH, "end_turn": STOP, "stop_sequence": STOP, "tool_use": "tool_calls"}


def _hear_block(told: bytes, evidence: Evidence) -> None:
    event = BLOCK.decode(told)
    delta = event.delta
    if delta is None:
        return
    if delta.thinking:
        evidence.reasoning_pieces += 1
    elif delta.text or delta.partial_json:
        evidence.pieces += 1
        if delta.text:
            evidence.text.append(delta.text)
        else:
            evidence.arguments.setdefault(event.index, []).append(delta.partial_json or "")
    if delta.stop_reason:
        evidence.finish_reason = ANTHROPIC_ENDS.get(delta.stop_reason, delta.stop_reason)


def _hear_message(body: bytes, evidence: Evidence) -> None:
    message = MESSAGE.decode(body)
    for at, part in enumerate(message.content):
        if part.type == "text":
            evidence.text.append(part.text or "")
            evidence.pieces += 1
        elif part.type == "tool_use":
            evidence.arguments[at] = [bytes(part.input).decode("utf-8", "replace")]
            evidence.pieces += 1
        elif part.type == "thinking":
            evidence.reasoning_pieces += 1
    evidence.finish_reason = ANTHROPIC_ENDS.get(message.stop_reason or "", message.stop_reason)


Hear = Callable[[bytes, Evidence], None]

STREAMS: dict[Api, Hear] = {
    Api.CHAT: _hear_choices,
    Api.COMPLETIONS: _hear_choices,
    Api.RESPONSES: _hear_response_event,
    Api.MESSAGES: _hear_block,
}
WHOLES: dict[Api, Hear] = {
    Api.CHAT: _hear_choices,
    Api.COMPLETIONS: _hear_choices,
    Api.RESPONSES: _hear_response,
    Api.MESSAGES: _hear_message,
}

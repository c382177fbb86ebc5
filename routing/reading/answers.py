"""What a pod's answer generated, in the canonical bytes of the next turn's prompt.

Reads the raw dechunked bytes once, when the answer has ended. A stream of plain text is searched, not parsed: an
unescaped quote cannot stand inside a JSON string, so a key with its colon is never part of a text. Whatever is not
certain (several answers, reasoning, a stream that was cut) is told as nothing: a wrong answer is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Raw, Struct

from routing.reading.conversation import (
    Item,
    Message,
    Part,
    open_message,
    write_call,
    write_content,
    write_items,
    write_messages,
)
from routing.request import Api

DATA = b"data:"
DONE = b"data: [DONE]"

NO_ANSWER = b""

FINAL_STATUS = frozenset({"completed", "incomplete"})

THOUGHTS = (b'"reasoning', b'"thinking')
CALLS = (b'"tool_calls', b'"tool_use')


class FunctionPiece(Struct):
    name: str | None = None
    arguments: str | None = None


class CallPiece(Struct):
    index: int = 0
    function: FunctionPiece | None = None


class Delta(Struct):
    """A piece of a chat answer, or of an Anthropic content block."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallPiece] | None = None
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None


class AnsweredMessage(Message):
    reasoning: str | None = None
    reasoning_content: str | None = None


class Choice(Struct):
    index: int = 0
    text: str | None = None
    message: AnsweredMessage | None = None
    delta: Delta | None = None


class Choices(Struct):
    """A chat or completions answer, or one event of it."""

    choices: list[Choice] = []
    error: Raw = Raw()


class Blocks(Struct):
    """An Anthropic answer."""

    type: str = ""
    content: list[Part] = []


class BlockEvent(Struct):
    """One event of an Anthropic stream."""

    type: str = ""
    index: int = 0
    content_block: Part | None = None
    delta: Delta | None = None


class Response(Struct):
    status: str = ""
    output: list[Item] = []


class ResponseEvent(Struct):
    type: str = ""
    response: Response | None = None


CHOICES = msgspec.json.Decoder(Choices)
BLOCKS = msgspec.json.Decoder(Blocks)
BLOCK_EVENT = msgspec.json.Decoder(BlockEvent)
RESPONSE = msgspec.json.Decoder(Response)
RESPONSE_EVENT = msgspec.json.Decoder(ResponseEvent)
TEXT = msgspec.json.Decoder(str)


def answer_bytes(api: Api, raw: bytes, stream: bool) -> bytes:  # noqa: FBT001 - the seam is fixed
    """Canonical bytes of the generated message, `b""` where they cannot be known."""
    read = (STREAMS if stream else WHOLES).get(api)
    if read is None:
        return NO_ANSWER
    try:
        return read(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NO_ANSWER


def _chat(raw: bytes) -> bytes:
    choices = CHOICES.decode(raw).choices
    message = choices[0].message if len(choices) == 1 else None
    if message is None or message.reasoning or message.reasoning_content:
        return NO_ANSWER
    out: list[bytes] = []
    message.role, message.name = "assistant", None
    write_messages(out, (message,))
    return b"".join(out)


def _chat_stream(raw: bytes) -> bytes:
    if not raw.rstrip().endswith(DONE):
        return NO_ANSWER
    if _is_plain(raw, b'"content":"'):
        return open_message("assistant") + _strings(raw, b'"content":"')
    return _chat_pieces(raw)


def _chat_pieces(raw: bytes) -> bytes:
    text: list[str] = []
    calls: dict[int, tuple[list[str], list[str]]] = {}
    for event in _events(raw):
        chunk = CHOICES.decode(event)
        if chunk.error:
            return NO_ANSWER
        for choice in chunk.choices:
            delta = choice.delta or Delta()
            if choice.index or delta.reasoning or delta.reasoning_content:
                return NO_ANSWER
            text.append(delta.content or "")
            _add_calls(calls, delta.tool_calls or [])
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
    return (choices[0].text or "").encode() if len(choices) == 1 else NO_ANSWER


def _completions_stream(raw: bytes) -> bytes:
    if not raw.rstrip().endswith(DONE):
        return NO_ANSWER
    if _is_plain(raw, b'"text":"'):
        return _strings(raw, b'"text":"')
    text: list[str] = []
    for event in _events(raw):
        chunk = CHOICES.decode(event)
        if chunk.error or any(choice.index for choice in chunk.choices):
            return NO_ANSWER
        text += [choice.text or "" for choice in chunk.choices]
    return "".join(text).encode()


def _messages(raw: bytes) -> bytes:
    answer = BLOCKS.decode(raw)
    if answer.type != "message":
        return NO_ANSWER
    return _blocks(answer.content)


def _messages_stream(raw: bytes) -> bytes:
    if b'"message_stop"' not in raw[-200:]:
        return NO_ANSWER
    if raw.count(b'"content_block":') == 1 and _is_plain(raw, b'"text":"'):
        return open_message("assistant") + _strings(raw, b'"text":"')
    blocks: dict[int, Part] = {}
    pieces: dict[int, list[str]] = {}
    for line in _events(raw):
        event = BLOCK_EVENT.decode(line)
        if event.type == "error":
            return NO_ANSWER
        if event.content_block:
            blocks[event.index] = event.content_block
        elif event.delta and event.type == "content_block_delta":
            piece = event.delta.text or event.delta.partial_json or event.delta.thinking or ""
            pieces.setdefault(event.index, []).append(piece)
    for index, block in blocks.items():
        _fill(block, "".join(pieces.get(index, ())))
    return _blocks(list(blocks.values()))


def _fill(block: Part, streamed: str) -> None:
    if block.type == "tool_use":
        block.input = Raw(streamed.encode()) if streamed else block.input
    else:
        block.text = streamed


def _blocks(blocks: list[Part]) -> bytes:
    if any(block.type not in {"text", "tool_use"} for block in blocks):
        return NO_ANSWER
    out: list[bytes] = []
    write_content(out, open_message("assistant"), list(blocks))
    return b"".join(out)


def _response(raw: bytes) -> bytes:
    return _items(RESPONSE.decode(raw))


def _response_stream(raw: bytes) -> bytes:
    whole = raw.rstrip()
    last = RESPONSE_EVENT.decode(whole[whole.rfind(b"\n") + 1 :].removeprefix(DATA))
    return _items(last.response or Response())


def _items(response: Response) -> bytes:
    if response.status not in FINAL_STATUS or any(item.type == "reasoning" for item in response.output):
        return NO_ANSWER
    out: list[bytes] = []
    write_items(out, response.output)
    return b"".join(out)


def _is_plain(raw: bytes, key: bytes) -> bool:
    """Whether a stream is one answer of nothing but text, written without spaces, so that searching it is enough."""
    if key not in raw or raw.count(b'"index":') != raw.count(b'"index":0'):
        return False
    return not any(word in raw for word in (*THOUGHTS, *CALLS, b'"error'))


def _strings(raw: bytes, key: bytes) -> bytes:
    """All string values of `key`, put together."""
    pieces = raw.split(key)
    del pieces[0]
    whole = b"".join([piece[: _end_of_string(piece)] for piece in pieces])
    return TEXT.decode(b'"' + whole + b'"').encode()


def _end_of_string(piece: bytes) -> int:
    end = piece.index(b'"')
    while piece[end - 1 : end] == b"\\" and _is_escaped(piece, end):
        end = piece.index(b'"', end + 1)
    return end


def _is_escaped(piece: bytes, at: int) -> bool:
    before = piece[:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _events(raw: bytes) -> Iterator[bytes]:
    for line in raw.split(b"\n"):
        if line.startswith(DATA) and not line.startswith(DONE):
            yield line.removeprefix(DATA)


WHOLES: dict[Api, Callable[[bytes], bytes]] = {
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

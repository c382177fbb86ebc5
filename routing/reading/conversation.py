"""Conversations and plain prompts as canonical bytes: what decides whether two prompts share a prefix.

One form for every wire dialect, so that the same conversation hits the same cache whichever API it comes by, and so
that a response written by `open_message` and `write_call` is what the next turn's body becomes. A longer conversation
only appends. Marker bytes cannot occur in UTF-8: no text of a user can look like the end of a message. Prompts without
a conversation are text, token ids, something chat-shaped, or a batch of these.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Annotated, cast

import msgspec
from msgspec import Meta, Raw, Struct
from xxhash import xxh3_128_hexdigest

MESSAGE = b"\xff"
"""Opens a message; its role follows."""
BODY = b"\xfe"
"""Ends a role or a name; its content follows."""
PART = b"\xfd"
"""Between two parts of one message."""
CALL = b"\xfc"
"""Opens a tool call; its name, BODY and arguments follow."""
NAME = b"\xfb"
"""Before a participant's name."""
MEDIA = b"\xfa"
"""Before the digest of a picture, sound, film or file."""

MEDIA_DIGESTS = 128
"""A digest of 32 bytes is repeated to 4 KB, about the 1,000 tokens that one megapixel becomes: sizes predict work."""

BILLING_HEADER = "x-anthropic-billing-header"
"""A system block that begins so is different in every request of one client, and vLLM drops it from the prompt too."""

UNREAD_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text"})
"""Reasoning of earlier turns: most chat templates leave it out of the prompt."""


class CalledFunction(Struct, gc=False):
    """What a tool call of chat completions calls."""

    name: str = ""
    arguments: Raw = Raw()


class ToolCall(Struct, gc=False):
    """One tool call of chat completions."""

    function: CalledFunction | None = None


class ContentPart(Struct, gc=False):
    """One part of a message's content, in OpenAI's or Anthropic's words."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    name: str | None = None
    input: Raw = Raw()
    content: str | list[str | ContentPart] | None = None
    uuid: Raw = Raw()
    image_url: Raw = Raw()
    image: Raw = Raw()
    image_embeds: Raw = Raw()
    input_audio: Raw = Raw()
    audio_url: Raw = Raw()
    audio_embeds: Raw = Raw()
    video_url: Raw = Raw()
    file: Raw = Raw()
    file_id: Raw = Raw()
    file_data: Raw = Raw()
    file_url: Raw = Raw()
    source: Raw = Raw()


Content = str | list[str | ContentPart] | None


class ChatMessage(Struct, gc=False):
    """One message of chat completions or of Anthropic's messages."""

    role: str = ""
    content: str | list[str | ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None


class ResponsesItem(Struct, gc=False):
    """One item of a responses input or output: a message, a tool call, a tool's result, or reasoning."""

    type: str = "message"
    role: str = ""
    content: str | list[str | ContentPart] | None = None
    name: str = ""
    arguments: Raw = Raw()
    input: Raw = Raw()
    output: str | list[str | ContentPart] | None = None


def write_messages(out: list[bytes], messages: Iterable[ChatMessage]) -> None:
    """Append the canonical bytes of messages."""
    for message in messages:
        role = message.role.encode()
        if message.name:
            role += NAME + message.name.encode()
        write_content(out, MESSAGE + role + BODY, message.content)
        for call in message.tool_calls or ():
            if call.function:
                write_call(out, call.function.name, call.function.arguments)


def write_items(out: list[bytes], items: Iterable[ResponsesItem]) -> None:
    """Append the canonical bytes of responses items; tool calls belong to the assistant's message before them."""
    is_assistants = False
    for item in items:
        kind = item.type
        if kind == "message":
            write_content(out, open_message(item.role), item.content)
            is_assistants = item.role == "assistant"
        elif kind in {"function_call", "custom_tool_call"}:
            if not is_assistants:
                out.append(open_message("assistant"))
            write_call(out, item.name, item.arguments or item.input)
            is_assistants = True
        elif kind != "reasoning":
            role = "tool" if kind.endswith("_call_output") else kind
            write_content(out, open_message(role), item.output)
            is_assistants = False


def write_system(out: list[bytes], content: Content) -> None:
    """Append a system prompt given beside the messages."""
    if isinstance(content, list):
        content = [part for part in content if not _is_billing(part)]
    elif _is_billing(content):
        content = None
    if content:
        write_content(out, open_message("system"), content)


def open_message(role: str) -> bytes:
    """How a message of `role` begins."""
    return MESSAGE + role.encode() + BODY


def write_content(out: list[bytes], opening: bytes, content: Content) -> None:
    """Append one message's content behind its opening. `"x"` and `[{"type": "text", "text": "x"}]` are the same."""
    if isinstance(content, str):
        out += (opening, content.encode())
    elif content:
        _write_parts(out, opening, content)
    else:
        out.append(opening)


def _write_parts(out: list[bytes], opening: bytes, parts: Sequence[str | ContentPart]) -> None:
    before = opening
    has_results = False
    for part in parts:
        if isinstance(part, str):
            out += (before, part.encode())
            before = PART
        elif part.type == "tool_result":
            # Engines make a message of its own of a tool's result.
            write_content(out, open_message("tool"), part.content)
            before, has_results = opening, True
        elif part.type == "tool_use":
            if before is opening:
                out.append(opening)
            write_call(out, part.name or "", part.input)
            before = PART
        elif part.type not in UNREAD_PARTS:
            out += (before, _part_bytes(part))
            before = PART
    if before is opening and not has_results:
        out.append(opening)


def write_call(out: list[bytes], name: str, arguments: Raw | str) -> None:
    """Append one tool call. Arguments are compared as values, not by the spacing of their JSON."""
    out += (CALL, name.encode(), BODY, _compact(arguments))


def _part_bytes(part: ContentPart) -> bytes:
    text = part.text if part.text is not None else part.refusal
    if text is not None:
        return text.encode()
    content = (
        part.uuid
        or part.image_url
        or part.input_audio
        or part.video_url
        or part.audio_url
        or part.source
        or part.image
        or part.image_embeds
        or part.audio_embeds
        or part.file
        or part.file_data
        or part.file_id
        or part.file_url
    )
    return MEDIA + part.type.encode() + BODY + xxh3_128_hexdigest(memoryview(content)).encode() * MEDIA_DIGESTS


def _compact(arguments: Raw | str) -> bytes:
    """JSON in one spacing and escaping; an object that travels inside a string is the object."""
    if not arguments:
        return b"{}"
    try:
        value = msgspec.json.decode(arguments)
        if not isinstance(value, str):
            return msgspec.json.encode(value)
        arguments = value
        return msgspec.json.encode(msgspec.json.decode(value)) if value.strip() else b"{}"
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        # Models sometimes write invalid JSON; then only the very same bytes are equal.
        return arguments.encode() if isinstance(arguments, str) else bytes(arguments)


def _is_billing(block: str | ContentPart | None) -> bool:
    text = block.text if isinstance(block, ContentPart) else block
    return text is not None and text.startswith(BILLING_HEADER)


TOKENS = b"\xf9"
"""Before token ids, four bytes each."""
NEXT = b"\xf8"
"""Between the prompts of a batch."""

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Row = list[TokenId | ChatMessage]
"""Token ids, or the messages of a chat: one prompt in either case."""
PlainPrompt = str | TokenId | ChatMessage | Row
PlainPrompts = str | ChatMessage | list[str | TokenId | ChatMessage | Row] | None


def write_prompts(out: list[bytes], prompts: PlainPrompts) -> int:
    """Append one prompt or a batch of them. Returns how many they are."""
    each = _separated(prompts)
    for index, prompt in enumerate(each):
        if index:
            out.append(NEXT)
        _write_prompt(out, prompt)
    return len(each)


def _separated(prompts: PlainPrompts) -> Sequence[PlainPrompt]:
    if prompts is None:
        return ()
    if not isinstance(prompts, list):
        return (prompts,)
    if prompts and isinstance(prompts[0], int | ChatMessage):
        return (cast("Row", prompts),)
    return prompts


def _write_prompt(out: list[bytes], prompt: PlainPrompt) -> None:
    if isinstance(prompt, str):
        out.append(prompt.encode())
    elif isinstance(prompt, list):
        _write_row(out, prompt)
    elif isinstance(prompt, ChatMessage):
        write_messages(out, (prompt,))


def _write_row(out: list[bytes], row: Row) -> None:
    try:
        out += (TOKENS, array("I", cast("list[int]", row)).tobytes())
    except TypeError:
        # What is neither all ids nor all messages is the engine's to refuse.
        write_messages(out, (element for element in row if isinstance(element, ChatMessage)))

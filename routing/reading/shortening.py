"""A client's body cut to a prefix of its prompt: what a new engine is given so that it computes that prefix.

Whole messages are kept, and the text of the one in which the prefix ends is cut there. The result is checked: its
canonical prompt shares the prefix with the original's, else nothing is returned. All fields that shape the prompt stay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from routing.reading.bodies import ChatBody, CompletionsBody, MessagesBody, RequestBody, ResponsesBody
from routing.reading.conversation import TOKENS, ChatMessage, ResponsesItem, write_items, write_messages
from routing.reading.requests import DECODERS
from routing.reading.rewriting import TOP_LEVEL
from routing.request import Api

MIN_SHARED = 0.9
"""Share of the wanted prefix that the shortened body must have."""

PLACEHOLDER = Raw(b'{"role":"user","content":"."}')
"""Ends a conversation that was cut behind its system prompt or an answer: many chat templates need a user's turn."""

TOKEN_BYTES = 4
"""Of a token id in a canonical prompt."""

ITEMS = msgspec.json.Decoder(list[Raw])
FIELDS = msgspec.json.Decoder(dict[str, Raw])


def shortened_body(api: Api, raw: bytes, size: int) -> tuple[bytes, int] | None:
    """Return a body whose canonical prompt begins with the first `size` bytes of this one's, and how many it shares.

    `raw` was read as a request before. None where it cannot be cut there: in its tools, in an image, in a batch.
    """
    fields, _ = DECODERS[api].decode(raw)
    original = canonical(fields)
    if size >= len(original):
        return raw, len(original)
    kept = TOP_LEVEL.decode(raw)
    match fields:
        case ChatBody(messages=list() as messages) | MessagesBody(messages=list() as messages):
            fields.messages = []
            kept["messages"] = _cut_items(messages, kept["messages"], size - len(canonical(fields)))
        case ResponsesBody(input=list() as items):
            fields.input = []
            kept["input"] = _cut_items(items, kept["input"], size - len(canonical(fields)))
        case ResponsesBody(input=str() as text):
            fields.input = ""
            kept["input"] = _text(text, size - len(canonical(fields))) or Raw(b'"."')
        case CompletionsBody(prompt=str() as text):
            kept["prompt"] = _text(text, size)
        case CompletionsBody(prompt=[int(), *_] as ids) if all(isinstance(each, int) for each in ids):
            kept["prompt"] = Raw(msgspec.json.encode(ids[: (size - len(TOKENS)) // TOKEN_BYTES]))
        case _:
            return None
    if not kept.get("prompt", b"-"):
        return None
    body = msgspec.json.encode(kept)
    shared = _shared(original, canonical(DECODERS[api].decode(body)[0]), size)
    return (body, shared) if shared >= MIN_SHARED * size else None


def canonical(fields: RequestBody) -> bytes:
    """Return the canonical prompt of a body."""
    out: list[bytes] = []
    fields.write(out)
    return b"".join(out)


def _cut_items(items: Sequence[ChatMessage | ResponsesItem], written: Raw, size: int) -> Raw:
    """Return the first messages or items, up to `size` canonical bytes of them."""
    kept: list[Raw] = []
    last = ""
    for item, raw in zip(items, ITEMS.decode(written), strict=True):
        out: list[bytes] = []
        if isinstance(item, ChatMessage):
            write_messages(out, (item,))
        else:
            write_items(out, (item,))
        taken = sum(map(len, out))
        if taken > size:
            raw = _cut_message(item, raw, size - len(out[0]) if out else 0)  # noqa: PLW2901 - the part of it that fits
        if not raw:
            break
        kept.append(raw)
        size -= taken
        last = item.role if isinstance(item, ChatMessage) or item.type == "message" else "tool"
        if size <= 0:
            break
    if last not in ("user", "tool"):
        kept.append(PLACEHOLDER)
    return Raw(msgspec.json.encode(kept))


def _cut_message(item: ChatMessage | ResponsesItem, raw: Raw, size: int) -> Raw:
    """Return a message of text with its first `size` bytes; empty where nothing of it fits, or it has other parts."""
    content = item.content
    if isinstance(content, list) and len(content) == 1 and not isinstance(content[0], str):
        content = content[0].text  # One part of text is the same prompt as the text itself.
    if not isinstance(content, str) or (isinstance(item, ResponsesItem) and item.type != "message"):
        return Raw()
    text = _text(content, size)
    if not text:
        return Raw()
    fields = FIELDS.decode(raw)
    fields.pop("tool_calls", None)
    return Raw(msgspec.json.encode({**fields, "content": text}))


def _text(text: str, size: int) -> Raw:
    """Return the first `size` bytes of a text, whole characters, as JSON; empty where there are none."""
    short = text.encode()[: max(0, size)].decode("utf-8", "ignore")
    return Raw(msgspec.json.encode(short)) if short else Raw()


def _shared(one: bytes, other: bytes, size: int) -> int:
    """Return how many of the first `size` bytes two texts share."""
    reach = range(1, min(size, len(one), len(other)) + 1)
    return bisect_left(reach, True, key=lambda length: one[:length] != other[:length])

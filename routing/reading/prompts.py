"""Prompts that are no conversation: text, token ids, something chat-shaped, or a batch of these."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Annotated, cast

from msgspec import Meta

from routing.reading.conversation import Message, write_messages

TOKENS = b"\xf9"
"""Before token ids, four bytes each."""
NEXT = b"\xf8"
"""Between the prompts of a batch."""

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Row = list[TokenId | Message]
"""Token ids, or the messages of a chat: one prompt in either case."""
Prompt = str | TokenId | Message | Row
Prompts = str | Message | list[str | TokenId | Message | Row] | None


def write_prompts(out: list[bytes], prompts: Prompts) -> int:
    """Append one prompt or a batch of them. Returns how many they are."""
    each = _apart(prompts)
    for place, prompt in enumerate(each):
        if place:
            out.append(NEXT)
        _write_prompt(out, prompt)
    return len(each)


def _apart(prompts: Prompts) -> Sequence[Prompt]:
    if prompts is None:
        return ()
    if not isinstance(prompts, list):
        return (prompts,)
    if prompts and isinstance(prompts[0], int | Message):
        return (cast("Row", prompts),)
    return prompts


def _write_prompt(out: list[bytes], prompt: Prompt) -> None:
    if isinstance(prompt, str):
        out.append(prompt.encode())
    elif isinstance(prompt, list):
        _write_row(out, prompt)
    elif isinstance(prompt, Message):
        write_messages(out, (prompt,))


def _write_row(out: list[bytes], row: Row) -> None:
    try:
        out += (TOKENS, array("I", cast("list[int]", row)).tobytes())
    except TypeError:
        # What is neither all ids nor all messages is the engine's to refuse.
        write_messages(out, (element for element in row if isinstance(element, Message)))

"""From what a client sends to the tokens an engine sees: messages rendered as ChatML, texts, token ids.

Rendering is append-only: one more message adds tokens and changes none. Independent of HTTP and of answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from xxhash import xxh3_64_intdigest

from simulator.language import state_of
from simulator.tokens import MESSAGE_END, MESSAGE_START, THOUGHT_END, THOUGHT_START, bytes_of, decode, encode, pack

IMAGE_TOKENS = 64
"""What one image costs; few enough for tests, many enough to fill blocks."""

MARKS = {"<think>": THOUGHT_START, "</think>": THOUGHT_END}

THOUGHT_MARKS = re.compile("(</?think>)")


class Opening(StrEnum):
    """How a template begins an answer."""

    PLAIN = "plain"
    """A model without reasoning."""
    THOUGHT = "thought"
    """The thoughts are opened; the model closes them."""
    NO_THOUGHT = "no_thought"
    """They are opened and closed: nothing is thought."""


OPENINGS: Mapping[Opening, tuple[int, ...]] = {
    Opening.PLAIN: (),
    Opening.THOUGHT: (THOUGHT_START,),
    Opening.NO_THOUGHT: (THOUGHT_START, THOUGHT_END),
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine computes, and what the model goes on from.

    `state` is the model's after the last token, `answer_state` the one in which the answer begins, and `answered` how
    many of its tokens the prompt holds already: an answer may be there to be continued. `text` is what `echo` repeats,
    `prefix_text` what is there of the answer, and `thought` how many tokens of thoughts that are open; None where none
    are.
    """

    tokens: tuple[int, ...]
    state: int
    answer_state: int
    answered: int = 0
    text: str = ""
    prefix_text: str = ""
    thought: int | None = None
    is_chat: bool = True
    """An answer to a conversation ends by itself; a bare text goes on for ever."""


class _Rendering:
    """Tokens and text, growing together."""

    def __init__(self, seed: int) -> None:
        self.tokens: list[int] = []
        self.state = seed

    def add(self, text: str) -> None:
        encoded = text.encode()
        self.tokens += encode(encoded)
        self.state = state_of(encoded, self.state)

    def mark(self, special: int) -> None:
        self.tokens.append(special)
        self.state = state_of(bytes_of(special), self.state)

    def picture(self, url: str) -> None:
        """An image's tokens follow from where it is: nothing is ever fetched."""
        seed = xxh3_64_intdigest(url.encode())
        self.tokens += [(seed + index) & 0xFFFFFFFF for index in range(IMAGE_TOKENS)]
        self.state = state_of(url.encode(), self.state)


def prompt_of_text(text: str, seed: int) -> Prompt:
    """A bare text, as for completions and embeddings. Raises UnicodeEncodeError for invalid text."""
    rendering = _Rendering(seed)
    rendering.add(text)
    return Prompt(tuple(rendering.tokens), rendering.state, rendering.state, text=text, is_chat=False)


def tokens_of(text: str) -> list[int]:
    """Those of a text in which the marks of thoughts are what they are in an answer. Raises UnicodeEncodeError."""
    return [token for part in THOUGHT_MARKS.split(text) for token in _tokens_of_part(part)]


def _tokens_of_part(part: str) -> list[int]:
    return [MARKS[part]] if part in MARKS else encode(part.encode())


def prompt_of_tokens(tokens: Sequence[int], seed: int) -> Prompt:
    """Token ids, taken as they are; those of a conversation are known for what they are by their special tokens."""
    text = decode(tokens)
    state = state_of(b"".join(map(bytes_of, tokens)), seed)
    opening = (MESSAGE_START, *encode(b"assistant\n"))
    begins_at = max((index for index, token in enumerate(tokens) if token == MESSAGE_START), default=len(tokens))
    answer_at = begins_at + len(opening)
    if tuple(tokens[begins_at:answer_at]) != opening:
        return Prompt(tuple(tokens), state, state, text=text, is_chat=False)
    return _prompt_of_answer(tokens, answer_at, seed)


def _prompt_of_answer(tokens: Sequence[int], answer_at: int, seed: int) -> Prompt:
    """A conversation whose answer begins at this token, with thoughts or without."""
    opening_ids = tuple(tokens[answer_at : answer_at + 2])
    opening = next(each for each in reversed(Opening) if opening_ids[: len(OPENINGS[each])] == OPENINGS[each])
    answer_at += len(OPENINGS[opening])
    own = list(tokens[answer_at:])
    thinks = opening is Opening.THOUGHT and THOUGHT_END not in own
    prefix_text = own[own.index(THOUGHT_END) + 1 :] if THOUGHT_END in own else own
    return Prompt(
        tuple(tokens),
        state_of(b"".join(map(bytes_of, tokens)), seed),
        state_of(b"".join(map(bytes_of, tokens[:answer_at])), seed),
        0 if thinks else len(prefix_text),
        decode(tokens),
        prefix_text="" if thinks else decode(prefix_text),
        thought=len(own) if thinks else None,
    )


def prompt_of_messages(
    messages: Sequence[Mapping[str, Any]],
    seed: int,
    *,
    tools: Sequence[Any] = (),
    open_answer: bool = True,
    continues: bool = False,
    opening: Opening = Opening.PLAIN,
) -> Prompt:
    """A conversation; `open_answer` begins the assistant's next message, `continues` leaves the last one open.

    Of a message that is left open the thoughts are lost, as with most templates.
    """
    rendering = _Rendering(seed)
    if tools:
        rendering.mark(MESSAGE_START)
        rendering.add("system\n")
        rendering.add(json.dumps(tools, sort_keys=True))
        rendering.mark(MESSAGE_END)
    for message in messages[:-1] if continues else messages:
        _render_message(rendering, message)
        rendering.mark(MESSAGE_END)
        rendering.add("\n")
    if open_answer or continues:
        rendering.mark(MESSAGE_START)
        rendering.add("assistant\n")
        for mark in OPENINGS[Opening.NO_THOUGHT if continues and opening is Opening.THOUGHT else opening]:
            rendering.mark(mark)
    answer_state, begins_at = rendering.state, len(rendering.tokens)
    text = ""
    if continues:
        text = "".join(text_parts(messages[-1].get("content")))
        rendering.add(text)
    thought = 0 if open_answer and not continues and opening is Opening.THOUGHT else None
    answered = len(rendering.tokens) - begins_at
    return Prompt(tuple(rendering.tokens), rendering.state, answer_state, answered, text, text, thought)


def _render_message(rendering: _Rendering, message: Mapping[str, Any]) -> None:
    rendering.mark(MESSAGE_START)
    rendering.add(f"{message.get('role', 'user')}\n")
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        if url := image_url(part):
            rendering.picture(url)
        for text in text_parts([part]):
            rendering.add(text)
    for key in ("tool_calls", "tool_call_id"):
        if message.get(key):
            rendering.add(json.dumps(message[key], sort_keys=True))


def text_parts(content: Any) -> list[str]:
    """The texts in a message's content, whichever API's words it uses."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in content if isinstance(content, list) else []:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return texts


def image_url(part: Any) -> str | None:
    """Where a content part's image is, in the words of any API; None for other parts."""
    if not isinstance(part, dict):
        return None
    source = part.get("image_url") or part.get("source") if "image" in str(part.get("type")) else None
    if isinstance(source, dict):
        return str(source.get("url") or source.get("data") or "image")
    return None if source is None else str(source)


class Chain:
    """Chained hashes of a prompt's full blocks, going on into its answer as that becomes known."""

    def __init__(self, seed: int, tokens: Sequence[int], block_size: int) -> None:
        self._block_size = block_size
        self._parent = seed
        self._rest: list[int] = []
        self.blocks: list[int] = []
        self.extend(tokens)

    @property
    def tokens(self) -> int:
        """How many tokens it has seen."""
        return len(self.blocks) * self._block_size + len(self._rest)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        size = self._block_size
        self._rest += tokens
        full_blocks = len(self._rest) // size
        packed = pack(self._rest[: full_blocks * size])
        for start in range(0, len(packed), 8 * size):
            self._parent = xxh3_64_intdigest(packed[start : start + 8 * size], self._parent)
            self.blocks.append(self._parent)
        del self._rest[: full_blocks * size]


def seed_of(*parts: str) -> int:
    """One seed for a chain, from what isolates one cache entry from an equal one: model, adapter, salt."""
    seed = 0
    for part in parts:
        seed = xxh3_64_intdigest(part.encode("utf-8", "surrogatepass"), seed)
    return seed

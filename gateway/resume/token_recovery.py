"""Continue an answer behind its reasoning, by token ids: chat templates drop reasoning, a prompt of ids keeps it.

vLLM takes a chat's prompt as ids (`kv_transfer_params.prompt_token_ids`), and its parsers see by them where reasoning
stands. The ids are requested from the pod that is to continue: those of the prompt from its chat API, those of the
delivered output from its tokenizer. Knows the marks that most models put around reasoning; others are not resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from gateway.resume.delivered import UNREADABLE, Event, Said
from gateway.resume.splice import ChoicesStitch, Differs, Joint, MessagesStitch
from routing.reading.prefilling import DROPPED, LIMITS
from routing.request import Api

START, END = "<think>", "</think>"

SHAPES_PROMPT = frozenset({"response_format"})
"""What shapes an answer, but with some templates its prompt as well."""


class Recall(Struct, frozen=True):
    """Two questions to a pod, in its chat API and to its tokenizer, and how their answers are read."""

    prompt: bytes
    words: bytes
    has_text: bool
    """The thoughts have ended."""


class Recalled(Struct, frozen=True):
    """The prompt and all that was said, as `ids`; the last `tokens` of them are the answer's."""

    ids: tuple[int, ...]
    tokens: int
    thoughts: int
    """Tokens of these, without the marks."""
    end: int
    """The token that ends thoughts."""


class _Prompt(Struct):
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None


class _Words(Struct):
    tokens: list[int] = []
    token_strs: list[str] | None = None


def recall_of(fields: dict[str, Any], said: Said) -> Recall:
    """What is to be asked about this chat, of which so much was said."""
    kept = {name: value for name, value in fields.items() if name not in DROPPED - SHAPES_PROMPT}
    once = dict.fromkeys(LIMITS[Api.CHAT], 1)
    # The end mark is asked for even where it was not said: it tells thoughts from text in what comes.
    words = {"prompt": START + said.thoughts + END + said.text, "add_special_tokens": False, "return_token_strs": True}
    return Recall(
        msgspec.json.encode(kept | once | {"stream": False, "return_token_ids": True, "return_prompt_text": True}),
        msgspec.json.encode({"model": fields.get("model")} | words),
        bool(said.text),
    )


def recalled_from(recall: Recall, prompt: bytes, words: bytes) -> Recalled | None:
    """What the pod's answers say; None where it tells no ids, or knows other marks."""
    try:
        before = msgspec.json.decode(prompt, type=_Prompt)
        told = msgspec.json.decode(words, type=_Words)
    except UNREADABLE:
        return None
    names, ids = told.token_strs or [], told.tokens
    if not before.prompt_token_ids or not before.prompt_text or len(names) != len(ids):
        return None
    if names[:1] != [START] or END not in names:
        return None
    end_at = names.index(END)
    own = ids if recall.has_text else ids[:end_at]
    # Some templates begin the thoughts; else the model has said so itself.
    if before.prompt_text.rstrip().endswith(START):
        own = own[1:]
    return Recalled((*before.prompt_token_ids, *own), len(own), end_at - 1, ids[end_at])


TELLING = ("content", "reasoning", "reasoning_content", "tool_calls")


class Proof:
    """That one pod goes on from the very tokens that it was sent: read in the events of its chat, one by one."""

    def __init__(self, said: Said, recalled: Recalled) -> None:
        self._recalled = recalled
        self._is_of_prompt = False
        self._is_over = said.is_over
        self._has_spoken = bool(said.text)
        self._thinks = not said.text

    def read(self, event: Event) -> None:
        """Raises `Differs` where its pod has read another prompt, or takes thoughts for text."""
        # An engine that knows nothing of such prompts reads the conversation instead, and answers anew.
        if not self._is_of_prompt and event.get("prompt_token_ids") != [*self._recalled.ids]:
            raise Differs
        self._is_of_prompt = True
        for choice in () if self._is_over else event["choices"]:
            self._read_choice(choice)

    def _read_choice(self, choice: Event) -> None:
        delta = choice.get("delta") or {}
        self._thinks = self._thinks and self._recalled.end not in (choice.get("token_ids") or ())
        if self._thinks and delta.get("content"):
            raise Differs
        if self._has_spoken and (delta.get("reasoning") or delta.get("reasoning_content")):
            raise Differs


class RecalledChat(ChoicesStitch):
    """Of one continuation of a chat."""

    def __init__(self, said: Said, joint: Joint, proof: Proof, *, withholds_usage: bool, tells_ids: bool) -> None:
        """`tells_ids`: the client asked for them itself."""
        super().__init__(Api.CHAT, said, joint, withholds_usage=withholds_usage)
        self._proof = proof
        self._tells_ids = tells_ids

    def event(self, event: Event) -> Iterator[bytes]:
        self._proof.read(event)
        yield from super().event(event)

    def _joined(self, choice: Event) -> Event | None:
        if self._tells_ids:
            return super()._joined(choice)
        delta = choice.get("delta") or {}
        is_mark = not any(delta.get(name) for name in TELLING) and choice.get("finish_reason") is None
        joined = super()._joined({**choice, "token_ids": None} if "token_ids" in choice else choice)
        # Without the ids nobody would have been told of it.
        return None if is_mark and not choice.get("logprobs") else joined


class RecalledMessage(MessagesStitch):
    """Of one continuation of a message, in the chat that it is."""

    def __init__(self, said: Said, joint: Joint, proof: Proof) -> None:
        super().__init__(said, joint)
        self._proof = proof

    def event(self, event: Event) -> Iterator[bytes]:
        self._proof.read(event)
        yield from super().event(event)

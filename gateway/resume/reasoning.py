"""An answer that has thought, as the tokens that its model said: what templates leave out, a prompt of ids keeps.

vLLM takes a chat's prompt as ids (`kv_transfer_params.prompt_token_ids`), and its parsers see by them where thoughts
stand. The ids are asked of the pod that is to go on: those of the prompt from its chat API, those of what was said from
its tokenizer. Knows the marks that most models put around their thoughts; others are not gone on with.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.resume.delivered import UNREADABLE, Said
from routing.reading.rewriting import DROPPED, LIMITS
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

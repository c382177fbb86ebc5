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

from gateway.resume.delivered import UNREADABLE, DeliveredOutput, Event
from gateway.resume.splice import ChoicesSplicer, MessagesSplicer, ReplayMismatch, SplicedUsage
from routing.reading.rewriting import DROPPED, LIMITS
from routing.request import Api

THINK_START, THINK_END = "<think>", "</think>"

SHAPES_PROMPT = frozenset({"response_format"})
"""Fields that shape the output, and with some chat templates the prompt as well."""


class TokenRecovery(Struct, frozen=True):
    """Bodies of two calls to a pod, of its chat API and of its tokenizer."""

    prompt: bytes
    tokenize: bytes
    has_text: bool
    """The reasoning has ended."""


class RecoveredTokens(Struct, frozen=True):
    """Prompt and delivered output as token `ids`; the last `tokens` of them are the output's."""

    ids: tuple[int, ...]
    tokens: int
    reasoning_tokens: int
    """Number of reasoning tokens, without the marks."""
    end_id: int
    """Id of the token that ends reasoning."""


class _Prompt(Struct):
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None


class _Words(Struct):
    tokens: list[int] = []
    token_strs: list[str] | None = None


def recovery_calls(fields: dict[str, Any], delivered: DeliveredOutput) -> TokenRecovery:
    """Return the calls for this chat request and its delivered output."""
    kept = {name: value for name, value in fields.items() if name not in DROPPED - SHAPES_PROMPT}
    once = dict.fromkeys(LIMITS[Api.CHAT], 1)
    # The end mark is requested even where it was not generated: it separates reasoning from text in what follows.
    words = {
        "prompt": THINK_START + delivered.reasoning + THINK_END + delivered.text,
        "add_special_tokens": False,
        "return_token_strs": True,
    }
    return TokenRecovery(
        msgspec.json.encode(kept | once | {"stream": False, "return_token_ids": True, "return_prompt_text": True}),
        msgspec.json.encode({"model": fields.get("model")} | words),
        bool(delivered.text),
    )


def read_recovered(recall: TokenRecovery, prompt: bytes, words: bytes) -> RecoveredTokens | None:
    """Read the pod's responses; None where it returns no ids, or its model has other marks."""
    try:
        before = msgspec.json.decode(prompt, type=_Prompt)
        decoded = msgspec.json.decode(words, type=_Words)
    except UNREADABLE:
        return None
    names, ids = decoded.token_strs or [], decoded.tokens
    if not before.prompt_token_ids or not before.prompt_text or len(names) != len(ids):
        return None
    if names[:1] != [THINK_START] or THINK_END not in names:
        return None
    end_at = names.index(THINK_END)
    own = ids if recall.has_text else ids[:end_at]
    # Some chat templates open the reasoning; else the model has generated the mark itself.
    if before.prompt_text.rstrip().endswith(THINK_START):
        own = own[1:]
    return RecoveredTokens((*before.prompt_token_ids, *own), len(own), end_at - 1, ids[end_at])


OUTPUT_FIELDS = ("content", "reasoning", "reasoning_content", "tool_calls")


class TokenPrefixCheck:
    """Checks event by event that a pod continues from exactly the token ids that it was sent."""

    def __init__(self, delivered: DeliveredOutput, recalled: RecoveredTokens) -> None:
        self._recalled = recalled
        self._is_of_prompt = False
        self._is_over = delivered.is_over
        self._has_text = bool(delivered.text)
        self._thinks = not delivered.text

    def check(self, event: Event) -> None:
        """Check one event. Raises `ReplayMismatch` if the pod read another prompt, or takes reasoning for text."""
        # An engine that does not support such prompts reads the messages instead, and answers from the beginning.
        if not self._is_of_prompt and event.get("prompt_token_ids") != [*self._recalled.ids]:
            raise ReplayMismatch
        self._is_of_prompt = True
        for choice in () if self._is_over else event["choices"]:
            self._read_choice(choice)

    def _read_choice(self, choice: Event) -> None:
        delta = choice.get("delta") or {}
        self._thinks = self._thinks and self._recalled.end_id not in (choice.get("token_ids") or ())
        if self._thinks and delta.get("content"):
            raise ReplayMismatch
        if self._has_text and (delta.get("reasoning") or delta.get("reasoning_content")):
            raise ReplayMismatch


class RecoveredChatSplicer(ChoicesSplicer):
    """Splices a continuation by token ids onto a chat; ids that only prove the continuation are taken out."""

    def __init__(
        self,
        delivered: DeliveredOutput,
        joint: SplicedUsage,
        proof: TokenPrefixCheck,
        *,
        withholds_usage: bool,
        returns_ids: bool,
    ) -> None:
        """`returns_ids`: the client has requested token ids itself."""
        super().__init__(Api.CHAT, delivered, joint, withholds_usage=withholds_usage)
        self._proof = proof
        self._returns_ids = returns_ids

    def event(self, event: Event) -> Iterator[bytes]:
        self._proof.check(event)
        yield from super().event(event)

    def _joined(self, choice: Event) -> Event | None:
        if self._returns_ids:
            return super()._joined(choice)
        delta = choice.get("delta") or {}
        is_mark = not any(delta.get(name) for name in OUTPUT_FIELDS) and choice.get("finish_reason") is None
        joined = super()._joined({**choice, "token_ids": None} if "token_ids" in choice else choice)
        # Without the request for ids the pod would have sent no such event.
        return None if is_mark and not choice.get("logprobs") else joined


class RecoveredMessageSplicer(MessagesSplicer):
    """Splices a continuation by token ids, in the chat API, onto a message."""

    def __init__(self, delivered: DeliveredOutput, joint: SplicedUsage, proof: TokenPrefixCheck) -> None:
        super().__init__(delivered, joint)
        self._proof = proof

    def event(self, event: Event) -> Iterator[bytes]:
        self._proof.check(event)
        yield from super().event(event)

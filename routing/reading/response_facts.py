"""What a pod's response reports beside its text: usage, finish reason, id. Of whole responses and of single events.

A whole response of chat or completions is parsed once, for these facts and for the canonical bytes of what it
generated.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from routing.reading.answers import NO_ANSWER, AnsweredMessage, answer_bytes, message_bytes
from routing.request import Api, Usage


class AnswerFacts(Struct, frozen=True, gc=False):
    """What an answer, or one event of its stream, tells. None where it does not."""

    usage: Usage | None = None
    finish_reason: str | None = None
    """In the engine's own words, which differ from API to API."""
    response_id: str | None = None


NO_FACTS = AnswerFacts()


class CachedTokens(Struct):
    cached_tokens: int | None = None


class UsageTold(Struct):
    """Usage in the words of all APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: CachedTokens | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Choice(Struct):
    finish_reason: str | None = None


class Incomplete(Struct):
    reason: str | None = None


class Stop(Struct):
    stop_reason: str | None = None


class Told(Struct):
    """An answer or an event, in the words of all APIs."""

    id: str | None = None
    usage: UsageTold | None = None
    choices: list[Choice] | None = None
    status: str | None = None
    incomplete_details: Incomplete | None = None
    stop_reason: str | None = None
    delta: Stop | str | None = None
    response: Told | None = None
    message: Told | str | None = None


TOLD = msgspec.json.Decoder(Told)

ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})
"""Status words of a response that has ended."""


def read_facts(api: Api, told: bytes) -> AnswerFacts:
    """The facts in a whole JSON answer, or in the JSON of one event. Nothing where it is not as the API says."""
    try:
        answer = TOLD.decode(told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NO_FACTS
    inner = answer.response or (answer.message if isinstance(answer.message, Told) else None) or answer
    stop = answer.delta.stop_reason if isinstance(answer.delta, Stop) else None
    return AnswerFacts(usage_of(api, inner.usage), stop or _finish_reason(inner), inner.id)


def read_usage(api: Api, told: bytes) -> Usage | None:
    """The usage in a whole JSON answer or in one event."""
    return read_facts(api, told).usage


def _finish_reason(answer: Told) -> str | None:
    if answer.choices:
        return next((choice.finish_reason for choice in answer.choices if choice.finish_reason), None)
    if answer.status in ENDED:
        return (answer.incomplete_details and answer.incomplete_details.reason) or answer.status
    return answer.stop_reason


def usage_of(api: Api, told: UsageTold | None) -> Usage | None:
    """Usage in one form, whichever API's words told it."""
    if told is None:
        return None
    if told.prompt_tokens is not None:
        return _counted(told.prompt_tokens, told.completion_tokens, told.prompt_tokens_details)
    if told.input_tokens is None:
        return None
    if api is not Api.MESSAGES:
        return _counted(told.input_tokens, told.output_tokens, told.input_tokens_details)
    # Anthropic counts apart what was read from the cache, what was written to it, and the rest.
    read, written = told.cache_read_input_tokens, told.cache_creation_input_tokens
    return _counted(told.input_tokens + (read or 0) + (written or 0), told.output_tokens, CachedTokens(read))


def _counted(prompt: int, completion: int | None, cached: CachedTokens | None) -> Usage | None:
    usage = Usage(prompt, completion or 0, cached.cached_tokens if cached else None)
    if usage.prompt_tokens < 0 or usage.completion_tokens < 0 or (usage.cached_tokens or 0) < 0:
        return None
    return usage


class WholeChoice(Struct, gc=False):
    finish_reason: str | None = None
    text: str | None = None
    message: AnsweredMessage | None = None


class Whole(Struct, gc=False):
    id: str | None = None
    usage: UsageTold | None = None
    choices: list[WholeChoice] = []


WHOLE = msgspec.json.Decoder(Whole)


def read_whole(api: Api, told: bytes) -> tuple[AnswerFacts, bytes]:
    """The facts in an answer, and the canonical bytes of what it generated; as `read_facts` and `answer_bytes` say."""
    if api is not Api.CHAT and api is not Api.COMPLETIONS:
        return read_facts(api, told), answer_bytes(api, told, stream=False)
    try:
        answer = WHOLE.decode(told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return read_facts(api, told), answer_bytes(api, told, stream=False)
    choices = answer.choices
    ended = next((choice.finish_reason for choice in choices if choice.finish_reason), None)
    facts = AnswerFacts(usage_of(api, answer.usage), ended, answer.id)
    if len(choices) != 1:
        return facts, NO_ANSWER
    return facts, message_bytes(choices[0].message) if api is Api.CHAT else (choices[0].text or "").encode()

"""A whole answer of chat or plain completions, parsed once: what it tells and what it generated.

These are most answers that are not streamed. Any other, and one that is not as these APIs say, is read by its parts.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from routing.reading.answers import NO_ANSWER, AnsweredMessage, answer_bytes, message_bytes
from routing.reading.tellings import AnswerFacts, UsageTold, read_facts, usage_of
from routing.request import Api


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

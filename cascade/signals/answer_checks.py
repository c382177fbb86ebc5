"""What is plainly wrong with an answer that has ended: broken form, a refusal, a loop, an end that came too soon.

Certain faults, no measure of quality: an answer with any of them escalates, whatever its log-probabilities are. Pure,
and linear in the answer, of which the first and last `MAX_CHARACTERS` characters count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cascade.signals.json_schema import conforms

MAX_CHARACTERS = 65_536

NO_SCHEMA = True
"""What any JSON value fits."""


class AnswerFault(StrEnum):
    """Why an answer is not good enough."""

    EMPTY = "empty"
    INVALID_JSON = "invalid_json"
    SCHEMA = "schema"
    TOOL_CALL = "tool_call"
    REFUSAL = "refusal"
    REPETITION = "repetition"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class CompleteAnswer:
    """A complete answer, and the form that was requested."""

    text: str = ""
    calls: Sequence[str] = ()
    """The arguments of its tool calls, as the model wrote them."""
    finish_reason: str | None = None
    is_json_requested: bool = False
    schema: object = NO_SCHEMA
    """Of the text, where JSON was requested."""
    call_schemas: Sequence[object] = ()
    """Of the calls in their order, as far as they are known."""


def answer_faults(answer: CompleteAnswer) -> tuple[AnswerFault, ...]:
    """All that is wrong with it, in the order of the list above."""
    text = answer.text.strip()
    found: list[AnswerFault] = []
    if not text and not answer.calls:
        found.append(AnswerFault.EMPTY)
    if answer.is_json_requested and text:
        found += _json_faults(text, answer.schema)
    if not all(map(_is_call, answer.calls, _schemas(answer))):
        found.append(AnswerFault.TOOL_CALL)
    if not answer.calls and not answer.is_json_requested and is_refusal(text):
        found.append(AnswerFault.REFUSAL)
    if has_repetition(text):
        found.append(AnswerFault.REPETITION)
    if answer.finish_reason == "length":
        found.append(AnswerFault.LENGTH)
    return tuple(found)


def _schemas(answer: CompleteAnswer) -> list[object]:
    known = list(answer.call_schemas[: len(answer.calls)])
    return known + [NO_SCHEMA] * (len(answer.calls) - len(known))


def _json_faults(text: str, schema: object) -> list[AnswerFault]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return [AnswerFault.INVALID_JSON]
    return [] if conforms(value, schema) else [AnswerFault.SCHEMA]


def _is_call(arguments: str, schema: object) -> bool:
    """Arguments are a JSON object of the tool's shape; none at all is an empty one."""
    try:
        value = json.loads(arguments or "{}", parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and conforms(value, schema)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:sorry|afraid|unable to|not able to)|i (?:can(?:no|')t|cannot|won't|will not) (?:help|assist|"
    r"answer|provide|comply|do that|fulfil)|as an ai(?: language)? model|i (?:don't|do not) (?:know|have (?:enough|"
    r"access))|(?:unable|not able) to (?:help|assist|answer|provide))",
    re.IGNORECASE,
)
REFUSAL_CHARACTERS = 160
"""Characters in which a refusal is looked for: further on the words may be quoted, as in a letter."""


def is_refusal(text: str) -> bool:
    """Whether the answer opens by declining, or by stating a lack of knowledge."""
    return REFUSAL.search(text[:REFUSAL_CHARACTERS].replace("\u2019", "'")) is not None


PERIODS = (*range(1, 33), 40, 48, 56, 64, 80, 96, 112, 128)
"""Words of a loop that are looked for."""
MIN_REPEATS = 4
MIN_LOOP_WORDS = 16
"""Words that a loop must fill before it counts: three short lines alike are a list."""
MAX_RUN = 200
"""Equal characters one after the other, outside of rules drawn in text."""


def has_repetition(text: str) -> bool:
    """Whether the answer ends in a loop: its last words are the same few, `MIN_REPEATS` times or more."""
    tail = text[-MAX_CHARACTERS:]
    words = tail.split()[-1024:]
    if any(_loops(words, period) for period in PERIODS):
        return True
    last = tail[-MAX_RUN:]
    return len(last) == MAX_RUN and len(set(last)) == 1 and last[0] not in "-=_*#~ \n"


def _loops(words: Sequence[str], period: int) -> bool:
    length = max(period * MIN_REPEATS, MIN_LOOP_WORDS)
    if len(words) < length:
        return False
    tail = words[-length:]
    return all(word == tail[at - period] for at, word in enumerate(tail) if at >= period)

"""OpenAI's responses: typed events of items, or the items themselves."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gateway.cascades.answers.ends import LENGTH, STOP
from gateway.cascades.answers.entries import Entry, of_entries
from gateway.cascades.evidence import Evidence


class Part(Struct, gc=False):
    text: str | None = None
    logprobs: list[Entry] | None = None


class Item(Struct, gc=False):
    type: str = ""
    content: list[Part] | None = None
    arguments: str | None = None


class Incomplete(Struct, gc=False):
    reason: str | None = None


class Response(Struct, gc=False):
    status: str = ""
    incomplete_details: Incomplete | None = None
    output: list[Item] = []


class ResponseEvent(Struct, gc=False):
    type: str = ""
    delta: str | None = None
    output_index: int = 0
    logprobs: list[Entry] | None = None
    response: Response | None = None


RESPONSE = msgspec.json.Decoder(Response)
RESPONSE_EVENT = msgspec.json.Decoder(ResponseEvent)

REASONING = frozenset({"response.reasoning_text.delta", "response.reasoning_summary_text.delta"})


def hear_response_event(told: bytes, evidence: Evidence) -> None:
    """Take in one event."""
    event = RESPONSE_EVENT.decode(told)
    if event.type == "response.output_text.delta":
        evidence.answer += of_entries(event.logprobs or ())
        evidence.text.append(event.delta or "")
        evidence.pieces += 1
    elif event.type == "response.function_call_arguments.delta":
        evidence.arguments.setdefault(event.output_index, []).append(event.delta or "")
        evidence.pieces += 1
    elif event.type in REASONING:
        evidence.reasoning += of_entries(event.logprobs or ())
        evidence.reasoning_pieces += 1
    elif event.response is not None:
        evidence.finish_reason = _ended(event.response) or evidence.finish_reason


def hear_response(body: bytes, evidence: Evidence) -> None:
    """Take in all of an answer."""
    response = RESPONSE.decode(body)
    for at, item in enumerate(response.output):
        if item.type == "function_call":
            evidence.arguments[at] = [item.arguments or ""]
        for part in item.content or () if item.type == "message" else ():
            evidence.answer += of_entries(part.logprobs or ())
            evidence.text.append(part.text or "")
    evidence.finish_reason = _ended(response)


def _ended(response: Response) -> str | None:
    why = response.incomplete_details.reason if response.incomplete_details else None
    if response.status == "completed":
        return STOP
    return LENGTH if response.status == "incomplete" and why in {None, "max_output_tokens", "max_tokens"} else why

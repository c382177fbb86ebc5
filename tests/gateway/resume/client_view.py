"""What a client makes of a stream, event by event; a stream that is not well-formed fails the test that reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from routing.request import Api
from tests.gateway.resume.teller import Event


@dataclass
class Read:
    """What a client makes of a stream."""

    text: str = ""
    endings: list[object] = field(default_factory=list)
    usage: list[Event] = field(default_factory=list)
    ids: set[object] = field(default_factory=set)
    opened: int = 0
    """How often an answer began: a role, a message, a block, an item."""
    closed: list[object] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


def read(api: Api, reported: bytes) -> Read:
    """Every event is well-formed, or this fails."""
    made = Read()
    assert reported.endswith(b"\n\n")
    numbers: list[int] = []
    for raw in reported[:-2].split(b"\n\n"):
        data = raw.split(b"\n")[-1]
        assert data.startswith(b"data: ")
        if data == b"data: [DONE]":
            made.closed.append("[DONE]")
            continue
        event = json.loads(data[6:])
        if "type" in event:
            assert raw.startswith(b"event: " + event["type"].encode() + b"\n")
        if "sequence_number" in event:
            numbers.append(event["sequence_number"])
        _add(api, made, event)
    assert numbers == [*range(len(numbers))]
    return made


def _add(api: Api, made: Read, event: Event) -> None:
    match api:
        case Api.MESSAGES:
            _add_message(made, event)
        case Api.RESPONSES:
            _add_response(made, event)
        case _:
            _add_choice(made, event)


def _add_choice(made: Read, event: Event) -> None:
    made.ids.add((event["id"], event["created"], event["object"]))
    made.usage += [event["usage"]] if event.get("usage") else []
    for choice in event["choices"]:
        delta = choice.get("delta", {})
        made.opened += "role" in delta
        made.opened += choice.get("prompt_token_ids") is not None
        text = delta.get("content") or choice.get("text") or ""
        made.text += text
        if choice.get("logprobs") and text:
            made.offsets += choice["logprobs"]["text_offset"]
        if choice["finish_reason"] is not None:
            made.endings.append(choice["finish_reason"])


def _add_message(made: Read, event: Event) -> None:
    kind = event["type"]
    made.opened += kind in {"message_start", "content_block_start"}
    if kind == "content_block_delta":
        made.text += event["delta"]["text"]
    elif kind == "message_delta":
        made.endings.append(event["delta"])
        made.usage.append(event["usage"])
    elif kind in {"content_block_stop", "message_stop"}:
        made.closed.append((kind, event.get("index")))


def _add_response(made: Read, event: Event) -> None:
    kind = event["type"]
    if kind == "response.output_text.delta":
        made.text += event["delta"]
    made.opened += kind in {"response.created", "response.output_item.added", "response.content_part.added"}
    if kind.endswith(".done"):
        made.closed.append({name: value for name, value in event.items() if name != "sequence_number"})
    made.ids |= {event[name] for name in ("item_id", "output_index") if name in event}
    if kind == "response.completed":
        response = event["response"]
        made.ids.add(response["id"])
        made.endings.append((response["status"], response["incomplete_details"], response["output"]))
        made.usage.append(response["usage"])

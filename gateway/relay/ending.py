"""The last events of a stream that a limit ends: as if the answer had reached its maximum, in the format of its API.

Any client sees a complete answer of finish reason `length`, `max_tokens` or `incomplete`; `hearth_reason` has the
gateway's reason. What has to be closed is read from the events that the client was sent. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from routing.rejection import Reason
from routing.request import Api, Usage

Event = dict[str, Any]

REASON_FIELD = "hearth_reason"

DONE = b"data: [DONE]\n\n"

HEAD_FIELDS = ("id", "object", "created", "model", "system_fingerprint")


def last_events(api: Api, sent: bytes, usage: Usage, *, reason: Reason, sequences: int, includes_usage: bool) -> bytes:
    """Return the events that end a stream of which the client has been sent `sent`.

    `includes_usage`: the client has requested the usage event.
    """
    events = _dicts([*_events(sent)])
    match api:
        case Api.MESSAGES:
            return b"".join(map(_named, _end_message(events, usage, reason)))
        case Api.RESPONSES:
            return b"".join(map(_named, _numbered(events, _end_response(events, usage, reason))))
        case _:
            ends = _end_choices(api, events, usage if includes_usage else None, reason, sequences)
            return b"".join(map(_plain, ends)) + DONE


def _dicts(value: object) -> list[Event]:
    """Return the objects of a list; empty for anything else: a pod may send what its API does not have."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _events(sent: bytes) -> Iterator[Any]:
    """Read the events, without those that are not JSON: the last one may be half an event."""
    for line in sent.splitlines():
        if line.startswith(b"data:"):
            try:
                yield json.loads(line[5:])
            except (ValueError, RecursionError):
                continue


def _plain(event: Event) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def _named(event: Event) -> bytes:
    return f"event: {event['type']}\n".encode() + _plain(event)


# -- chat and completions ----------------------------------------------------------------------------------------------


def _end_choices(api: Api, events: list[Event], usage: Usage | None, reason: Reason, sequences: int) -> Iterator[Event]:
    head = {word: value for word, value in (events[-1] if events else {}).items() if word in HEAD_FIELDS}
    ended = [choice.get("index") for event in events for choice in _dicts(event.get("choices")) if _has_ended(choice)]
    nothing: Event = {"delta": {}} if api is Api.CHAT else {"text": ""}
    choices = [
        {"index": index, **nothing, "logprobs": None, "finish_reason": "length"}
        for index in range(sequences)
        if index not in ended
    ]
    yield {**head, "choices": choices, REASON_FIELD: reason.value}
    if usage is not None:
        prompt, output = usage.prompt_tokens, usage.completion_tokens
        counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        yield {**head, "choices": [], "usage": counts}


def _has_ended(choice: Event) -> bool:
    return choice.get("finish_reason") is not None


# -- messages ----------------------------------------------------------------------------------------------------------


def _end_message(events: list[Event], usage: Usage, reason: Reason) -> Iterator[Event]:
    of_blocks = [event for event in events if str(event.get("type")).startswith("content_block_")]
    # The end of a block is held until the next event has come (`sse.py`), so the client has not been sent it.
    if of_blocks and not any(event.get("type") == "message_delta" for event in events):
        yield {"type": "content_block_stop", "index": of_blocks[-1].get("index", 0)}
    delta = {"stop_reason": "max_tokens", "stop_sequence": None}
    counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    yield {"type": "message_delta", "delta": delta, "usage": counts, REASON_FIELD: reason.value}
    yield {"type": "message_stop"}


# -- responses ---------------------------------------------------------------------------------------------------------


def _numbered(events: list[Event], ends: Iterable[Event]) -> Iterator[Event]:
    numbers = [event.get("sequence_number", 0) for event in events]
    number = max([each for each in numbers if isinstance(each, int)], default=-1)
    for at, event in enumerate(ends, number + 1):
        yield {**event, "sequence_number": at}


def _end_response(events: list[Event], usage: Usage, reason: Reason) -> Iterator[Event]:
    of_items = [event for event in events if isinstance(event.get("item"), dict)]
    done = [event["item"] for event in of_items if event.get("type") == "response.output_item.done"]
    started = [event for event in of_items if event.get("type") == "response.output_item.added"]
    if len(started) > len(done):
        opened = started[-1]
        item = {**opened["item"], "status": "incomplete"}
        where = {"item_id": item.get("id"), "output_index": opened.get("output_index", 0)}
        yield from _end_content(events, item, where)
        yield {"type": "response.output_item.done", "output_index": where["output_index"], "item": item}
        done.append(item)
    prompt, output = usage.prompt_tokens, usage.completion_tokens
    started_as: Event = next((event["response"] for event in events if isinstance(event.get("response"), dict)), {})
    response = {
        **started_as,
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": done,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + output,
        },
    }
    yield {"type": "response.incomplete", "response": response, REASON_FIELD: reason.value}


def _end_content(events: list[Event], item: Event, where: Event) -> Iterator[Event]:
    """Close what is open inside an item, and set the item's content to what was sent of it."""
    deltas = [
        event for event in events if event.get("item_id") == item.get("id") and isinstance(event.get("delta"), str)
    ]
    text = "".join(event["delta"] for event in deltas)
    if item.get("type") == "function_call":
        item["arguments"] = text
        yield {"type": "response.function_call_arguments.done", **where, "arguments": text, "name": item.get("name")}
    elif item.get("type") == "message" and deltas:
        part: Event = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
        item["content"] = [part]
        at = {**where, "content_index": deltas[-1].get("content_index", 0)}
        yield {"type": "response.output_text.done", **at, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **at, "part": part}

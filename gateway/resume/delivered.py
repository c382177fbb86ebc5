"""The output of one answer that a client has been sent, read from its events.

Read once, when the stream was cut. A run of events is recorded as one event with all of their texts: how many they were
follows from the number of events that the client was sent in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from routing.reading.responses import ReportedUsage, usage_of
from routing.request import Api, Usage

Event = dict[str, Any]

END = b"\n\n"

DONE = b"[DONE]"

JSON_OBJECT = msgspec.json.Decoder(dict[str, Any])

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

CALL_TYPES = frozenset({"tool_use", "server_tool_use", "function_call", "custom_tool_call", "mcp_call"})
"""Types of blocks and items that are calls, in Anthropic's and OpenAI's APIs."""


class DeliveredOutput(Struct, frozen=True):
    """Delivered output. `events` are without those whose tokens have to be generated again."""

    api: Api
    raw: bytes
    events: tuple[Event, ...]
    event_count: int
    """Number of these events, before runs of them became one."""
    text: str = ""
    reasoning: str = ""
    """Reasoning of a chat or a message; of a response only `has_reasoning` is known."""
    has_call: bool = False
    has_reasoning: bool = False
    tokens: int = 0
    """Number of tokens: one for each event that has any, unless events list token ids."""
    token_ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    """Where the first event reports their number, as a message does."""
    is_over: bool = False
    """All of the text was delivered, though not all events behind it."""
    has_end_token: bool = False
    """The last token is the end-of-sequence token, which has no text."""

    @property
    def first_event(self) -> Event:
        """The first event, which has the id of the answer; empty where there is none."""
        return self.events[0] if self.events else {}

    def last_of_type(self, *types: str) -> Event | None:
        """Return the last event of one of these types, None where there is none."""
        return next((event for event in reversed(self.events) if event.get("type") in types), None)


class EventContent(Struct, frozen=True):
    """What one event adds to the answer."""

    text: str = ""
    reasoning: str = ""
    is_call: bool = False
    is_reasoning: bool = False
    has_token: bool = False
    ends: bool = False
    token_ids: tuple[int, ...] | None = None

    @property
    def adds_no_text(self) -> bool:
        """Whether its token has added no text yet: half a character, or the beginning of a stop string."""
        return self.has_token and not (self.text or self.is_reasoning or self.is_call or self.ends)


def read_delivered(api: Api, kept: bytes, passed: int, *, withholds_usage: bool) -> DeliveredOutput:
    """Read the whole events among the recorded bytes, of which the client was sent `passed` in all."""
    raws: list[bytes] = []
    events: list[Event] = []
    pieces: list[EventContent] = []
    idle = 0
    for raw, event in _complete_events(kept):
        if "error" in event or event.get("type") == "error" or _was_given_up(event):
            break
        if withholds_usage and is_usage_only(event):
            continue
        idle += not event
        raws.append(raw)
        events.append(event)
        pieces.append(content_of(api, event))
    while events and closes_block(events[-1]):  # It was held for the next event, and never sent.
        raws.pop(), events.pop(), pieces.pop()
    hidden = passed - len(raws)
    while pieces and pieces[-1].adds_no_text:
        raws.pop(), events.pop(), pieces.pop()
    delivered = [event for event in events if event]
    ids = _ids(pieces)
    return DeliveredOutput(
        api=api,
        raw=b"".join(raws),
        events=tuple(delivered),
        event_count=len(raws) + hidden,
        text="".join([piece.text for piece in pieces]),
        reasoning="".join([piece.reasoning for piece in pieces]),
        has_call=any(piece.is_call for piece in pieces),
        has_reasoning=any(piece.is_reasoning for piece in pieces),
        tokens=hidden + sum(piece.has_token for piece in pieces) if ids is None else len(ids),
        token_ids=ids,
        prompt_ids=_prompt_ids(delivered[0]) if delivered else None,
        prompt_tokens=_prompt_tokens(api, delivered[0]) if delivered else None,
        is_over=any(piece.ends for piece in pieces),
        has_end_token=any(piece.ends and piece.has_token and not piece.text for piece in pieces),
    )


def content_of(api: Api, event: Event) -> EventContent:
    """Read one event in the format of its API."""
    match api:
        case Api.MESSAGES:
            return _of_message(event)
        case Api.RESPONSES:
            return _of_response(event)
        case _:
            return _of_choices(event)


def is_usage_only(event: Event) -> bool:
    """Whether an event has usage and no choice."""
    return event.get("choices") == [] and event.get("usage") is not None


def read_usage_of(usage_event: Event, api: Api = Api.CHAT) -> Usage | None:
    """Read usage as an engine reports it, by default in OpenAI's format; None where it is not valid."""
    try:
        return usage_of(api, msgspec.convert(usage_event, ReportedUsage))
    except msgspec.ValidationError:
        return None


def read_event(raw: bytes) -> Event | None:
    """Return the value of one event; empty for a comment and for [DONE], None where it is not a JSON object."""
    lines = [line[5:].strip() for line in raw.splitlines() if line.startswith(b"data:")]
    data = b"\n".join(lines)
    if not data or data == DONE:
        return {}
    try:
        return JSON_OBJECT.decode(data)
    except UNREADABLE:
        return None


def _complete_events(kept: bytes) -> Iterator[tuple[bytes, Event]]:
    """Read whole events, up to the first that is not JSON."""
    at = 0
    while (end := kept.find(END, at)) >= 0:
        raw = kept[at : end + len(END)]
        event = read_event(raw)
        if event is None:
            return
        yield raw, event
        at = end + len(END)


def _was_given_up(event: Event) -> bool:
    """Whether an event ends an answer that the engine has aborted. Such an event was never sent."""
    if event.get("type") == "message_delta":
        return not (event.get("delta") or {}).get("stop_reason")
    return any(choice.get("finish_reason") == "abort" for choice in event.get("choices") or ())


def closes_block(event: Event) -> bool:
    """Whether an event belongs to the end of a message's block, which begins with a signature."""
    kind = event.get("type")
    return kind == "content_block_stop" or (
        kind == "content_block_delta" and event["delta"].get("type") == "signature_delta"
    )


def _of_choices(event: Event) -> EventContent:
    choices = event.get("choices")
    if not choices:
        return EventContent()
    choice = choices[0]
    delta = choice.get("delta") or {}
    ends = choice.get("finish_reason") is not None
    text = delta.get("content") or choice.get("text") or ""
    opens = delta.get("role") is not None and not text and not ends
    thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
    ids = choice.get("token_ids")
    return EventContent(
        text=text,
        reasoning=thought if isinstance(thought, str) else "",
        is_call=bool(delta.get("tool_calls")),
        is_reasoning=bool(thought),
        has_token=not opens,
        ends=ends,
        token_ids=tuple(ids) if isinstance(ids, list) else None,
    )


def _of_message(event: Event) -> EventContent:
    match event.get("type"):
        case "content_block_start":
            kind = event.get("content_block", {}).get("type")
            # A block of reasoning begins empty; an encrypted one is complete at once.
            return EventContent(is_call=kind in CALL_TYPES, is_reasoning=kind == "redacted_thinking")
        case "content_block_delta":
            delta = event.get("delta", {})
            return EventContent(
                text=delta.get("text") or "",
                reasoning=delta.get("thinking") or "",
                is_call="partial_json" in delta,
                is_reasoning="thinking" in delta,
                has_token="signature" not in delta,
            )
        case "content_block_stop" | "message_delta":
            # Behind a block it is not known whether another follows.
            return EventContent(ends=event["type"] == "message_delta")
    return EventContent()


def _of_response(event: Event) -> EventContent:
    kind = str(event.get("type"))
    if kind == "response.output_item.added":
        item = event.get("item", {}).get("type")
        return EventContent(is_call=item in CALL_TYPES, is_reasoning=item == "reasoning")
    if kind == "response.output_text.delta":
        return EventContent(event.get("delta") or "", has_token=True)
    if kind.startswith("response.reasoning") and kind.endswith(".delta"):
        return EventContent(is_reasoning=True, has_token=True)
    if kind.endswith(".delta"):
        return EventContent(is_call=True, has_token=True)
    return EventContent(ends=kind == "response.output_text.done")


def _ids(pieces: list[EventContent]) -> tuple[int, ...] | None:
    """Return the token ids of the answer, where each of its events lists its own."""
    own = [piece.token_ids for piece in pieces if piece.has_token]
    if not own or any(ids is None for ids in own):
        return None
    return tuple(one for ids in own for one in ids or ())


def _prompt_ids(first: Event) -> tuple[int, ...] | None:
    choices = first.get("choices") or [{}]
    ids = first.get("prompt_token_ids") or choices[0].get("prompt_token_ids")
    return tuple(ids) if isinstance(ids, list) else None


def _prompt_tokens(api: Api, first: Event) -> int | None:
    message = first.get("message")
    usage = read_usage_of(message.get("usage") or {}, api) if isinstance(message, dict) else None
    # Some engines report 0 first, and the number at the end.
    return usage.prompt_tokens or None if usage is not None else None

"""Splice a continuation onto a delivered stream: events of another pod in, events of one unbroken answer out.

One splicer per API: one id, one role, one usage, and no character twice. Pure: bytes and values in, bytes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from gateway.resume.delivered import END, UNREADABLE, DeliveredOutput, Event, is_usage_only, read_event, read_usage_of
from routing.request import Api, Usage

DONE_EVENT = b"data: [DONE]\n\n"

DETAILS = ("prompt_tokens_details", "input_tokens_details")

COMPLETION_DETAILS = "completion_tokens_details"

MALFORMED_EVENT = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""Raised for an event that does not have the format of its API."""


class StreamSplicer(Protocol):
    """Splices the events of one pod onto an answer. `api` is the API that the pod answers in."""

    @property
    def api(self) -> Api: ...
    @property
    def joint(self) -> SplicedUsage:
        """Usage of the answer as a whole."""
        ...

    def event(self, event: Event) -> Iterator[bytes]:
        """Return what the client is sent for one event of the pod."""
        ...

    def done(self) -> Iterator[bytes]:
        """Return what the client is sent at [DONE]."""
        ...


class SplicedUsage:
    """Usage of a spliced answer, and its text where both parts meet."""

    def __init__(self, delivered: DeliveredOutput, *, is_full: bool, again: str) -> None:
        """`is_full`: no output of the continuation is sent on; `again`: text that it repeats."""
        self.tokens = (
            delivered.tokens - delivered.has_end_token if (delivered.text or delivered.reasoning) and not again else 0
        )
        """Tokens of the answer that are in the continuation's prompt."""
        has_ended_itself = delivered.is_over and not is_full and delivered.api is Api.RESPONSES
        # Events of that API show the end of the text, but not the token that it ends with.
        self._start_tokens = 0 if again else delivered.tokens + has_ended_itself
        self.thoughts = 0
        """Reasoning tokens in the continuation's prompt."""
        self.is_silent = is_full or delivered.is_over
        self._prompt_tokens = delivered.prompt_tokens
        self._again = again
        self.usage: Usage | None = None
        """Usage of the continuation as its pod reports it."""
        self.whole: Usage | None = None
        """Usage of the whole answer as the client is sent it."""

    @property
    def is_behind(self) -> bool:
        """Whether a replay has not repeated all of the delivered output yet."""
        return False

    @property
    def repeated(self) -> int:
        """Tokens of the answer that were generated once more."""
        return 0

    def new_text(self, text: str) -> str:
        """Return the part of this text that the client does not have."""
        if self.is_silent:
            return ""
        if not self._again:
            return text
        common = 0
        while common < min(len(text), len(self._again)) and text[common] == self._again[common]:
            common += 1
        self._again = self._again[common:] if common == len(text) else ""
        return text[common:]

    def total_usage(self, usage_event: Event) -> Event:
        """Return usage of the whole answer, in the format in which the pod reports its own."""
        self.usage = read_usage_of(usage_event) or self.usage
        asked, answered = (
            ("prompt_tokens", "completion_tokens")
            if "prompt_tokens" in usage_event
            else ("input_tokens", "output_tokens")
        )
        made = 0 if self.is_silent else usage_event.get(answered) or 0
        prompt, unseen = max(0, usage_event[asked] - self.tokens), 0
        if self._prompt_tokens is not None:
            # A busy engine puts several tokens into one event: the excess over the first prompt was delivered.
            prompt, unseen = self._prompt_tokens, max(0, prompt - self._prompt_tokens)
        whole = {**usage_event, asked: prompt, answered: made + self._start_tokens + unseen}
        if "total_tokens" in usage_event:
            whole["total_tokens"] = whole[asked] + whole[answered]
        thought = usage_event.get(COMPLETION_DETAILS)
        if isinstance(thought, dict) and type(thought.get("reasoning_tokens")) is int:
            whole[COMPLETION_DETAILS] = {**thought, "reasoning_tokens": thought["reasoning_tokens"] + self.thoughts}
        for name in DETAILS:
            details = usage_event.get(name)
            if isinstance(details, dict) and details.get("cached_tokens") is not None:
                whole[name] = {**details, "cached_tokens": min(details["cached_tokens"], whole[asked])}
        self.whole = read_usage_of(whole) or self.whole
        return whole


class ReplayMismatch(Exception):  # noqa: N818 - an outcome, not an error
    """A pod's output differs from what was delivered: what follows belongs to another answer."""


def splice_events(stream_splicer: StreamSplicer, events: bytes) -> bytes | None:
    """Return what the client is sent for these whole events; None where one is not an event of the pod's API.

    Raises `ReplayMismatch`.
    """
    out: list[bytes] = []
    try:
        for raw in _split(events):
            event = read_event(raw)
            if event is None:
                return None
            if event:
                out += stream_splicer.event(event)
            elif raw.startswith(b"data:"):
                out += stream_splicer.done()
    except MALFORMED_EVENT:
        return None
    return b"".join(out)


def encode_event(event: Event) -> bytes:
    """Encode an event without a name."""
    return b"data: " + msgspec.json.encode(event) + END


def encode_named_event(event: Event) -> bytes:
    """Encode an event under the name of its type."""
    return b"event: %b\n" % str(event["type"]).encode() + encode_event(event)


def _split(events: bytes) -> Iterator[bytes]:
    at = 0
    while (end := events.find(END, at)) >= 0:
        yield events[at : end + len(END)]
        at = end + len(END)
    if events[at:].strip():
        yield events[at:]


# -- chat and completions ----------------------------------------------------------------------------------------------


CHOICE_FIELDS = ("id", "object", "created", "model", "system_fingerprint")
"""Fields that are the same in every event of an answer."""

PROMPT_FIELDS = ("prompt_token_ids", "prompt_logprobs")
"""Sent once, with the first event; those of the continuation's prompt are taken out."""


class ChoicesSplicer:
    """Splices a continuation onto a chat or a completion."""

    def __init__(self, api: Api, delivered: DeliveredOutput, joint: SplicedUsage, *, withholds_usage: bool) -> None:
        self.api = api
        self.joint = joint
        self._head = {name: delivered.first_event[name] for name in CHOICE_FIELDS if name in delivered.first_event}
        self._has_ended = delivered.is_over
        self._offset = len(delivered.text)
        self._withholds_usage = withholds_usage or any(map(is_usage_only, delivered.events))

    def event(self, event: Event) -> Iterator[bytes]:
        whole = {**{name: value for name, value in event.items() if name not in PROMPT_FIELDS}, **self._head}
        if isinstance(event.get("usage"), dict):
            whole["usage"] = self.joint.total_usage(event["usage"])
        if is_usage_only(event):
            if not self._withholds_usage:
                yield encode_event(whole)
        elif not self._has_ended and (choices := [self._joined(choice) for choice in event["choices"]]) != [None]:
            yield encode_event(whole | {"choices": choices})

    def done(self) -> Iterator[bytes]:
        yield DONE_EVENT

    def _joined(self, choice: Event) -> Event | None:
        """Return a choice as the client is sent it; None where it adds nothing."""
        choice = {name: value for name, value in choice.items() if name not in PROMPT_FIELDS}
        was_delivered, ends = self._cut(choice), choice.get("finish_reason") is not None
        if self.joint.is_silent:
            choice["logprobs"] = None
            choice.pop("token_ids", None)
            if ends:
                choice |= {"finish_reason": "length", "stop_reason": None}
        elif isinstance(choice.get("logprobs"), dict) and choice["logprobs"].get("text_offset"):
            offsets = [at + self._offset for at in choice["logprobs"]["text_offset"]]
            choice["logprobs"] = {**choice["logprobs"], "text_offset": offsets}
        return choice if ends or was_delivered else None

    def _cut(self, choice: Event) -> bool:
        """Take out what is not sent on, or was delivered; return whether anything is left."""
        joint, delta = self.joint, choice.get("delta")
        if delta is None:
            before = choice.get("text") or ""
            choice["text"] = joint.new_text(before)
            return bool(choice["text"]) or not (before or joint.is_silent)
        delta = choice["delta"] = dict(delta)
        opens = delta.pop("role", None) is not None
        before = delta.get("content")
        if before is not None:
            delta["content"] = joint.new_text(before)
        if joint.is_silent:
            delta.pop("reasoning", None), delta.pop("reasoning_content", None), delta.pop("tool_calls", None)
        has_content = any(delta.get(name) for name in ("content", "reasoning", "reasoning_content", "tool_calls"))
        return has_content or not (opens or before or joint.is_silent)


# -- messages ----------------------------------------------------------------------------------------------------------


TEXT, THINKING = "text", "thinking"
"""Types of blocks of a message."""

INPUT_USAGE_FIELDS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""Usage of the prompt, which the first event has reported."""


def input_usage(delivered: DeliveredOutput) -> Event:
    """Return the prompt's usage as the first event of a message has reported it."""
    message = delivered.first_event.get("message") or {}
    return {name: value for name, value in (message.get("usage") or {}).items() if name in INPUT_USAGE_FIELDS}


class MessagesSplicer:
    """Splices a continuation, in the chat API, onto a message. `_block`: index of its open block, None for none."""

    def __init__(self, delivered: DeliveredOutput, joint: SplicedUsage) -> None:
        self.api = Api.CHAT
        self.joint = joint
        self._input = input_usage(delivered)
        self._signature = (delivered.first_event.get("message") or {}).get("id") or ""
        begun, ended = delivered.last_of_type("content_block_start"), delivered.last_of_type("content_block_stop")
        self._next = 0 if begun is None else begun["index"] + 1
        self._block = None if begun is None or (ended and ended["index"] == begun["index"]) else begun["index"]
        self._kind = TEXT if begun is None else begun["content_block"]["type"]
        self._may_think = not delivered.text
        self._call = -1
        self._arguments: list[str] = []
        """Pieces of the arguments of the last call."""
        self._end: Event = {}
        """The choice that has the finish reason."""
        self._has_ended = delivered.last_of_type("message_delta") is not None

    def event(self, event: Event) -> Iterator[bytes]:
        usage = event.get("usage")
        usage_event = self.joint.total_usage(usage) if isinstance(usage, dict) else None
        if is_usage_only(event) and usage_event is not None:
            yield from self._stop(usage_event)
            return
        for choice in event["choices"]:
            if choice.get("finish_reason") is not None:
                self._end = choice
            yield from self._log_event(choice["delta"])

    def done(self) -> Iterator[bytes]:
        yield encode_named_event({"type": "message_stop"})

    def _log_event(self, delta: Event) -> Iterator[bytes]:
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        if thought and not self._may_think:
            raise KeyError("reasoning in the middle of an answer")
        if thought and not self.joint.is_silent:
            yield from self._turn_to({"type": THINKING, "thinking": ""})
            yield self._delta({"type": "thinking_delta", "thinking": thought})
        if text := self.joint.new_text(delta.get("content") or ""):
            yield from self._turn_to({"type": TEXT, "text": ""})
            yield self._delta({"type": "text_delta", "text": text})
        if not self.joint.is_silent:
            for call in delta.get("tool_calls") or ():
                yield from self._emit_call(call)

    def _emit_call(self, call: Event) -> Iterator[bytes]:
        function = call.get("function") or {}
        if call["index"] != self._call:
            self._call, self._arguments = call["index"], []
            yield from self._open({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}})
        if function.get("arguments"):
            self._arguments.append(function["arguments"])
            yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _turn_to(self, block: Event) -> Iterator[bytes]:
        if self._block is None or self._kind != block["type"]:
            yield from self._open(block)

    def _open(self, block: Event) -> Iterator[bytes]:
        yield from self._close()
        self._block, self._next, self._kind = self._next, self._next + 1, block["type"]
        yield encode_named_event({"type": "content_block_start", "index": self._block, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._block is None:
            return
        if self._kind == THINKING:
            # An engine signs with a random number, which it never reads; clients require one.
            yield self._delta({"type": "signature_delta", "signature": self._signature})
        yield encode_named_event({"type": "content_block_stop", "index": self._block})
        self._block = None

    def _delta(self, delta: Event) -> bytes:
        return encode_named_event({"type": "content_block_delta", "index": self._block, "delta": delta})

    def _why(self) -> Event:
        """Return the stop reason: of a complete call `tool_use`, whatever ended the answer behind it."""
        reason, sequence = self._end.get("finish_reason"), self._end.get("stop_reason")
        if self.joint.is_silent or reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if isinstance(sequence, str) and not self._has_complete_call:
            return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
        has_called = reason == "tool_calls" or self._call >= 0
        return {"stop_reason": "tool_use" if has_called else "end_turn", "stop_sequence": None}

    @property
    def _has_complete_call(self) -> bool:
        return self._call >= 0 and is_json("".join(self._arguments))

    def _stop(self, usage: Event) -> Iterator[bytes]:
        if self._has_ended:
            return
        yield from self._close()
        usage_event = (self._input or {"input_tokens": usage["prompt_tokens"]}) | {
            "output_tokens": usage["completion_tokens"]
        }
        yield encode_named_event({"type": "message_delta", "delta": self._why(), "usage": usage_event})


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        msgspec.json.decode(text)
    except UNREADABLE:
        return False
    return True


# -- responses ---------------------------------------------------------------------------------------------------------


OPENING = frozenset({"response.created", "response.queued", "response.in_progress"})

ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})

ADDED = "response.output_item.added"

RESPONSE_FIELDS = ("id", "created_at", "model", "instructions", "max_output_tokens", "previous_response_id")

TEXT_DONE, PART_DONE, ITEM_DONE = (
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
)


IDS = ("id", "call_id")
"""Ids of an item."""


def last_sequence_number(delivered: DeliveredOutput) -> int:
    """Return the last sequence number that the client was sent; -1 before the first."""
    return max((event.get("sequence_number", 0) for event in delivered.events), default=-1)


def first_response(delivered: DeliveredOutput) -> Event:
    """Return the response as the client was first sent it; empty where it was not."""
    return next((event["response"] for event in delivered.events if "response" in event), {})


class ResponsesSplicer:
    """Splices a continuation onto a response: same response and item, numbered on, ending with the whole text."""

    def __init__(self, delivered: DeliveredOutput, joint: SplicedUsage, *, may_be_full: bool) -> None:
        """Where the answer `may_be_full` and its text is over, the continuation shows whether the limit ended it."""
        self.api = Api.RESPONSES
        self.joint = joint
        self._had_ended_itself = delivered.is_over and not may_be_full
        self._texts = [delivered.text]
        self._number = last_sequence_number(delivered)
        self._response = first_response(delivered)
        added = delivered.last_of_type(ADDED)
        self._item: Event | None = None if added is None else added["item"]
        self._index = 0 if added is None else added.get("output_index", 0)
        self._has_part = delivered.last_of_type("response.content_part.added") is not None
        self._done = {kind for kind in (TEXT_DONE, PART_DONE, ITEM_DONE) if delivered.last_of_type(kind) is not None}
        self._their_id: str | None = None
        self._more: list[Event] = []
        """Items behind the one that was cut."""

    def event(self, event: Event) -> Iterator[bytes]:
        kind = event["type"]
        if kind in OPENING:
            return
        if kind in ENDS:
            yield from self._end(event)
        elif kind == ADDED and event["item"].get("type") == "message" and not self._their_id:
            self._their_id = event["item"].get("id")
            if self._item is None:
                self._item = event["item"]
                yield self._numbered(event)
        elif self._is_theirs(event):
            yield from self._of_item(kind, event)
        elif not self.joint.is_silent:
            yield from self._behind(kind, event)

    def done(self) -> Iterator[bytes]:
        return iter(())

    def _is_theirs(self, event: Event) -> bool:
        """Whether an event is about the pod's item that continues the one that was cut."""
        item = event.get("item_id") or (event.get("item") or {}).get("id")
        return item is not None and item == self._their_id

    def _of_item(self, kind: str, event: Event) -> Iterator[bytes]:
        if kind == "response.content_part.added":
            if not self._has_part:
                self._has_part = True
                yield self._numbered({**event, **self._where})
        elif kind == "response.output_text.delta":
            if text := self.joint.new_text(event["delta"]):
                self._texts.append(text)
                yield self._numbered({**event, **self._where, "delta": text})
        elif kind in {TEXT_DONE, PART_DONE, ITEM_DONE}:
            yield from self._finish(kind)

    def _behind(self, kind: str, event: Event) -> Iterator[bytes]:
        """Pass on an event of another item, as a function call, behind the one that was cut."""
        yield from self._finish(ITEM_DONE)
        shift = self._index if self._their_id else self._index + 1
        if kind == ITEM_DONE:
            self._more.append(event["item"])
        yield self._numbered({**event, "output_index": event["output_index"] + shift})

    def _finish(self, last: str) -> Iterator[bytes]:
        """Close what is open of the item that was cut, up to this event type."""
        if self._item is None:
            return
        events: dict[str, Event] = {
            TEXT_DONE: {**self._where, "content_index": 0, "text": self._text, "logprobs": []},
            PART_DONE: {**self._where, "content_index": 0, "part": self._part},
            ITEM_DONE: {"output_index": self._index, "item": self._complete_item("completed")},
        }
        for kind, event in events.items():
            if kind not in self._done:
                self._done.add(kind)
                yield self._numbered({**event, "type": kind})
            if kind == last:
                return

    def _end(self, event: Event) -> Iterator[bytes]:
        yield from self._finish(ITEM_DONE)
        theirs = event["response"]
        output = [*([self._complete_item("completed")] if self._item is not None else []), *self._more]
        whole = {**theirs, **{name: self._response[name] for name in RESPONSE_FIELDS if name in self._response}}
        whole["output"] = output
        if isinstance(theirs.get("usage"), dict):
            whole["usage"] = self.joint.total_usage(theirs["usage"])
        if self._had_ended_itself:
            whole |= {"status": "completed", "incomplete_details": None}
        yield self._numbered({**event, "response": whole})

    @property
    def _where(self) -> Event:
        return {"item_id": (self._item or {}).get("id"), "output_index": self._index}

    @property
    def _text(self) -> str:
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0]

    @property
    def _part(self) -> Event:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": None}

    def _complete_item(self, status: str) -> Event:
        return {**(self._item or {}), "content": [self._part], "status": status}

    def _numbered(self, event: Event) -> bytes:
        self._number += 1
        return encode_named_event({**event, "sequence_number": self._number})

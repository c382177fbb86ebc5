"""An answer requested again from its beginning, where the same request is answered the same.

The replayed answer is compared with what the client was sent: texts, whatever events they came in, and what stands
between them. Ids and signatures, which differ from one request to the next, are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from gateway.resume.delivered import DeliveredOutput, Event, read_usage_of
from gateway.resume.splice import (
    ADDED,
    IDS,
    PROMPT_FIELDS,
    RESPONSE_FIELDS,
    ChoicesSplicer,
    ReplayMismatch,
    SplicedUsage,
    encode_named_event,
    first_response,
    input_usage,
    last_sequence_number,
)
from routing.request import Api

GREEDY_BELOW = 1e-5
"""vLLM samples greedily below this temperature."""


def is_deterministic(api: Api, fields: dict[str, Any]) -> bool:
    """Whether an engine gives the same answer to the same request: it samples greedily, or from the same seed.

    Only fields that the client has set count: the defaults of a model are not known here. Anthropic's API has no seed.
    """
    temperature, seed = fields.get("temperature"), fields.get("seed")
    if isinstance(temperature, int | float) and temperature < GREEDY_BELOW:
        return True
    return fields.get("top_k") == 1 or (api is not Api.MESSAGES and type(seed) is int and seed != NO_SEED)


NO_SEED = -1
"""vLLM's value for no seed."""


Key = tuple[object, ...]
"""Identifies a text of an answer, or what stands between two texts."""


class TextSink(Protocol):
    """Consumes an answer, text by text."""

    @property
    def is_all_new(self) -> bool:
        """Whether everything that follows is new."""
        ...

    def text(self, key: Key, text: str) -> str:
        """Consume a piece of text; return the part of it that is new."""
        ...

    def mark(self, *key: object) -> bool:
        """Consume what stands between texts; return whether it is new."""
        ...


FeedEvent = Callable[[Event, TextSink], object]
"""Feeds all texts and marks of one event to a sink."""


class DeliveredTranscript:
    """The delivered output: texts by their keys, in order; None for what stands between them."""

    is_all_new = True

    def __init__(self) -> None:
        self.received: list[tuple[Key, str | None]] = []
        self._key: Key | None = None
        self._pieces: list[str] = []

    def text(self, key: Key, text: str) -> str:
        if text:
            if key != self._key:
                self._end_text()
                self._key = key
            self._pieces.append(text)
        return text

    def mark(self, *key: object) -> bool:
        self._end_text()
        self.received.append((key, None))
        return True

    def transcript(self) -> list[tuple[Key, str | None]]:
        self._end_text()
        return self.received

    def _end_text(self) -> None:
        if self._key is not None:
            self.received.append((self._key, "".join(self._pieces)))
        self._key, self._pieces = None, []


class ReplayMatcher:
    """Matches the output of one pod against the delivered output."""

    def __init__(self, received: Iterable[Event], walk: FeedEvent) -> None:
        memory = DeliveredTranscript()
        for event in received:
            walk(event, memory)
        self._delivered = memory.transcript()
        self._next = 0
        self._at = 0
        """Characters matched of the next text."""
        self.texts = 0
        """Pieces of text that were repeated, wholly or in part."""

    @property
    def is_all_new(self) -> bool:
        return self._next == len(self._delivered)

    def text(self, key: Key, text: str) -> str:
        """Match a piece of text; return the part of it that is new. Raises `ReplayMismatch`."""
        self.texts += bool(text) and not self.is_all_new
        while text and not self.is_all_new:
            wanted, received = self._delivered[self._next]
            if received is None or wanted != key:
                raise ReplayMismatch
            both = min(len(received) - self._at, len(text))
            if not received.startswith(text[:both], self._at):
                raise ReplayMismatch
            self._at, text = self._at + both, text[both:]
            if self._at == len(received):
                self._next, self._at = self._next + 1, 0
        return text

    def mark(self, *key: object) -> bool:
        """Match what stands between texts; return whether it is new. Raises `ReplayMismatch`."""
        if self.is_all_new:
            return True
        if self._at or self._delivered[self._next] != (key, None):
            raise ReplayMismatch
        self._next += 1
        return False

    def end(self) -> None:
        """End the output. Raises `ReplayMismatch` where more was delivered."""
        if not self.is_all_new:
            raise ReplayMismatch


class ReplayUsage(SplicedUsage):
    """Usage of an answer that is replayed from its beginning: its pod reports that of the whole."""

    def __init__(self, delivered: DeliveredOutput, matcher: ReplayMatcher) -> None:
        super().__init__(delivered, is_full=False, again="")
        self.tokens = self._start_tokens = 0
        self.is_silent = False
        self._delivered_tokens = delivered.tokens
        self._matcher = matcher

    @property
    def is_behind(self) -> bool:
        return not self._matcher.is_all_new

    @property
    def repeated(self) -> int:
        return min(self._matcher.texts, self._delivered_tokens) if self.is_behind else self._delivered_tokens

    def read_usage(self, api: Api, received: Event) -> None:
        """Read usage in the format of this API."""
        self.usage = self.whole = read_usage_of(received, api) or self.usage


# -- texts and marks of an event, by API -------------------------------------------------------------------------------


REASONING_NAMES = ("reasoning", "reasoning_content")
"""Names of the reasoning text, new and old."""

DELTA_TEXTS = (REASONING_NAMES, ("content",), ("refusal",))
"""Texts of a delta, in the order in which they are generated."""

BLOCK_TEXTS = ("text", "thinking", "partial_json")


def feed_choice(choice: Event, sink: TextSink) -> Event | None:
    """Return the new part of a choice, None where it has none."""
    is_new = was_all = sink.is_all_new
    made = dict(choice)
    if (delta := choice.get("delta")) is None:
        made["text"] = sink.text(("text",), choice.get("text") or "")
        says = bool(made["text"])
    else:
        made["delta"] = _feed_delta(delta, sink)
        says = bool(made["delta"])
        is_new = is_new and delta.get("role") is None
    reason = choice.get("finish_reason")
    ends = reason is not None and sink.mark("end", reason)
    if not was_all:
        # It is not known which of these belong to the new part.
        made |= {name: None for name in ("logprobs", "token_ids") if name in made}
    return made if says or ends or is_new else None


def feed_choices(event: Event, sink: TextSink) -> None:
    """Feed all choices of an event to a sink."""
    for choice in event.get("choices") or ():
        feed_choice(choice, sink)


def _feed_delta(delta: Event, sink: TextSink) -> Event:
    made = {name: value for name, value in delta.items() if name not in ("role", "tool_calls")}
    for names in DELTA_TEXTS:
        received = [name for name in names if delta.get(name)]
        if received:
            made |= dict.fromkeys(received, sink.text(names[:1], delta[received[0]]))
    was_all = sink.is_all_new
    calls = [_feed_call(call, sink) for call in delta.get("tool_calls") or ()]
    if any(calls):
        made["tool_calls"] = [call for call in calls if call]
    return made if was_all or any(made.values()) else {}


def _feed_call(call: Event, sink: TextSink) -> Event | None:
    """Return the new part of a call: id and name come once, then pieces of its arguments."""
    was_all = sink.is_all_new
    function, at = call.get("function") or {}, call["index"]
    name = sink.text(("name", at), function.get("name") or "")
    arguments = sink.text(("arguments", at), function.get("arguments") or "")
    if was_all:
        return call
    if name:
        return {**call, "function": {**function, "name": name, "arguments": arguments}}
    return {"index": at, "function": {"arguments": arguments}} if arguments else None


def feed_message_event(event: Event, sink: TextSink) -> Event | None:
    """Return the new part of an event of a message, None where it has none."""
    was_all, new = sink.is_all_new, _feed_message_event(event, sink)
    return event if was_all else new


def _feed_message_event(event: Event, sink: TextSink) -> Event | None:
    kind, delta, block = event["type"], event.get("delta") or {}, event.get("content_block") or {}
    if kind == "ping":
        return None
    name = next((name for name in BLOCK_TEXTS if name in delta), None)
    if name is not None:
        text = sink.text((name, event["index"]), delta[name] or "")
        return {**event, "delta": {**delta, name: text}} if text else None
    what = (delta.get("type"), delta.get("stop_reason"), block.get("type"), block.get("name"))
    return event if sink.mark(kind, event.get("index"), *what) else None


def feed_response_event(event: Event, sink: TextSink) -> Event | None:
    """Return the new part of an event of a response, None where it has none."""
    was_all, new = sink.is_all_new, _feed_response_event(event, sink)
    return event if was_all else new


def _feed_response_event(event: Event, sink: TextSink) -> Event | None:
    kind, delta, item = event["type"], event.get("delta"), event.get("item") or {}
    where = (kind, event.get("output_index"), event.get("content_index"), event.get("summary_index"))
    if isinstance(delta, str):
        text = sink.text(where, delta)
        return {**event, "delta": text, **({"logprobs": []} if "logprobs" in event else {})} if text else None
    return event if sink.mark(*where, item.get("type"), item.get("name")) else None


# -- splicers of a replayed answer -------------------------------------------------------------------------------------


class ChoicesReplay(ChoicesSplicer):
    """Splices a replayed chat or completion."""

    def __init__(self, api: Api, delivered: DeliveredOutput, *, withholds_usage: bool) -> None:
        self._matcher = ReplayMatcher(delivered.events, feed_choices)
        super().__init__(api, delivered, ReplayUsage(delivered, self._matcher), withholds_usage=withholds_usage)
        self._has_ended = False

    def done(self) -> Iterator[bytes]:
        self._matcher.end()
        return super().done()

    def _joined(self, choice: Event) -> Event | None:
        own = {name: value for name, value in choice.items() if name not in PROMPT_FIELDS}
        return feed_choice(own, self._matcher)


class MessagesReplay:
    """Splices a replayed message."""

    def __init__(self, delivered: DeliveredOutput) -> None:
        self.api = Api.MESSAGES
        self._matcher = ReplayMatcher(delivered.events, feed_message_event)
        self.joint = ReplayUsage(delivered, self._matcher)
        self._input = input_usage(delivered)

    def event(self, event: Event) -> Iterator[bytes]:
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.joint.read_usage(self.api, usage)
            event = {**event, "usage": usage | self._input}
        new = feed_message_event(event, self._matcher)
        if new is not None:
            yield encode_named_event(new)

    def done(self) -> Iterator[bytes]:
        return iter(())


class ResponsesReplay:
    """Splices a replayed response: its items keep the ids that the client has."""

    def __init__(self, delivered: DeliveredOutput) -> None:
        self.api = Api.RESPONSES
        self._matcher = ReplayMatcher(delivered.events, feed_response_event)
        self.joint = ReplayUsage(delivered, self._matcher)
        self._number = last_sequence_number(delivered)
        response = first_response(delivered)
        self._head = {name: response[name] for name in RESPONSE_FIELDS if name in response}
        self._items = {event["output_index"]: event["item"] for event in delivered.events if event["type"] == ADDED}
        self._ours: dict[object, object] = {}
        """Ids of the replay to the ids of the same items that the client has."""

    def event(self, event: Event) -> Iterator[bytes]:
        if event["type"] == ADDED and (received := self._items.get(event["output_index"])) is not None:
            self._ours |= {event["item"][name]: received[name] for name in IDS if name in received}
        if (new := feed_response_event(event, self._matcher)) is not None:
            self._number += 1
            yield encode_named_event(self._as_ours(new) | {"sequence_number": self._number})

    def done(self) -> Iterator[bytes]:
        return iter(())

    def _as_ours(self, event: Event) -> Event:
        made = dict(event)
        if "item_id" in event:
            made["item_id"] = self._ours.get(event["item_id"], event["item_id"])
        if "item" in event:
            made["item"] = self._renamed(event["item"])
        if "response" in event:
            response = made["response"] = event["response"] | self._head
            response["output"] = [self._renamed(item) for item in response.get("output") or ()]
            if isinstance(response.get("usage"), dict):
                self.joint.read_usage(self.api, response["usage"])
        return made

    def _renamed(self, item: Event) -> Event:
        return item | {name: self._ours.get(item[name], item[name]) for name in IDS if name in item}

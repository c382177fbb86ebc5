"""An answer requested again from its beginning, where the same request is answered the same.

The replayed answer is compared with what the client was sent: texts, whatever events they came in, and what stands
between them. Ids and signatures, which differ from one request to the next, are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from gateway.resume.delivered import Event, Said, read_told
from gateway.resume.splice import (
    ADDED,
    IDS,
    OF_THE_PROMPT,
    RESPONSE_FIELDS,
    ChoicesStitch,
    Differs,
    Joint,
    input_told,
    last_number,
    named,
    response_told,
)
from routing.request import Api

GREEDY_BELOW = 1e-5
"""Temperatures that vLLM takes for zero."""


def is_same_again(api: Api, fields: dict[str, Any]) -> bool:
    """Whether an engine says the same to the same request: it takes what is likeliest, or draws as it drew before.

    Only what a client has stated counts: what a model does by default its engine knows. Anthropic's API has no seed.
    """
    temperature, seed = fields.get("temperature"), fields.get("seed")
    if isinstance(temperature, int | float) and temperature < GREEDY_BELOW:
        return True
    return fields.get("top_k") == 1 or (api is not Api.MESSAGES and type(seed) is int and seed != NO_SEED)


NO_SEED = -1
"""What vLLM takes for none."""


Key = tuple[object, ...]
"""Which text of an answer it is that goes on, or what stands between two of them."""


class Hears(Protocol):
    """Who is told an answer, text by text."""

    @property
    def is_all(self) -> bool:
        """Whether everything from here on is new."""
        ...

    def text(self, key: Key, text: str) -> str:
        """What of this is new."""
        ...

    def mark(self, *key: object) -> bool:
        """Whether what stands between texts is new."""
        ...


Walk = Callable[[Event, Hears], object]
"""Tells somebody all that one event says."""


class Memory:
    """What was told: texts by their keys, in order; None for what stands between them."""

    is_all = True

    def __init__(self) -> None:
        self.told: list[tuple[Key, str | None]] = []
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
        self.told.append((key, None))
        return True

    def whole(self) -> list[tuple[Key, str | None]]:
        self._end_text()
        return self.told

    def _end_text(self) -> None:
        if self._key is not None:
            self.told.append((self._key, "".join(self._pieces)))
        self._key, self._pieces = None, []


class Rehearsal:
    """How much of what was told one pod has said again."""

    def __init__(self, told: Iterable[Event], walk: Walk) -> None:
        memory = Memory()
        for event in told:
            walk(event, memory)
        self._told = memory.whole()
        self._next = 0
        self._at = 0
        """In the text that comes next."""
        self.texts = 0
        """That were heard again, wholly or in part."""

    @property
    def is_all(self) -> bool:
        return self._next == len(self._told)

    def text(self, key: Key, text: str) -> str:
        """What of this text is new. Raises `Differs`."""
        self.texts += bool(text) and not self.is_all
        while text and not self.is_all:
            wanted, told = self._told[self._next]
            if told is None or wanted != key:
                raise Differs
            both = min(len(told) - self._at, len(text))
            if not told.startswith(text[:both], self._at):
                raise Differs
            self._at, text = self._at + both, text[both:]
            if self._at == len(told):
                self._next, self._at = self._next + 1, 0
        return text

    def mark(self, *key: object) -> bool:
        """Whether this is new. Raises `Differs`."""
        if self.is_all:
            return True
        if self._at or self._told[self._next] != (key, None):
            raise Differs
        self._next += 1
        return False

    def end(self) -> None:
        """No more comes. Raises `Differs` where the client was told more."""
        if not self.is_all:
            raise Differs


class Anew(Joint):
    """What an answer counts as that is asked for from its beginning: its pod tells usage of the whole."""

    def __init__(self, said: Said, rehearsal: Rehearsal) -> None:
        super().__init__(said, is_full=False, again="")
        self.tokens = self._begun = 0
        self.is_silent = False
        self._said_tokens = said.tokens
        self._rehearsal = rehearsal

    @property
    def is_behind(self) -> bool:
        return not self._rehearsal.is_all

    @property
    def repeated(self) -> int:
        return min(self._rehearsal.texts, self._said_tokens) if self.is_behind else self._said_tokens

    def tell(self, api: Api, told: Event) -> None:
        """Usage, in the words of this API."""
        self.usage = self.whole = read_told(told, api) or self.usage


# -- texts and marks of an event, by API -------------------------------------------------------------------------------


THOUGHT = ("reasoning", "reasoning_content")
"""One text, by its new name and its old one."""

TEXTS = (THOUGHT, ("content",), ("refusal",))
"""Of a delta, in the order in which they are said."""

OF_BLOCKS = ("text", "thinking", "partial_json")


def hear_choice(choice: Event, heard: Hears) -> Event | None:
    """What of a choice is new; None where nothing is."""
    is_new = was_all = heard.is_all
    made = dict(choice)
    if (delta := choice.get("delta")) is None:
        made["text"] = heard.text(("text",), choice.get("text") or "")
        says = bool(made["text"])
    else:
        made["delta"] = _hear_delta(delta, heard)
        says = bool(made["delta"])
        is_new = is_new and delta.get("role") is None
    reason = choice.get("finish_reason")
    ends = reason is not None and heard.mark("end", reason)
    if not was_all:
        # Of these nobody knows which belong to the part that is new.
        made |= {name: None for name in ("logprobs", "token_ids") if name in made}
    return made if says or ends or is_new else None


def hear_choices(event: Event, heard: Hears) -> None:
    for choice in event.get("choices") or ():
        hear_choice(choice, heard)


def _hear_delta(delta: Event, heard: Hears) -> Event:
    made = {name: value for name, value in delta.items() if name not in ("role", "tool_calls")}
    for names in TEXTS:
        told = [name for name in names if delta.get(name)]
        if told:
            made |= dict.fromkeys(told, heard.text(names[:1], delta[told[0]]))
    was_all = heard.is_all
    calls = [_hear_call(call, heard) for call in delta.get("tool_calls") or ()]
    if any(calls):
        made["tool_calls"] = [call for call in calls if call]
    return made if was_all or any(made.values()) else {}


def _hear_call(call: Event, heard: Hears) -> Event | None:
    """A call has its id and its name once; what comes behind is arguments."""
    was_all = heard.is_all
    function, at = call.get("function") or {}, call["index"]
    name = heard.text(("name", at), function.get("name") or "")
    arguments = heard.text(("arguments", at), function.get("arguments") or "")
    if was_all:
        return call
    if name:
        return {**call, "function": {**function, "name": name, "arguments": arguments}}
    return {"index": at, "function": {"arguments": arguments}} if arguments else None


def hear_of_message(event: Event, heard: Hears) -> Event | None:
    """What of an event of a message is new; None where nothing is."""
    was_all, new = heard.is_all, _hear_of_message(event, heard)
    return event if was_all else new


def _hear_of_message(event: Event, heard: Hears) -> Event | None:
    kind, delta, block = event["type"], event.get("delta") or {}, event.get("content_block") or {}
    if kind == "ping":
        return None
    name = next((name for name in OF_BLOCKS if name in delta), None)
    if name is not None:
        text = heard.text((name, event["index"]), delta[name] or "")
        return {**event, "delta": {**delta, name: text}} if text else None
    what = (delta.get("type"), delta.get("stop_reason"), block.get("type"), block.get("name"))
    return event if heard.mark(kind, event.get("index"), *what) else None


def hear_of_response(event: Event, heard: Hears) -> Event | None:
    """The same of an event of a response."""
    was_all, new = heard.is_all, _hear_of_response(event, heard)
    return event if was_all else new


def _hear_of_response(event: Event, heard: Hears) -> Event | None:
    kind, delta, item = event["type"], event.get("delta"), event.get("item") or {}
    where = (kind, event.get("output_index"), event.get("content_index"), event.get("summary_index"))
    if isinstance(delta, str):
        text = heard.text(where, delta)
        return {**event, "delta": text, **({"logprobs": []} if "logprobs" in event else {})} if text else None
    return event if heard.mark(*where, item.get("type"), item.get("name")) else None


# -- splicers of a replayed answer -------------------------------------------------------------------------------------


class ChoicesAgain(ChoicesStitch):
    """Of the same answer, asked for once more."""

    def __init__(self, api: Api, said: Said, *, withholds_usage: bool) -> None:
        self._rehearsal = Rehearsal(said.events, hear_choices)
        super().__init__(api, said, Anew(said, self._rehearsal), withholds_usage=withholds_usage)
        self._has_ended = False

    def done(self) -> Iterator[bytes]:
        self._rehearsal.end()
        return super().done()

    def _joined(self, choice: Event) -> Event | None:
        own = {name: value for name, value in choice.items() if name not in OF_THE_PROMPT}
        return hear_choice(own, self._rehearsal)


class MessagesAgain:
    """Of the same message, asked for once more."""

    def __init__(self, said: Said) -> None:
        self.api = Api.MESSAGES
        self._rehearsal = Rehearsal(said.events, hear_of_message)
        self.joint = Anew(said, self._rehearsal)
        self._input = input_told(said)

    def event(self, event: Event) -> Iterator[bytes]:
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.joint.tell(self.api, usage)
            event = {**event, "usage": usage | self._input}
        new = hear_of_message(event, self._rehearsal)
        if new is not None:
            yield named(new)

    def done(self) -> Iterator[bytes]:
        return iter(())


class ResponsesAgain:
    """Of the same response, asked for once more: its items keep the ids that they were told by."""

    def __init__(self, said: Said) -> None:
        self.api = Api.RESPONSES
        self._rehearsal = Rehearsal(said.events, hear_of_response)
        self.joint = Anew(said, self._rehearsal)
        self._number = last_number(said)
        response = response_told(said)
        self._head = {name: response[name] for name in RESPONSE_FIELDS if name in response}
        self._items = {event["output_index"]: event["item"] for event in said.events if event["type"] == ADDED}
        self._ours: dict[object, object] = {}
        """By their ids, those of the same items that the client knows."""

    def event(self, event: Event) -> Iterator[bytes]:
        if event["type"] == ADDED and (told := self._items.get(event["output_index"])) is not None:
            self._ours |= {event["item"][name]: told[name] for name in IDS if name in told}
        if (new := hear_of_response(event, self._rehearsal)) is not None:
            self._number += 1
            yield named(self._as_ours(new) | {"sequence_number": self._number})

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
                self.joint.tell(self.api, response["usage"])
        return made

    def _renamed(self, item: Event) -> Event:
        return item | {name: self._ours.get(item[name], item[name]) for name in IDS if name in item}

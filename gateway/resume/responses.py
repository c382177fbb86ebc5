"""The rest of a responses stream: the same response and item, numbered on, whose text is told once more as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.resume.delivered import Event, Said
from gateway.resume.replay import Anew, Rehearsal
from gateway.resume.splice import Joint, named
from gateway.resume.text_sink import hear_of_response
from routing.request import Api

OPENING = frozenset({"response.created", "response.queued", "response.in_progress"})

ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})

ADDED = "response.output_item.added"

OF_THE_FIRST = ("id", "created_at", "model", "instructions", "max_output_tokens", "previous_response_id")

TEXT_DONE, PART_DONE, ITEM_DONE = (
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
)


IDS = ("id", "call_id")
"""Of an item."""


def last_number(said: Said) -> int:
    return max((event.get("sequence_number", 0) for event in said.events), default=-1)


def response_told(said: Said) -> Event:
    """The response as it was told first; nothing where it was not."""
    return next((event["response"] for event in said.events if "response" in event), {})


class ResponsesStitch:
    """Of one continuation. All text that is told as a whole is what was said before and what comes now."""

    def __init__(self, said: Said, joint: Joint, *, may_be_full: bool) -> None:
        """Where the answer `may_be_full` and its text is over, the pod that goes on tells why: by whether it would."""
        self.api = Api.RESPONSES
        self.joint = joint
        self._had_ended_itself = said.is_over and not may_be_full
        self._text = said.text
        self._number = last_number(said)
        self._response = response_told(said)
        added = said.of(ADDED)
        self._item: Event | None = None if added is None else added["item"]
        self._index = 0 if added is None else added.get("output_index", 0)
        self._has_part = said.of("response.content_part.added") is not None
        self._done = {kind for kind in (TEXT_DONE, PART_DONE, ITEM_DONE) if said.of(kind) is not None}
        self._their_id: str | None = None
        self._more: list[Event] = []
        """Items that come behind the one that was cut."""

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
        """Whether it is about the message that goes on with ours."""
        item = event.get("item_id") or (event.get("item") or {}).get("id")
        return item is not None and item == self._their_id

    def _of_item(self, kind: str, event: Event) -> Iterator[bytes]:
        if kind == "response.content_part.added":
            if not self._has_part:
                self._has_part = True
                yield self._numbered({**event, **self._where})
        elif kind == "response.output_text.delta":
            if text := self.joint.text(event["delta"]):
                self._text += text
                yield self._numbered({**event, **self._where, "delta": text})
        elif kind in {TEXT_DONE, PART_DONE, ITEM_DONE}:
            yield from self._finish(kind)

    def _behind(self, kind: str, event: Event) -> Iterator[bytes]:
        """Another item, as a call of a function, stands behind all of ours."""
        yield from self._finish(ITEM_DONE)
        shift = self._index if self._their_id else self._index + 1
        if kind == ITEM_DONE:
            self._more.append(event["item"])
        yield self._numbered({**event, "output_index": event["output_index"] + shift})

    def _finish(self, last: str) -> Iterator[bytes]:
        """Close what is open of our item, up to this."""
        if self._item is None:
            return
        events: dict[str, Event] = {
            TEXT_DONE: {**self._where, "content_index": 0, "text": self._text, "logprobs": []},
            PART_DONE: {**self._where, "content_index": 0, "part": self._part},
            ITEM_DONE: {"output_index": self._index, "item": self._whole_item("completed")},
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
        output = [*([self._whole_item("completed")] if self._item is not None else []), *self._more]
        whole = {**theirs, **{name: self._response[name] for name in OF_THE_FIRST if name in self._response}}
        whole["output"] = output
        if isinstance(theirs.get("usage"), dict):
            whole["usage"] = self.joint.usage_told(theirs["usage"])
        if self._had_ended_itself:
            whole |= {"status": "completed", "incomplete_details": None}
        yield self._numbered({**event, "response": whole})

    @property
    def _where(self) -> Event:
        return {"item_id": (self._item or {}).get("id"), "output_index": self._index}

    @property
    def _part(self) -> Event:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": None}

    def _whole_item(self, status: str) -> Event:
        return {**(self._item or {}), "content": [self._part], "status": status}

    def _numbered(self, event: Event) -> bytes:
        self._number += 1
        return named({**event, "sequence_number": self._number})


class ResponsesAgain:
    """Of the same response, asked for once more: its items keep the ids that they were told by."""

    def __init__(self, said: Said) -> None:
        self.api = Api.RESPONSES
        self._rehearsal = Rehearsal(said.events, hear_of_response)
        self.joint = Anew(said, self._rehearsal)
        self._number = last_number(said)
        response = response_told(said)
        self._head = {name: response[name] for name in OF_THE_FIRST if name in response}
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

"""An answer as the output items of /v1/responses: reasoning, messages and calls of functions, one behind the other.

Independent of how it was generated, and of what sends the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from simulator.surface.parsing import CallPiece, Delta
from simulator.surface.wire import new_call_id

Item = dict[str, Any]

BEGINS = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
"""What an item's id begins with."""


def _item(kind: str, **fields: Any) -> Item:
    return {"id": f"{BEGINS[kind]}_{uuid4().hex}", **fields, "type": kind, "status": "in_progress"}


def _reasoning() -> Item:
    return _item("reasoning", summary=[])


def _message() -> Item:
    return _item("message", content=[], role="assistant")


def _call(piece: CallPiece) -> Item:
    return _item("function_call", arguments="", call_id=new_call_id(), name=piece.name)


def _text_part(text: str, logprobs: list[Any] | None = None) -> Item:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _thought_part(text: str) -> Item:
    return {"text": text, "type": "reasoning_text"}


def unary_items(parsed: Delta, logprobs: list[Any] | None) -> list[Item]:
    """Of an answer told at once."""
    items: list[Item] = []
    if parsed.reasoning:
        items.append({**_reasoning(), "content": [_thought_part(parsed.reasoning)]})
    if parsed.content:
        items.append({**_message(), "content": [_text_part(parsed.content, logprobs)]})
    items += [{**_call(call), "arguments": call.arguments} for call in parsed.calls]
    return [{**item, "status": "completed"} for item in items]


class Items:
    """The events of one response, not numbered yet."""

    def __init__(self) -> None:
        self.unary_items_sent: list[Item] = []
        """Those that are over."""
        self._open: Item | None = None
        self._text = ""
        """What the open one has said."""

    def take(self, delta: Delta, logprobs: list[Any]) -> Iterator[Item]:
        """Yield the items of the next piece."""
        if delta.reasoning:
            yield from self._turn_to("reasoning")
            yield self._more("response.reasoning_text.delta", delta.reasoning, content_index=0)
        if delta.content:
            yield from self._turn_to("message")
            yield self._more("response.output_text.delta", delta.content, content_index=0, logprobs=logprobs)
        for call in delta.calls:
            if call.name is not None:
                yield from self.close()
                yield from self._begin(_call(call))
            if call.arguments:
                yield self._more("response.function_call_arguments.delta", call.arguments)

    def close(self) -> Iterator[Item]:
        """End the item that is open."""
        if self._open is None:
            return
        item, text = self._open, self._text
        over: Item = {**item, "status": "completed"}
        if item["type"] == "function_call":
            over["arguments"] = text
            yield self._of("response.function_call_arguments.done", arguments=text, name=item["name"])
        else:
            part = _thought_part(text) if item["type"] == "reasoning" else _text_part(text)
            over["content"] = [part]
            fields = {"text": text} if item["type"] == "reasoning" else {"text": text, "logprobs": []}
            yield self._of(f"response.{part['type']}.done", content_index=0, **fields)
            yield self._of("response.content_part.done", content_index=0, part=part)
        yield {"output_index": len(self.unary_items_sent), "item": over, "type": "response.output_item.done"}
        self.unary_items_sent.append(over)
        self._open = None

    def _turn_to(self, kind: str) -> Iterator[Item]:
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self.close()
        yield from self._begin(_reasoning() if kind == "reasoning" else _message())

    def _begin(self, item: Item) -> Iterator[Item]:
        self._open, self._text = item, ""
        yield {"output_index": len(self.unary_items_sent), "item": item, "type": "response.output_item.added"}
        if item["type"] != "function_call":
            part = _thought_part("") if item["type"] == "reasoning" else _text_part("")
            yield self._of("response.content_part.added", content_index=0, part=part)

    def _more(self, kind: str, text: str, **fields: Any) -> Item:
        self._text += text
        return self._of(kind, delta=text, **fields)

    def _of(self, kind: str, **fields: Any) -> Item:
        """An event about the open item."""
        identity = (self._open or {}).get("id")
        return {"item_id": identity, "output_index": len(self.unary_items_sent), **fields, "type": kind}

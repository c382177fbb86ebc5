"""An answer as the blocks of Anthropic's API: thoughts, texts and uses of tools, one behind the other.

Independent of how it was generated, and of what sends the events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from simulator.surface.parsing import CallPiece, Delta
from simulator.surface.wire import new_call_id

Block = dict[str, Any]


def unary_blocks(parsed: Delta) -> list[Block]:
    """Of an answer told at once; there is a block even of nothing."""
    blocks: list[Block] = []
    if parsed.reasoning:
        blocks.append({"type": "thinking", "thinking": parsed.reasoning, "signature": uuid4().hex})
    if parsed.content:
        blocks.append({"type": "text", "text": parsed.content})
    blocks += [{**_tool_use(call), "input": _parsed(call.arguments or "")} for call in parsed.calls]
    return blocks or [{"type": "text", "text": ""}]


def _tool_use(call: CallPiece) -> Block:
    return {"type": "tool_use", "id": new_call_id(), "name": call.name, "input": {}}


def _parsed(arguments: str) -> Any:
    """A call's arguments; one that was cut short has none."""
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:
        return {}


class Blocks:
    """The events of one response. Each is the keyword arguments of its sender."""

    def __init__(self) -> None:
        self._index = 0
        self._open = ""
        """The type of the block that is; none is at first."""

    def take(self, delta: Delta) -> Iterator[Block]:
        """Yield the blocks of the next piece."""
        if delta.reasoning:
            yield from self._turn_to({"type": "thinking", "thinking": ""})
            yield self._delta(type="thinking_delta", thinking=delta.reasoning)
        if delta.content:
            yield from self._turn_to({"type": "text", "text": ""})
            yield self._delta(type="text_delta", text=delta.content)
        for call in delta.calls:
            if call.name is not None:
                yield from self.close()
                yield self._begin(_tool_use(call))
            if call.arguments:
                yield self._delta(type="input_json_delta", partial_json=call.arguments)

    def close(self) -> Iterator[Block]:
        """End the block that is open; thoughts are signed."""
        if not self._open:
            return
        if self._open == "thinking":
            yield self._delta(type="signature_delta", signature=uuid4().hex)
        yield {"kind": "content_block_stop", "index": self._index}
        self._open = ""
        self._index += 1

    def _turn_to(self, block: Block) -> Iterator[Block]:
        if self._open != block["type"]:
            yield from self.close()
            yield self._begin(block)

    def _begin(self, block: Block) -> Block:
        self._open = block["type"]
        return {"kind": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, **delta: str) -> Block:
        return {"kind": "content_block_delta", "index": self._index, "delta": delta}

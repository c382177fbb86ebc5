"""A pod without sockets that thinks, speaks and calls, and says all of it again to whoever asks the same.

What it sends is worded as vLLM words it in each API. Its ids are its own, and so is how much it says in one event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from routing.request import Api
from tests.gateway.resume.teller import DONE, Event, named, plain

THOUGHTS = ("Hm", ", tïme", "\n", " \\word", "🙂")
WORDS = ("\n\n", "Let", ' me "see"', ".")
CALLS = (("weather", ('{"city', '": "Bern"', "}")), ("clock", ("{", "}")))
"""Names and the pieces of arguments."""

PROMPT_TOKENS = 7
TOKENS = 20


@dataclass(frozen=True)
class Thinker:
    """One pod. `pieces` of a text stand in one of its events."""

    name: str
    pieces: int = 1
    thoughts: tuple[str, ...] = THOUGHTS
    words: tuple[str, ...] = WORDS
    calls: tuple[tuple[str, tuple[str, ...]], ...] = CALLS
    old: bool = False
    """It calls thoughts what older versions call them."""

    def answer(self, api: Api) -> list[bytes]:
        """The events of a stream."""
        tell = {Api.CHAT: self._chat, Api.MESSAGES: self._messages}
        return [*tell.get(api, self._responses)()]

    def given_up(self, after: int) -> list[bytes]:
        """The events of a message whose engine gives it up after so many: its block is closed as if it were whole."""
        reported = self.answer(Api.MESSAGES)[:after]
        begun = [event for event in map(_value, reported) if event["type"] == "content_block_start"]
        if begun and _value(reported[-1])["type"] != "content_block_stop":
            where = {"index": begun[-1]["index"]}
            if begun[-1]["content_block"]["type"] == "thinking":
                delta = {"type": "signature_delta", "signature": f"early-{self.name}"}
                reported.append(named({"type": "content_block_delta", **where, "delta": delta}))
            reported.append(named({"type": "content_block_stop", **where}))
        given_up = {"stop_reason": None, "stop_sequence": None}
        return [
            *reported,
            named({"type": "message_delta", "delta": given_up, "usage": {"output_tokens": 1}}),
            named({"type": "message_stop"}),
        ]

    def _joined(self, pieces: tuple[str, ...]) -> list[str]:
        return ["".join(pieces[at : at + self.pieces]) for at in range(0, len(pieces), self.pieces)]

    # -- chat ----------------------------------------------------------------------------------------------------------

    def _chat(self) -> Iterator[bytes]:
        head = {"id": f"chatcmpl-{self.name}", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS, "total_tokens": PROMPT_TOKENS + TOKENS}
        for delta in self._deltas():
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            yield plain(head | {"choices": [choice]})
        end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if self.calls else "stop", "stop_reason": None}
        yield plain(head | {"choices": [end]})
        yield plain(head | {"choices": [], "usage": usage})
        yield DONE

    def _deltas(self) -> Iterator[Event]:
        yield {"role": "assistant", "content": ""}
        for thought in self._joined(self.thoughts):
            yield {"reasoning_content" if self.old else "reasoning": thought}
        for word in self._joined(self.words):
            yield {"content": word}
        for number, (name, pieces) in enumerate(self.calls):
            first: Event = {"id": self._call_id(number), "type": "function", "index": number}
            arguments = self._joined(pieces)
            if self.pieces > 1:  # As parsers do that tell the first of the arguments with the name.
                yield {"tool_calls": [first | {"function": {"name": name, "arguments": arguments.pop(0)}}]}
            else:
                yield {"tool_calls": [first | {"function": {"name": name}}]}
            for piece in arguments:
                yield {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}

    def _call_id(self, number: int) -> str:
        return f"chatcmpl-tool-{self.name}-{number}"

    # -- messages ------------------------------------------------------------------------------------------------------

    def _messages(self) -> Iterator[bytes]:
        usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": 0}
        message = {"id": f"chatcmpl-{self.name}", "type": "message", "role": "assistant", "content": [], "model": "t"}
        yield named({"type": "message_start", "message": message | {"usage": usage}})
        for index, (block, deltas) in enumerate(self._blocks()):
            yield named({"type": "content_block_start", "index": index, "content_block": block})
            for delta in deltas:
                yield named({"type": "content_block_delta", "index": index, "delta": delta})
            yield named({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": "tool_use" if self.calls else "end_turn", "stop_sequence": None}
        yield named({"type": "message_delta", "delta": delta, "usage": usage | {"output_tokens": TOKENS}})
        yield named({"type": "message_stop"})

    def _blocks(self) -> Iterator[tuple[Event, list[Event]]]:
        if self.thoughts:
            stated = [{"type": "thinking_delta", "thinking": piece} for piece in self._joined(self.thoughts)]
            signature = {"type": "signature_delta", "signature": f"signed-{self.name}"}
            yield {"type": "thinking", "thinking": ""}, [*stated, signature]
        if self.words:
            yield (
                {"type": "text", "text": ""},
                [{"type": "text_delta", "text": piece} for piece in self._joined(self.words)],
            )
        for number, (name, pieces) in enumerate(self.calls):
            block = {"type": "tool_use", "id": self._call_id(number), "name": name, "input": {}}
            yield block, [{"type": "input_json_delta", "partial_json": piece} for piece in self._joined(pieces)]

    # -- responses -----------------------------------------------------------------------------------------------------

    def _responses(self) -> Iterator[bytes]:
        base = {"id": f"resp_{self.name}", "created_at": 1, "object": "response", "model": "tiny"}
        begun = base | {"status": "in_progress", "output": [], "usage": None}
        usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": TOKENS, "total_tokens": PROMPT_TOKENS + TOKENS}
        events: list[Event] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        output: list[Event] = []
        for index, (item, more) in enumerate(self._items()):
            events += [event | {"output_index": index} for event in more]
            output.append(item)
        complete = base | {"status": "completed", "incomplete_details": None, "output": output, "usage": usage}
        events.append({"type": "response.completed", "response": complete})
        for number, event in enumerate(events):
            yield named({**event, "sequence_number": number})

    def _items(self) -> Iterator[tuple[Event, list[Event]]]:
        if self.thoughts:
            item: Event = {"id": f"rs_{self.name}", "type": "reasoning", "summary": []}
            yield self._item(item, "reasoning_text", "response.reasoning_text", self.thoughts)
        if self.words:
            item = {"id": f"msg_{self.name}", "type": "message", "role": "assistant"}
            yield self._item(item, "output_text", "response.output_text", self.words)
        for number, (name, pieces) in enumerate(self.calls):
            yield self._call(number, name, pieces)

    def _item(self, item: Event, part: str, kind: str, pieces: tuple[str, ...]) -> tuple[Event, list[Event]]:
        text, where = "".join(pieces), {"item_id": item["id"], "content_index": 0}
        complete = item | {"status": "completed", "content": [{"type": part, "text": text}]}
        return complete, [
            {"type": "response.output_item.added", "item": item | {"status": "in_progress", "content": []}},
            {"type": "response.content_part.added", **where, "part": {"type": part, "text": ""}},
            *({"type": f"{kind}.delta", **where, "delta": piece} for piece in self._joined(pieces)),
            {"type": f"{kind}.done", **where, "text": text},
            {"type": "response.content_part.done", **where, "part": {"type": part, "text": text}},
            {"type": "response.output_item.done", "item": complete},
        ]

    def _call(self, number: int, name: str, pieces: tuple[str, ...]) -> tuple[Event, list[Event]]:
        item_id, arguments, kind = f"fc_{self.name}_{number}", "".join(pieces), "response.function_call_arguments"
        item = {"id": item_id, "call_id": self._call_id(number), "type": "function_call", "name": name}
        complete = item | {"arguments": arguments, "status": "completed"}
        return complete, [
            {"type": "response.output_item.added", "item": item | {"arguments": "", "status": "in_progress"}},
            *({"type": f"{kind}.delta", "item_id": item_id, "delta": piece} for piece in self._joined(pieces)),
            {"type": f"{kind}.done", "item_id": item_id, "arguments": arguments, "name": name},
            {"type": "response.output_item.done", "item": complete},
        ]


def _value(event: bytes) -> Event:
    value: Event = json.loads(event.split(b"\ndata: ")[-1])
    return value

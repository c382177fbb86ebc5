"""The rest of a messages stream, made of a chat stream: vLLM can go on with an answer in its chat API alone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.resume.delivered import UNREADABLE, Event, Said, is_usage_only
from gateway.resume.replay import Anew, Rehearsal
from gateway.resume.splice import Joint, named
from gateway.resume.text_sink import hear_of_message
from routing.request import Api

TEXT, THINKING = "text", "thinking"
"""Types of blocks."""

OF_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""What was told of the prompt when the message began stays true."""


def input_told(said: Said) -> Event:
    message = said.first.get("message") or {}
    return {name: value for name, value in (message.get("usage") or {}).items() if name in OF_INPUT}


class MessagesStitch:
    """Of one continuation. A message is told in blocks, one after the other: `_block` is the one that is open."""

    def __init__(self, said: Said, joint: Joint) -> None:
        self.api = Api.CHAT
        self.joint = joint
        self._input = input_told(said)
        self._signature = (said.first.get("message") or {}).get("id") or ""
        begun, ended = said.of("content_block_start"), said.of("content_block_stop")
        self._next = 0 if begun is None else begun["index"] + 1
        self._block = None if begun is None or (ended and ended["index"] == begun["index"]) else begun["index"]
        self._kind = TEXT if begun is None else begun["content_block"]["type"]
        self._may_think = not said.text
        self._call = -1
        self._arguments: list[str] = []
        """Of the last call."""
        self._end: Event = {}
        """The choice that tells why it ended."""
        self._has_ended = said.of("message_delta") is not None

    def event(self, event: Event) -> Iterator[bytes]:
        usage = event.get("usage")
        told = self.joint.usage_told(usage) if isinstance(usage, dict) else None
        if is_usage_only(event) and told is not None:
            yield from self._stop(told)
            return
        for choice in event["choices"]:
            if choice.get("finish_reason") is not None:
                self._end = choice
            yield from self._say(choice["delta"])

    def done(self) -> Iterator[bytes]:
        yield named({"type": "message_stop"})

    def _say(self, delta: Event) -> Iterator[bytes]:
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        if thought and not self._may_think:
            raise KeyError("a thought in the middle of an answer")
        if thought and not self.joint.is_silent:
            yield from self._turn_to({"type": THINKING, "thinking": ""})
            yield self._delta({"type": "thinking_delta", "thinking": thought})
        if text := self.joint.text(delta.get("content") or ""):
            yield from self._turn_to({"type": TEXT, "text": ""})
            yield self._delta({"type": "text_delta", "text": text})
        if not self.joint.is_silent:
            for call in delta.get("tool_calls") or ():
                yield from self._say_call(call)

    def _say_call(self, call: Event) -> Iterator[bytes]:
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
        yield named({"type": "content_block_start", "index": self._block, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._block is None:
            return
        if self._kind == THINKING:
            # An engine signs with a number made up for it, which it never reads; its client wants one.
            yield self._delta({"type": "signature_delta", "signature": self._signature})
        yield named({"type": "content_block_stop", "index": self._block})
        self._block = None

    def _delta(self, delta: Event) -> bytes:
        return named({"type": "content_block_delta", "index": self._block, "delta": delta})

    def _why(self) -> Event:
        """A whole call is to be made, whatever ended the answer behind it; one that a stop string has cut is not."""
        reason, sequence = self._end.get("finish_reason"), self._end.get("stop_reason")
        if self.joint.is_silent or reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if isinstance(sequence, str) and not self._has_whole_call:
            return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
        has_called = reason == "tool_calls" or self._call >= 0
        return {"stop_reason": "tool_use" if has_called else "end_turn", "stop_sequence": None}

    @property
    def _has_whole_call(self) -> bool:
        return self._call >= 0 and is_json("".join(self._arguments))

    def _stop(self, usage: Event) -> Iterator[bytes]:
        if self._has_ended:
            return
        yield from self._close()
        told = (self._input or {"input_tokens": usage["prompt_tokens"]}) | {"output_tokens": usage["completion_tokens"]}
        yield named({"type": "message_delta", "delta": self._why(), "usage": told})


def is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except UNREADABLE:
        return False
    return True


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

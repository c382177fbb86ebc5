"""The rest of a messages stream, made of a chat stream: vLLM can go on with an answer in its chat API alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.proxy.resuming.hearing import hear_of_message
from gateway.proxy.resuming.rehearsal import Anew, Rehearsal
from gateway.proxy.resuming.said import Event, Said, is_usage_only
from gateway.proxy.resuming.stitch import Joint, named
from routing.request import Api

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

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
        begun, ended = said.of("content_block_start"), said.of("content_block_stop")
        self._next = 0 if begun is None else begun["index"] + 1
        self._block = None if begun is None or (ended and ended["index"] == begun["index"]) else begun["index"]
        self._is_text = True
        self._call = -1
        self._reason: str | None = None
        self._sequence: str | None = None
        self._has_ended = said.of("message_delta") is not None

    def event(self, event: Event) -> Iterator[bytes]:
        usage = event.get("usage")
        told = self.joint.usage_told(usage) if isinstance(usage, dict) else None
        if is_usage_only(event) and told is not None:
            yield from self._end(told)
            return
        for choice in event["choices"]:
            if choice.get("finish_reason") is not None:
                self._stop(choice)
            yield from self._say(choice["delta"])

    def done(self) -> Iterator[bytes]:
        yield named({"type": "message_stop"})

    def _say(self, delta: Event) -> Iterator[bytes]:
        if delta.get("reasoning") or delta.get("reasoning_content"):
            raise KeyError("a thought in the middle of an answer")
        if text := self.joint.text(delta.get("content") or ""):
            if self._block is None or not self._is_text:
                yield from self._open({"type": "text", "text": ""})
                self._is_text = True
            yield self._delta({"type": "text_delta", "text": text})
        if not self.joint.is_silent:
            for call in delta.get("tool_calls") or ():
                yield from self._say_call(call)

    def _say_call(self, call: Event) -> Iterator[bytes]:
        function = call.get("function") or {}
        if call["index"] != self._call:
            self._call, self._is_text = call["index"], False
            yield from self._open({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}})
        if function.get("arguments"):
            yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _open(self, block: Event) -> Iterator[bytes]:
        yield from self._close()
        self._block, self._next = self._next, self._next + 1
        yield named({"type": "content_block_start", "index": self._block, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._block is not None:
            yield named({"type": "content_block_stop", "index": self._block})
            self._block = None

    def _delta(self, delta: Event) -> bytes:
        return named({"type": "content_block_delta", "index": self._block, "delta": delta})

    def _stop(self, choice: Event) -> None:
        reason: Any = "length" if self.joint.is_silent else choice["finish_reason"]
        self._reason = STOP_REASONS.get(reason, "end_turn")
        stopped = choice.get("stop_reason")
        if reason == "stop" and isinstance(stopped, str):
            self._reason, self._sequence = "stop_sequence", stopped

    def _end(self, usage: Event) -> Iterator[bytes]:
        if self._has_ended:
            return
        yield from self._close()
        told = (self._input or {"input_tokens": usage["prompt_tokens"]}) | {"output_tokens": usage["completion_tokens"]}
        delta = {"stop_reason": self._reason, "stop_sequence": self._sequence}
        yield named({"type": "message_delta", "delta": delta, "usage": told})


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

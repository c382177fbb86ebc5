"""Anthropic's messages: deltas of blocks, or the blocks themselves. vLLM tells no log-probabilities here."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gateway.cascades.answers.ends import CALLS, LENGTH, STOP
from gateway.cascades.evidence import Evidence


class BlockDelta(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class Block(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: BlockDelta | None = None


class Part(Struct, gc=False):
    type: str = ""
    text: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class Message(Struct, gc=False):
    content: list[Part] = []
    stop_reason: str | None = None


BLOCK = msgspec.json.Decoder(Block)
MESSAGE = msgspec.json.Decoder(Message)

ENDS = {"max_tokens": LENGTH, "end_turn": STOP, "stop_sequence": STOP, "tool_use": CALLS}


def hear_block(told: bytes, evidence: Evidence) -> None:
    """Take in one event."""
    event = BLOCK.decode(told)
    delta = event.delta
    if delta is None:
        return
    if delta.thinking:
        evidence.reasoning_pieces += 1
    elif delta.text or delta.partial_json:
        evidence.pieces += 1
        if delta.text:
            evidence.text.append(delta.text)
        else:
            evidence.arguments.setdefault(event.index, []).append(delta.partial_json or "")
    if delta.stop_reason:
        evidence.finish_reason = ENDS.get(delta.stop_reason, delta.stop_reason)


def hear_message(body: bytes, evidence: Evidence) -> None:
    """Take in all of an answer."""
    message = MESSAGE.decode(body)
    for at, part in enumerate(message.content):
        if part.type == "text":
            evidence.text.append(part.text or "")
            evidence.pieces += 1
        elif part.type == "tool_use":
            evidence.arguments[at] = [bytes(part.input).decode("utf-8", "replace")]
            evidence.pieces += 1
        elif part.type == "thinking":
            evidence.reasoning_pieces += 1
    evidence.finish_reason = ENDS.get(message.stop_reason or "", message.stop_reason)

"""The bytes of one answer, kept by reference up to a bound: what it told is read from them when it has ended."""

from __future__ import annotations

import json
from collections import deque

import msgspec

from routing.reading import AnswerFacts, read_facts
from routing.request import Api

TAIL_BYTES = 64 << 10
"""Of an answer that is too long to be kept whole, its end is kept: usage stands there."""

EVENTS_READ = 8
"""From a stream's end backwards: enough to find usage and why it ended, whatever stands between the two."""

USAGE_KEY = b'"usage":'


class Kept:
    """Grows by whole reads, never copies them."""

    __slots__ = ("_count", "_most", "_pieces", "is_whole")

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._count = 0
        self._pieces: deque[bytes] = deque()
        self.is_whole = True

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._count += len(piece)
        if self._count > self._most:
            self._forget()

    def joined(self) -> bytes:
        """The whole answer, or its end."""
        if len(self._pieces) > 1:
            whole = b"".join(self._pieces)
            self._pieces.clear()
            self._pieces.append(whole)
        return self._pieces[0] if self._pieces else b""

    def _forget(self) -> None:
        self.is_whole = False
        self._most = 2 * TAIL_BYTES
        while self._count > TAIL_BYTES and len(self._pieces) > 1:
            self._count -= len(self._pieces.popleft())


def facts_of_answer(api: Api, kept: Kept) -> AnswerFacts:
    """What a whole JSON answer tells."""
    told = kept.joined()
    return read_facts(api, told) if kept.is_whole else _facts_of_end(api, told)


def facts_of_stream(api: Api, kept: Kept) -> AnswerFacts:
    """What a stream has told when it has ended: its last events, each adding what later ones did not say."""
    told = kept.joined()
    usage, finish_reason, response_id = None, None, None
    for event in _last_events(told):
        facts = read_facts(api, event)
        usage = usage or facts.usage
        finish_reason = finish_reason or facts.finish_reason
        response_id = response_id or facts.response_id
    if usage is None and not kept.is_whole:
        usage = _facts_of_end(api, told).usage
    return AnswerFacts(usage, finish_reason, response_id)


def _last_events(told: bytes) -> list[bytes]:
    """The data of the last events, the last one first."""
    lines = told[-TAIL_BYTES:].splitlines()
    events: list[bytes] = []
    for line in reversed(lines):
        if line.startswith(b"data:"):
            events.append(line[5:])
            if len(events) == EVENTS_READ:
                break
    return events


def _facts_of_end(api: Api, told: bytes) -> AnswerFacts:
    """Usage, read from where it begins: what stands before it is not there any more."""
    at = told.rfind(USAGE_KEY)
    if at < 0:
        return AnswerFacts()
    text = told[at + len(USAGE_KEY) :].decode("utf-8", "replace").lstrip()
    try:
        usage, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return AnswerFacts()
    return read_facts(api, msgspec.json.encode({"usage": usage}))

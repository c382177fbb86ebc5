"""The bytes of one answer, kept by reference up to a bound: what it told is read from them when it has ended."""

from __future__ import annotations

import json

import msgspec

from routing.reading import AnswerFacts, read_facts
from routing.request import Api

TAIL_BYTES = 64 << 10
"""Of an answer that is too long to be kept whole, its end is kept: usage stands there."""

EVENTS_READ = 8
"""From a stream's end backwards: enough to find usage and why it ended, whatever stands between the two."""

DONE = (b"data: [DONE]", b"data:[DONE]")
"""Last words that are no JSON."""

USAGE_KEY = b'"usage":'

LONGEST_RUN_BYTES = 16 << 10
"""So much text is told as one event; then what is kept of the answer is looked at anew."""


class Kept:
    """Grows by whole reads; of events that differ in their text alone, by their texts.

    Such a run of events is told as a single one with all of their text: who reads it cannot tell the difference.
    """

    __slots__ = ("_after", "_before", "_pieces", "_room", "is_whole", "texts")

    def __init__(self, most_bytes: int) -> None:
        self._pieces: list[bytes] = []
        self._before = self._after = b""
        self._room = most_bytes
        """For so many bytes more; below zero something has to be forgotten."""
        self.texts = bytearray()
        """JSON text of the events that came behind all pieces. Who adds much to it ends the run now and then."""
        self.is_whole = True

    def add(self, piece: bytes) -> None:
        if self.texts:
            self.end_run()
        self._pieces.append(piece)
        self._room -= len(piece)
        if self._room < 0:
            self._forget()

    def expect(self, before: bytes, after: bytes) -> None:
        """Texts to come stand between these."""
        if self.texts:
            self.end_run()
        self._before, self._after = before, after

    def joined(self) -> bytes:
        """The whole answer, or its end."""
        if self.texts:
            self.end_run()
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def end_run(self) -> None:
        """Texts to come belong to another event than those there are."""
        run = b"".join((self._before, self.texts, self._after))
        self.texts.clear()
        self.add(run)

    def _forget(self) -> None:
        """Keep the end only, in whole pieces, and grow to twice as much before this is asked again."""
        self.is_whole = False
        count, first = sum(map(len, self._pieces)), 0
        while count > TAIL_BYTES and first < len(self._pieces) - 1:
            count -= len(self._pieces[first])
            first += 1
        del self._pieces[:first]
        self._room = 2 * TAIL_BYTES - count


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
        if usage is not None and finish_reason is not None and response_id is not None:
            break
    if usage is None and not kept.is_whole:
        usage = _facts_of_end(api, told).usage
    return AnswerFacts(usage, finish_reason, response_id)


def _last_events(told: bytes) -> list[bytes]:
    """The data of the last events, the last one first."""
    events: list[bytes] = []
    end = len(told)
    least = max(0, end - TAIL_BYTES)
    while end > least and len(events) < EVENTS_READ:
        begin = told.rfind(b"\n", least, end) + 1 or least
        if told.startswith(b"data:", begin, end) and not told.startswith(DONE, begin, end):
            events.append(told[begin + 5 : end])
        end = begin - 1
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

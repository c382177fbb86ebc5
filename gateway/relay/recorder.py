"""Records the bytes of one answer, by reference and up to a bound; its usage and ids are read from them at its end."""

from __future__ import annotations

import json

import msgspec

from routing.reading import ResponseFacts, read_response_facts
from routing.request import Api

TAIL_BYTES = 64 << 10
"""Bytes kept of the end of an answer that is too long to be recorded as a whole: usage stands there."""

EVENTS_READ = 8
"""Events read from a stream's end backwards: enough to find usage and finish reason, whatever stands between them."""

DONE = (b"data: [DONE]", b"data:[DONE]")
"""Last events that are not JSON."""

USAGE_KEY = b'"usage":'

MAX_RUN_BYTES = 16 << 10
"""Bytes of text recorded as one event; then the bound is checked again."""


class ResponseRecorder:
    """Grows by whole reads; of a run of events that differ in their text alone, by the texts.

    Such a run is recorded as a single event with all of the text, which reads the same.
    """

    __slots__ = ("_after", "_before", "_pieces", "_room", "is_whole", "texts")

    def __init__(self, max_bytes: int) -> None:
        self._pieces: list[bytes] = []
        self._before = self._after = b""
        self._room = max_bytes
        """Bytes that may still be added; below zero the beginning is dropped."""
        self.texts = bytearray()
        """JSON text of the run behind all pieces. Whatever adds to it calls `end_run` after `MAX_RUN_BYTES`."""
        self.is_whole = True

    def add(self, piece: bytes) -> None:
        """Record these bytes, behind the run that there may be."""
        if self.texts:
            self.end_run()
        self._pieces.append(piece)
        self._room -= len(piece)
        if self._room < 0:
            self._drop_beginning()

    def begin_run(self, before: bytes, after: bytes) -> None:
        """Set the bytes around the texts of the run that begins."""
        if self.texts:
            self.end_run()
        self._before, self._after = before, after

    def joined(self) -> bytes:
        """Return the whole answer, or its end."""
        if self.texts:
            self.end_run()
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def end_run(self) -> None:
        """Record the run as one event; texts to come belong to another."""
        run = b"".join((self._before, self.texts, self._after))
        self.texts.clear()
        self.add(run)

    def _drop_beginning(self) -> None:
        """Keep the end only, in whole pieces; the next call comes after twice as many bytes."""
        self.is_whole = False
        count, first = sum(map(len, self._pieces)), 0
        while count > TAIL_BYTES and first < len(self._pieces) - 1:
            count -= len(self._pieces[first])
            first += 1
        del self._pieces[:first]
        self._room = 2 * TAIL_BYTES - count


def facts_of_answer(api: Api, kept: ResponseRecorder) -> ResponseFacts:
    """Read usage, finish reason and id of a whole JSON answer."""
    recorded = kept.joined()
    return read_response_facts(api, recorded) if kept.is_whole else _facts_of_end(api, recorded)


def facts_of_stream(api: Api, kept: ResponseRecorder) -> ResponseFacts:
    """Read usage, finish reason and id from the last events of a stream, each from the last event that has it."""
    recorded = kept.joined()
    usage, finish_reason, response_id = None, None, None
    for event in _last_events(recorded):
        facts = read_response_facts(api, event)
        usage = usage or facts.usage
        finish_reason = finish_reason or facts.finish_reason
        response_id = response_id or facts.response_id
        if usage is not None and finish_reason is not None and response_id is not None:
            break
    if usage is None and not kept.is_whole:
        usage = _facts_of_end(api, recorded).usage
    return ResponseFacts(usage, finish_reason, response_id)


def _last_events(recorded: bytes) -> list[bytes]:
    """Return the data of the last events, the last one first."""
    events: list[bytes] = []
    end = len(recorded)
    start = max(0, end - TAIL_BYTES)
    while end > start and len(events) < EVENTS_READ:
        begin = recorded.rfind(b"\n", start, end) + 1 or start
        if recorded.startswith(b"data:", begin, end) and not recorded.startswith(DONE, begin, end):
            events.append(recorded[begin + 5 : end])
        end = begin - 1
    return events


def _facts_of_end(api: Api, recorded: bytes) -> ResponseFacts:
    """Read usage from where its key stands: what stood before it has been dropped."""
    at = recorded.rfind(USAGE_KEY)
    if at < 0:
        return ResponseFacts()
    text = recorded[at + len(USAGE_KEY) :].decode("utf-8", "replace").lstrip()
    try:
        usage, _ = json.JSONDecoder().raw_decode(text)
        found = msgspec.json.encode({"usage": usage})
    except (ValueError, RecursionError):  # Also for text that UTF-8 does not have, such as half a surrogate pair.
        return ResponseFacts()
    return read_response_facts(api, found)

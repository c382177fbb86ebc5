"""The usual case of a stream: a read that is one chunk of whole events, with nothing in them that concerns us.

Such a chunk is written to the client as it came. The events of one stream mostly differ in their text alone: once what
stands before and behind the text is known, an event is recognised by comparing it with both, and of it only the text is
kept. Knows no socket and no state of an answer: it is asked while a stream flows, and not otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.proxy.kept import Kept
from gateway.proxy.scanner import ERROR, USAGE

EVENTS_END = b"\n\n\r\n"
"""Of an event and of the chunk that it stands in."""

QUOTE = b'"'

TEXT_OF_EVENT = re.compile(rb'(data: \{(?:(?!\n).)*?"(?:content|text|delta)": ?")(?:[^"\\]|\\.)*("[^\n]*\}\n\n)')
"""What stands before and behind the text of an event, in the words of all generating APIs."""

LESSONS = 8
"""A stream whose events are still unlike after so many differs in more than text: it is not looked at any closer."""

KEPT_FOR_A_TEXT = 40
"""Bytes that a kept text takes beside itself."""


class Flow:
    """One stream, while nothing of it is held back and its client takes chunks."""

    __slots__ = ("_after", "_before", "_kept", "_lessons", "_write")

    def __init__(self, kept: Kept, write: Callable[[bytes], None]) -> None:
        self._kept = kept
        self._write = write
        self._before = self._after = EVENTS_END  # No event begins like that.
        self._lessons = LESSONS

    def pass_on(self, chunk: bytes, begin: int) -> bool:
        """Write a chunk, whose payload stands from `begin` up to the line end that is its last.

        False where it has no such end, or has to be taken as anything else from a pod: nothing is done then.
        """
        before, after = self._before, self._after
        text, end = begin + len(before), len(chunk) - len(after)
        if not chunk.startswith(before, begin) or not chunk.endswith(after) or chunk.find(QUOTE, text, end) >= 0:
            return self._pass_unlike(chunk, begin)
        kept = self._kept
        kept.texts.append(chunk[text:end])
        kept.room -= end - text + KEPT_FOR_A_TEXT
        if kept.room < 0:
            kept.forget()
        self._write(chunk)
        return True

    def _pass_unlike(self, chunk: bytes, begin: int) -> bool:
        # CPython finds a short word backwards in half the time that it takes forwards.
        if not chunk.endswith(EVENTS_END) or chunk.rfind(USAGE) >= 0 or chunk.rfind(ERROR) >= 0:
            return False
        payload = chunk[begin:-2]
        self._kept.add(payload)
        if self._lessons:
            self._learn(payload)
        self._write(chunk)
        return True

    def _learn(self, payload: bytes) -> None:
        self._lessons -= 1
        event = TEXT_OF_EVENT.fullmatch(payload)
        if event is not None:
            before, after = event.groups()
            self._kept.expect(before, after)
            self._before, self._after = before, after + b"\r\n"

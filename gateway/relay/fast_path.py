"""The usual case of a stream: reads that are whole chunks of whole events, with nothing in them that concerns us.

Such a chunk is written to the client as it came. The events of one stream mostly differ in their text alone: once what
stands before and behind the text is known, an event is recognised by comparing it with both, and of it only the text is
kept. Knows no state of an answer: it has the pod's connection while a stream flows and its reads end where chunks end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Protocol

from gateway.relay.recorder import LONGEST_RUN_BYTES, Kept

ONE_CHUNK_BYTES = 4096
"""Larger chunks are left to the parser: they cost more than to parse them."""

PAYLOAD_OF_SIZE = {b"%x\r\n" % payload: payload for payload in range(1, ONE_CHUNK_BYTES)}
"""The line before a chunk, as every server writes it, to the bytes of payload behind it."""

SIZE_LINE_BYTES = 5
"""At most, of those."""

CRLF = b"\r\n"


def _sizes_by_read() -> tuple[bytes, ...]:
    sizes = [CRLF] * ONE_CHUNK_BYTES
    for size, payload in PAYLOAD_OF_SIZE.items():
        if (read := len(size) + payload + len(CRLF)) < ONE_CHUNK_BYTES:
            sizes[read] = size
    return tuple(sizes)


SIZE_OF_READ = _sizes_by_read()
"""The line before a chunk that fills a read of so many bytes; where none does, what no chunk begins with."""

EVENT_END = b"\n\n"

EVENTS_END = b"\n\n\r\n"
"""Of an event and of the chunk that it stands in."""

QUOTE = b'"'

TEXT_OF_EVENT = re.compile(
    rb'((?:event: \w+\n)?data: \{(?:(?!\n).)*?"(?:content|text|delta|reasoning(?:_content)?|thinking)": ?")'
    rb'(?:[^"\\]|\\.)*'
    rb'("[^\n]*\}\n\n)'
)
"""What stands before and behind the text of an event, in the words of all generating APIs."""

LESSONS = 8
"""A stream whose events are still unlike after so many differs in more than text: it is not looked at any closer."""


class Parsing(Protocol):
    """Whose connection it is: the line, which reads whatever is not passed on here."""

    def take_back(self, left: bytes) -> None:
        """Read this, and what comes behind it."""
        ...

    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class Flow(asyncio.Protocol):
    """One stream, while nothing of it is held back and its client takes chunks.

    It stands in for the line at the loop, so that nothing stands between the pod's bytes and the few comparisons below.
    """

    __slots__ = (
        *("_after", "_before", "_concerns", "_kept", "_left", "_lessons", "_line", "_span", "_texts"),
        *("_told", "_write", "has_stirred"),
    )

    def __init__(
        self,
        line: Parsing,
        kept: Kept,
        write: Callable[[bytes], None],
        told: Callable[[int], int],
        concerns: Callable[[bytes], bool],
    ) -> None:
        """`told`: so many events have gone on. Returns after how many more to say so again, none where it is over.

        `concerns`: whether events may have to be looked at.
        """
        self._line = line
        self._concerns = concerns
        self._kept = kept
        self._texts = kept.texts
        self._write = write
        self._told = told
        self._left = self._span = told(0)
        self.has_stirred = False
        """Something has come since this was put back."""
        self._before = self._after = EVENTS_END  # No event begins like that.
        self._lessons = LESSONS

    def data_received(self, data: bytes) -> None:
        self.has_stirred = True
        size = SIZE_OF_READ[len(data)] if len(data) < ONE_CHUNK_BYTES else CRLF
        before, after, texts = self._before, self._after, self._texts
        text = data[len(size) + len(before) : len(data) - len(after)]
        if text and QUOTE not in text and size + before + text + after == data:
            texts += text
            if len(texts) > LONGEST_RUN_BYTES:
                self._kept.end_run()
            self._write(data)
            self._left -= 1
            if not self._left:
                self.count()
        elif left := self._pass_leading(data):
            self.count()
            self._line.take_back(left)

    def count(self) -> None:
        """Say how many events have gone on since this was said last."""
        passed, self._span = self._span - self._left, self._left
        self._left = self._span = self._told(passed)

    def eof_received(self) -> None:
        self._line.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.connection_lost(exc)

    def _pass_leading(self, read: bytes) -> bytes:
        """Write the chunks that a read begins with; returns what is left.

        That is from the first chunk on that is not whole, or has to be looked at; nothing is done with it here.
        """
        at = 0
        while (payload_at := read.find(CRLF, at, at + SIZE_LINE_BYTES) + len(CRLF)) > at + len(CRLF):
            payload = PAYLOAD_OF_SIZE.get(read[at:payload_at])
            if payload is None or (end := payload_at + payload + len(CRLF)) > len(read):
                break
            if not self._pass_chunk(read[at:end], payload_at - at):
                break
            if self._left <= 0:
                self.count()
                if not self._left:
                    return b""  # It was ended here: what has come behind is nobody's.
            at = end
        return read[at:]

    def _pass_chunk(self, chunk: bytes, payload_at: int) -> bool:
        if not chunk.endswith(EVENTS_END) or self._concerns(chunk):
            return False
        self._kept.add(chunk[payload_at:-2])
        if self._lessons:
            self._learn(chunk[payload_at:-2])
        self._write(chunk)
        self._left -= chunk.count(EVENT_END)
        return True

    def _learn(self, payload: bytes) -> None:
        self._lessons -= 1
        event = TEXT_OF_EVENT.fullmatch(payload)
        if event is not None:
            before, after = event.groups()
            self._kept.expect(before, after)
            self._before, self._after = before, after + CRLF

"""The usual case of a stream: reads that are whole chunks of whole events, with nothing in them that concerns us.

Such a chunk is written to the client as it came. The events of one stream mostly differ in their text alone: once what
stands before and behind the text is known, an event is recognised by comparing it with both, and of it only the text is
kept. Knows no socket and no state of an answer: it is asked while a stream flows and its reads end where chunks end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.proxy.kept import Kept
from gateway.proxy.scanner import ERROR, USAGE

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

    def pass_on(self, read: bytes) -> bytes:
        """Write the chunks that a read begins with; returns what is left, for the parser.

        That is from the first chunk on that is not whole, or has to be looked at; nothing is done with it here.
        """
        size = SIZE_OF_READ[len(read)] if len(read) < ONE_CHUNK_BYTES else CRLF
        before, after = self._before, self._after
        text, end = len(size) + len(before), len(read) - len(after)
        if (
            read.startswith(size)
            and read.startswith(before, len(size))
            and read.endswith(after)
            and read.find(QUOTE, text, end) < 0
        ):
            kept = self._kept
            kept.texts.append(read[text:end])
            kept.room -= end - text + KEPT_FOR_A_TEXT
            if kept.room < 0:
                kept.forget()
            self._write(read)
            return b""
        return self._pass_leading(read)

    def _pass_leading(self, read: bytes) -> bytes:
        at = 0
        while (payload_at := read.find(CRLF, at, at + SIZE_LINE_BYTES) + len(CRLF)) > at + len(CRLF):
            payload = PAYLOAD_OF_SIZE.get(read[at:payload_at])
            if payload is None or (end := payload_at + payload + len(CRLF)) > len(read):
                break
            if end - at == len(read):
                return b"" if self._pass_chunk(read, payload_at) else read
            if self.pass_on(read[at:end]):
                break
            at = end
        return read[at:]

    def _pass_chunk(self, chunk: bytes, payload_at: int) -> bool:
        # CPython finds a short word backwards in half the time that it takes forwards.
        if not chunk.endswith(EVENTS_END) or chunk.rfind(USAGE) >= 0 or chunk.rfind(ERROR) >= 0:
            return False
        payload = chunk[payload_at:-2]
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
            self._before, self._after = before, after + CRLF

"""The fast path of a stream: reads that are whole chunks of whole events, none of which the gateway has to look at.

Such a chunk is written to the client as it came. The events of one stream mostly differ in their text alone: once the
bytes before and behind the text are known, an event is recognised by comparing it with both, and only its text is
recorded. Holds no state of a response: it is the protocol of the pod's transport while reads end where chunks end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Protocol

from gateway.relay.recorder import MAX_RUN_BYTES, ResponseRecorder

ONE_CHUNK_BYTES = 4096
"""Bytes; larger chunks are left to the parser, which handles them at less cost."""

PAYLOAD_OF_SIZE = {b"%x\r\n" % payload: payload for payload in range(1, ONE_CHUNK_BYTES)}
"""Size line of a chunk, as every server writes it, to the bytes of payload that it announces."""

SIZE_LINE_BYTES = 5
"""Length of the longest of these lines."""

CRLF = b"\r\n"


def _sizes_by_read() -> tuple[bytes, ...]:
    sizes = [CRLF] * ONE_CHUNK_BYTES
    for size, payload in PAYLOAD_OF_SIZE.items():
        if (read := len(size) + payload + len(CRLF)) < ONE_CHUNK_BYTES:
            sizes[read] = size
    return tuple(sizes)


SIZE_OF_READ = _sizes_by_read()
"""By bytes of a read: the size line of the chunk that fills it, or CRLF, which no chunk begins with."""

EVENT_END = b"\n\n"

EVENTS_END = b"\n\n\r\n"
"""End of an event together with the end of its chunk."""

QUOTE = b'"'

TEXT_OF_EVENT = re.compile(
    rb'((?:event: \w+\n)?data: \{(?:(?!\n).)*?"(?:content|text|delta|reasoning(?:_content)?|thinking)": ?")'
    rb'(?:[^"\\]|\\.)*'
    rb'("[^\n]*\}\n\n)'
)
"""The bytes before and behind the text of an event, for all generating APIs."""

LEARNED_EVENTS = 8
"""Events from which the bytes around the text are learned; a stream that varies beyond it differs in more than text."""


class ParsingConnection(Protocol):
    """The connection, which parses what the fast path does not pass on."""

    def resume_parsing(self, left: bytes) -> None:
        """Parse these bytes, and what comes behind them."""
        ...

    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class PassthroughStream(asyncio.Protocol):
    """One stream, while none of it is held back and its client takes chunks.

    It replaces the connection as the protocol of the transport, so that no frame stands between the pod's bytes and the
    few comparisons below.
    """

    __slots__ = (
        *("_after", "_before", "_concerns", "_kept", "_left", "_lessons", "_line", "_span", "_texts"),
        *("_on_bytes", "_write", "has_read"),
    )

    def __init__(
        self,
        line: ParsingConnection,
        kept: ResponseRecorder,
        write: Callable[[bytes], None],
        on_bytes: Callable[[int], int],
        concerns: Callable[[bytes], bool],
        left: int,
    ) -> None:
        """`on_bytes` gets the number of events passed since its last call, first after `left`. It returns after
        how many more to call it again, 0 where the stream has been ended. `concerns`: whether some of these events have
        to be inspected.
        """
        self._line = line
        self._concerns = concerns
        self._kept = kept
        self._texts = kept.texts
        self._write = write
        self._on_bytes = on_bytes
        self._left = self._span = left
        self.has_read = False
        """Bytes have come since the connection reset this."""
        self._before = self._after = EVENTS_END  # No event begins so.
        self._lessons = LEARNED_EVENTS

    def data_received(self, data: bytes) -> None:
        self.has_read = True
        size = SIZE_OF_READ[len(data)] if len(data) < ONE_CHUNK_BYTES else CRLF
        before, after, texts = self._before, self._after, self._texts
        text = data[len(size) + len(before) : len(data) - len(after)]
        if text and QUOTE not in text and size + before + text + after == data:
            texts += text
            if len(texts) > MAX_RUN_BYTES:
                self._kept.end_run()
            self._write(data)
            self._left -= 1
            if not self._left:
                self.report_count()
        elif left := self._pass_leading(data):
            self.report_count()
            self._line.resume_parsing(left)

    def report_count(self) -> None:
        """Report how many events have passed since the last report."""
        passed, self._span = self._span - self._left, self._left
        self._left = self._span = self._on_bytes(passed)

    def eof_received(self) -> None:
        self._line.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.connection_lost(exc)

    def _pass_leading(self, read: bytes) -> bytes:
        """Write the chunks that a read begins with; return the rest, unhandled.

        The rest begins with the first chunk that is not whole, or has to be looked at.
        """
        at = 0
        while (payload_at := read.find(CRLF, at, at + SIZE_LINE_BYTES) + len(CRLF)) > at + len(CRLF):
            payload = PAYLOAD_OF_SIZE.get(read[at:payload_at])
            if payload is None or (end := payload_at + payload + len(CRLF)) > len(read):
                break
            if not self._pass_chunk(read[at:end], payload_at - at):
                break
            if self._left <= 0:
                self.report_count()
                if not self._left:
                    return b""  # The stream was ended here: what comes behind is dropped.
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
            self._kept.begin_run(before, after)
            self._before, self._after = before, after + CRLF

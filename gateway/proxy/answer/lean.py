"""A stream that flows while something has to be taken out of each of its events: log-probabilities nobody asked for.

As in `flow.py` an event is recognised by what stands before and behind; what stands between the text and the end of the
event is left out by cutting bytes, and nothing is parsed. What is not recognised is trimmed the long way.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.ladders.trimming import Trim
from gateway.proxy.answer.flow import CRLF, EVENT_END, EVENTS_END, ONE_CHUNK_BYTES, QUOTE, SIZE_OF_READ, Flow, Parsing
from gateway.proxy.answer.kept import Kept

SURE_EVENT = re.compile(
    rb'(data: \{(?:(?!\n).)*?"(?:content|text|reasoning|reasoning_content)": ?")(?:[^"\\]|\\.)*("\}?, ?"logprobs": ?)'
    rb'\{[^\n]*\}(, ?"finish_reason": ?null[^\n]*\}\n\n)'
)
"""What stands before the text of an event, between its text and its log-probabilities, and behind those."""

PLAIN = re.compile(rb'(?:[^"\\]|\\.)*')

NULL = b"null"


class LeanFlow(Flow):
    """One such stream. `trim` says what is taken out."""

    __slots__ = ("_between", "_end", "_lean_end", "_trim")

    def __init__(
        self,
        line: Parsing,
        kept: Kept,
        write: Callable[[bytes], None],
        told: Callable[[int], int],
        concerns: Callable[[bytes], bool],
        trim: Trim,
    ) -> None:
        super().__init__(line, kept, write, told, concerns)
        self._trim = trim
        self._between = EVENTS_END  # Stands in no event.
        self._end = self._lean_end = EVENTS_END

    def data_received(self, data: bytes) -> None:
        self.has_stirred = True
        if (text := self._text_of(data)) is not None:
            self._texts += text
            self._kept.end_long_run()
            lean = b"".join((self._before, text, self._lean_end))
            self._write(b"%x\r\n%b" % (len(lean) - len(CRLF), lean))
            self._left -= 1
            if not self._left:
                self.count()
        elif left := self._pass_leading(data):
            self.count()
            self._line.take_back(left)

    def _text_of(self, chunk: bytes) -> bytes | None:
        """The text of a chunk that is one event of the usual kind; None where it is anything else."""
        read = len(chunk)
        if read >= ONE_CHUNK_BYTES:
            return None
        size, before = SIZE_OF_READ[read], self._before
        if not chunk.startswith(size + before) or not chunk.endswith(self._end):
            return None
        text_at = len(size) + len(before)
        text_end = chunk.find(self._between, text_at)
        if text_end < 0 or chunk.find(EVENT_END, text_end) != read - len(EVENTS_END):
            return None
        text = chunk[text_at:text_end]
        return text if QUOTE not in text or PLAIN.fullmatch(text) else None

    def _pass_chunk(self, chunk: bytes, payload_at: int) -> bool:
        if not chunk.endswith(EVENTS_END) or self._concerns(chunk):
            return False
        payload = chunk[payload_at:-2]
        lean = self._trim.events(payload)
        self._kept.add(lean)
        if self._lessons and self._trim.most is None:
            self._learn(payload)
        self._write(b"%x\r\n%b\r\n" % (len(lean), lean))
        self._left -= chunk.count(EVENT_END)
        return True

    def _learn(self, payload: bytes) -> None:
        self._lessons -= 1
        event = SURE_EVENT.fullmatch(payload)
        if event is None:
            return
        before, between, after = event.groups()
        lean_end = between + NULL + after
        self._kept.expect(before, lean_end)
        # Escapes are kept as they are: the trimmed event must read the same the short way and the long way.
        self._before, self._between = before, between + b"{"
        self._end, self._lean_end = b"}" + after + CRLF, lean_end + CRLF

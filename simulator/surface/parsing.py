"""Splits a model's output into reasoning, text and calls, piece by piece, as vLLM's parsers do. For all APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from simulator.surface.wording import CALL_END, CALL_START, Wording
from simulator.tokens import END_OF_THOUGHT

_CALL = re.compile(r'\s*\{"name": "([^"]*)"(?:, "arguments": (.*))?', re.DOTALL)
"""The beginning of one, as far as it has come."""


@dataclass(frozen=True, slots=True)
class CallPiece:
    """Something of the call with this number: its name as it begins, more of its arguments, or both."""

    index: int
    name: str | None = None
    arguments: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What a client receives next. An empty text is sent, None is not."""

    reasoning: str | None = None
    content: str | None = None
    calls: tuple[CallPiece, ...] = ()

    @property
    def is_silent(self) -> bool:
        return self.reasoning is None and self.content is None and not self.calls


class Parser:
    """Of one answer. `thinks`: it begins inside thoughts; a client may not want to hear them."""

    def __init__(self, wording: Wording, *, thinks: bool, reports_reasoning: bool = True) -> None:
        self._wording = wording
        self._thinks = thinks
        self._reports_reasoning = reports_reasoning
        self._calls = _Calls()
        self._has_started = False
        self.is_plain = not (thinks or wording.tool or wording.reads_calls)
        """All output is text."""

    @property
    def has_called(self) -> bool:
        """Whether a call was sent."""
        return self._calls.has_any or (self._has_started and self._wording.tool is not None)

    def feed(self, text: str) -> Delta:
        """What comes of the next tokens' text."""
        if not self._thinks:
            return self._plain_delta(text)
        thought, end, text = text.partition(END_OF_THOUGHT)
        self._thinks = not end
        portion = Delta(thought if thought and self._reports_reasoning else None)
        return portion if not text else replace(self._plain_delta(text), reasoning=portion.reasoning)

    def parse_unary(self, text: str) -> Delta:
        """Parse a complete response; a call that was cut short counts as text."""
        delta = self.feed(text)
        if self._wording.reads_calls and delta.calls and not text.endswith(CALL_END):
            return replace(delta, content=text.rpartition(END_OF_THOUGHT)[2], calls=())
        return replace(delta, calls=tuple(_joined(delta.calls)))

    def _plain_delta(self, text: str) -> Delta:
        if self._wording.reads_calls:
            return self._calls.feed(text)
        if self._wording.tool is None:
            return Delta(content=text)
        name = None if self._has_started else self._wording.tool
        self._has_started = True
        return Delta(calls=(CallPiece(0, name, text),) if text else ())


class _Calls:
    """Calls that the model has put into its text. Text that might be the beginning of one is held back."""

    def __init__(self) -> None:
        self._text = ""
        self._taken = 0
        """Letters outside calls."""
        self._taken_of_calls: list[int] = []
        """Letters of each call's arguments."""

    @property
    def has_any(self) -> bool:
        return bool(self._taken_of_calls)

    def feed(self, text: str) -> Delta:
        self._text += text
        return Delta(content=self._more_text(), calls=tuple(self._more_calls()))

    def _more_text(self) -> str | None:
        start = self._text.find(CALL_START)
        end = start if start >= 0 else len(self._text) - _overlap(self._text, CALL_START)
        portion, self._taken = self._taken, max(end, self._taken)
        return self._text[portion:end] or None

    def _more_calls(self) -> Iterator[CallPiece]:
        for index, call_text in enumerate(self._text.split(CALL_START)[1:]):
            call = _CALL.match(call_text)
            if call is None:
                return
            if index == len(self._taken_of_calls):
                self._taken_of_calls.append(0)
                yield CallPiece(index, call[1])
            arguments, portion = _arguments(call[2] or ""), self._taken_of_calls[index]
            self._taken_of_calls[index] = len(arguments)
            if len(arguments) > portion:
                yield CallPiece(index, None, arguments[portion:])


def _arguments(call_text: str) -> str:
    """What of this text belongs to the arguments: all of it, until they are whole."""
    try:
        return call_text[: json.JSONDecoder().raw_decode(call_text)[1]]
    except json.JSONDecodeError:
        return call_text


def _overlap(text: str, mark: str) -> int:
    """How many letters at the text's end are a beginning of the mark."""
    return next((length for length in range(len(mark) - 1, 0, -1) if text.endswith(mark[:length])), 0)


def _joined(pieces: tuple[CallPiece, ...]) -> Iterator[CallPiece]:
    """Each call whole."""
    for index, group in groupby(pieces, attrgetter("index")):
        own = list(group)
        yield CallPiece(index, own[0].name, "".join(piece.arguments or "" for piece in own))

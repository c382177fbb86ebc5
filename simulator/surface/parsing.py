"""Thoughts, text and calls told apart in what a model says, piece by piece, as vLLM's parsers do. Knows no API."""

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
    """What a client is told next. A text of no letters is told, None is not."""

    reasoning: str | None = None
    content: str | None = None
    calls: tuple[CallPiece, ...] = ()

    @property
    def is_silent(self) -> bool:
        return self.reasoning is None and self.content is None and not self.calls


class Parser:
    """Of one answer. `thinks`: it begins inside thoughts; a client may not want to hear them."""

    def __init__(self, wording: Wording, *, thinks: bool, tells_thoughts: bool = True) -> None:
        self._wording = wording
        self._thinks = thinks
        self._tells_thoughts = tells_thoughts
        self._calls = _Calls()
        self._has_started = False
        self.is_plain = not (thinks or wording.tool or wording.reads_calls)
        """All that is said is text."""

    @property
    def has_called(self) -> bool:
        """Whether a call was told of."""
        return self._calls.has_any or (self._has_started and self._wording.tool is not None)

    def feed(self, text: str) -> Delta:
        """What comes of the next tokens' text."""
        if not self._thinks:
            return self._said(text)
        thought, end, text = text.partition(END_OF_THOUGHT)
        self._thinks = not end
        told = Delta(thought if thought and self._tells_thoughts else None)
        return told if not text else replace(self._said(text), reasoning=told.reasoning)

    def whole(self, text: str) -> Delta:
        """What comes of an answer that is told at once; a call that was cut short is none."""
        delta = self.feed(text)
        if self._wording.reads_calls and delta.calls and not text.endswith(CALL_END):
            return replace(delta, content=text.rpartition(END_OF_THOUGHT)[2], calls=())
        return replace(delta, calls=tuple(_joined(delta.calls)))

    def _said(self, text: str) -> Delta:
        if self._wording.reads_calls:
            return self._calls.feed(text)
        if self._wording.tool is None:
            return Delta(content=text)
        name = None if self._has_started else self._wording.tool
        self._has_started = True
        return Delta(calls=(CallPiece(0, name, text),) if text else ())


class _Calls:
    """Calls that the model has put into its text. Nothing is told that might be the beginning of one."""

    def __init__(self) -> None:
        self._text = ""
        self._told = 0
        """Letters of what is no call."""
        self._told_of_calls: list[int] = []
        """Letters of each call's arguments."""

    @property
    def has_any(self) -> bool:
        return bool(self._told_of_calls)

    def feed(self, text: str) -> Delta:
        self._text += text
        return Delta(content=self._more_text(), calls=tuple(self._more_calls()))

    def _more_text(self) -> str | None:
        start = self._text.find(CALL_START)
        end = start if start >= 0 else len(self._text) - _overlap(self._text, CALL_START)
        told, self._told = self._told, max(end, self._told)
        return self._text[told:end] or None

    def _more_calls(self) -> Iterator[CallPiece]:
        for index, said in enumerate(self._text.split(CALL_START)[1:]):
            call = _CALL.match(said)
            if call is None:
                return
            if index == len(self._told_of_calls):
                self._told_of_calls.append(0)
                yield CallPiece(index, call[1])
            arguments, told = _arguments(call[2] or ""), self._told_of_calls[index]
            self._told_of_calls[index] = len(arguments)
            if len(arguments) > told:
                yield CallPiece(index, None, arguments[told:])


def _arguments(said: str) -> str:
    """What of this text belongs to the arguments: all of it, until they are whole."""
    try:
        return said[: json.JSONDecoder().raw_decode(said)[1]]
    except json.JSONDecodeError:
        return said


def _overlap(text: str, mark: str) -> int:
    """How many letters at the text's end are a beginning of the mark."""
    return next((length for length in range(len(mark) - 1, 0, -1) if text.endswith(mark[:length])), 0)


def _joined(pieces: tuple[CallPiece, ...]) -> Iterator[CallPiece]:
    """Each call whole."""
    for index, group in groupby(pieces, attrgetter("index")):
        own = list(group)
        yield CallPiece(index, own[0].name, "".join(piece.arguments or "" for piece in own))

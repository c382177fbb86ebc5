"""What both directions of translation share: the failure, events of a stream, the frame of a translator. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

MAX_EVENT_BYTES = 4 << 20
"""Bytes of one event of a stream, or of a complete answer that is translated."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Fields = dict[str, Any]


class Untranslatable(Exception):  # noqa: N818 - like a rejection it is an outcome, not an error
    """A request that an endpoint's API cannot express, or an answer that is not what its API says."""


class AnswerTranslator(Protocol):
    """Translates one answer, however its bytes are split. Raises `Untranslatable`."""

    content_type: str

    def feed(self, payload: bytes) -> bytes:
        """Return the translation of what is complete with these bytes; empty for nothing yet."""
        ...

    def finish(self) -> bytes:
        """Return what is left at the end of the answer."""
        ...


class EventSplitter:
    """Splits a stream into the JSON values of its events. Bytes per event are bounded."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        """Data of the whole lines of the event that has not ended."""
        self._partial: list[bytes] = []
        """Pieces of the line that has not ended: they are joined once, however many there are."""
        self._held_bytes = 0

    def feed(self, payload: bytes) -> Iterator[Fields]:
        """Yield the JSON objects of the events that end with these bytes; comments and `[DONE]` are skipped."""
        *ended, rest = payload.split(b"\n")
        for piece in ended:
            self._partial.append(piece)
            line, self._partial = b"".join(self._partial).removesuffix(b"\r"), []
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif not line:
                data, self._data, self._held_bytes = b"".join(self._data), [], 0
                if data and data != b"[DONE]":
                    yield object_of(data)
        if rest:
            self._partial.append(rest)
        self._held_bytes += len(payload)
        if self._held_bytes > MAX_EVENT_BYTES:
            raise Untranslatable("an event of the provider's stream is too large")


def object_of(data: bytes) -> Fields:
    """Return a JSON object. Raises `Untranslatable` for anything else."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE:
        raise Untranslatable("the provider's answer is not JSON") from None


class UnaryTranslator:
    """Collects a complete answer, and translates it at its end."""

    content_type = "application/json"

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, payload: bytes) -> bytes:
        """Hold these bytes."""
        self._held.append(payload)
        self._held_bytes += len(payload)
        if self._held_bytes > MAX_EVENT_BYTES:
            raise Untranslatable("the provider's answer is too large")
        return b""

    def finish(self) -> bytes:
        """Return the translated answer."""
        return msgspec.json.encode(self.translate(object_of(b"".join(self._held))))

    def translate(self, answer: Fields) -> Fields:
        """Return the answer in the client's format."""
        raise NotImplementedError


def dicts(value: object) -> list[Fields]:
    """Return the objects of a list; empty for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def count_of(value: object) -> int:
    """Return a token count; 0 for anything that is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

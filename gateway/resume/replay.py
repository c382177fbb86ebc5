"""An answer said again from its beginning by another pod, beside what its client was told of it.

Compared are the texts, whatever events they came in, and what stands between them; what differs from one asking to the
next by nature (ids, signatures) is not. Knows the words of no API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gateway.resume.delivered import Event, Said, read_told
from gateway.resume.splice import Differs, Joint
from routing.request import Api

Key = tuple[object, ...]
"""Which text of an answer it is that goes on, or what stands between two of them."""


class Hears(Protocol):
    """Who is told an answer, text by text."""

    @property
    def is_all(self) -> bool:
        """Whether everything from here on is new."""
        ...

    def text(self, key: Key, text: str) -> str:
        """What of this is new."""
        ...

    def mark(self, *key: object) -> bool:
        """Whether what stands between texts is new."""
        ...


Walk = Callable[[Event, Hears], object]
"""Tells somebody all that one event says."""


class Memory:
    """What was told: texts by their keys, in order; None for what stands between them."""

    is_all = True

    def __init__(self) -> None:
        self.told: list[tuple[Key, str | None]] = []
        self._key: Key | None = None
        self._pieces: list[str] = []

    def text(self, key: Key, text: str) -> str:
        if text:
            if key != self._key:
                self._end_text()
                self._key = key
            self._pieces.append(text)
        return text

    def mark(self, *key: object) -> bool:
        self._end_text()
        self.told.append((key, None))
        return True

    def whole(self) -> list[tuple[Key, str | None]]:
        self._end_text()
        return self.told

    def _end_text(self) -> None:
        if self._key is not None:
            self.told.append((self._key, "".join(self._pieces)))
        self._key, self._pieces = None, []


class Rehearsal:
    """How much of what was told one pod has said again."""

    def __init__(self, told: Iterable[Event], walk: Walk) -> None:
        memory = Memory()
        for event in told:
            walk(event, memory)
        self._told = memory.whole()
        self._next = 0
        self._at = 0
        """In the text that comes next."""
        self.texts = 0
        """That were heard again, wholly or in part."""

    @property
    def is_all(self) -> bool:
        return self._next == len(self._told)

    def text(self, key: Key, text: str) -> str:
        """What of this text is new. Raises `Differs`."""
        self.texts += bool(text) and not self.is_all
        while text and not self.is_all:
            wanted, told = self._told[self._next]
            if told is None or wanted != key:
                raise Differs
            both = min(len(told) - self._at, len(text))
            if not told.startswith(text[:both], self._at):
                raise Differs
            self._at, text = self._at + both, text[both:]
            if self._at == len(told):
                self._next, self._at = self._next + 1, 0
        return text

    def mark(self, *key: object) -> bool:
        """Whether this is new. Raises `Differs`."""
        if self.is_all:
            return True
        if self._at or self._told[self._next] != (key, None):
            raise Differs
        self._next += 1
        return False

    def end(self) -> None:
        """No more comes. Raises `Differs` where the client was told more."""
        if not self.is_all:
            raise Differs


class Anew(Joint):
    """What an answer counts as that is asked for from its beginning: its pod tells usage of the whole."""

    def __init__(self, said: Said, rehearsal: Rehearsal) -> None:
        super().__init__(said, is_full=False, again="")
        self.tokens = self._begun = 0
        self.is_silent = False
        self._said_tokens = said.tokens
        self._rehearsal = rehearsal

    @property
    def is_behind(self) -> bool:
        return not self._rehearsal.is_all

    @property
    def repeated(self) -> int:
        return min(self._rehearsal.texts, self._said_tokens) if self.is_behind else self._said_tokens

    def tell(self, api: Api, told: Event) -> None:
        """Usage, in the words of this API."""
        self.usage = self.whole = read_told(told, api) or self.usage


GREEDY_BELOW = 1e-5
"""Temperatures that vLLM takes for zero."""


def is_same_again(api: Api, fields: dict[str, Any]) -> bool:
    """Whether an engine says the same to the same request: it takes what is likeliest, or draws as it drew before.

    Only what a client has stated counts: what a model does by default its engine knows. Anthropic's API has no seed.
    """
    temperature, seed = fields.get("temperature"), fields.get("seed")
    if isinstance(temperature, int | float) and temperature < GREEDY_BELOW:
        return True
    return fields.get("top_k") == 1 or (api is not Api.MESSAGES and type(seed) is int and seed != NO_SEED)


NO_SEED = -1
"""What vLLM takes for none."""

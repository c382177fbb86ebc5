"""What an answer will be, settled before the engine computes its first token. Independent of time and HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from simulator.language import Speech
from simulator.tokens import token_of

ABORT = "abort"
"""The finish reason of an aborted answer."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How a client wants answers to end. `max_tokens` is already bounded by the model's context."""

    max_tokens: int
    min_tokens: int = 0
    ignores_end: bool = False
    stop: tuple[str, ...] = ()
    shows_stop: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """One answer. `tokens` counts the end-of-sequence token, which has no text; `shown` is how many characters show."""

    speech: Speech
    tokens: int
    natural: int
    finish_reason: str
    stop_reason: str | None = None
    shown: int | None = None

    def text(self, start: int, end: int) -> str:
        """The visible text of the tokens [start, end)."""
        text = "".join(self.speech.pieces(start, min(end, self.natural)))
        if self.shown is None:
            return text
        return text[: max(self.shown - len("".join(self.speech.pieces(0, start))), 0)]

    def aborted_after(self, tokens: int) -> Script:
        """The same, ended from outside: its last token is one without text, as the notice of an abort is."""
        if tokens >= self.natural:
            return self
        return Script(self.speech, tokens + 1, tokens, ABORT)

    def token_texts(self, start: int, end: int) -> list[str]:
        """The tokens [start, end) one by one, the end-of-sequence token included."""
        texts = self.speech.pieces(start, min(end, self.natural))
        return texts + [""] * (end - start - len(texts))

    def token_ids(self, start: int, end: int) -> list[int]:
        """Their ids."""
        return [token_of(text) for text in self.token_texts(start, end)]

    @property
    def thought_tokens(self) -> int:
        """Tokens of its thoughts, without the one that ends them."""
        return max(self.speech.opening - 1, 0)


def write_script(speech: Speech, natural_tokens: int | None, wish: Wish) -> Script:
    """Where the answer ends: by itself, by a stop string, or because it has grown long enough.

    `natural_tokens` is None for an answer without natural end.
    """
    length = speech.length if speech.length is not None else natural_tokens
    if length is not None and wish.ignores_end and speech.length is None:
        length = None
    if length is not None and speech.length is None:
        length = max(length, wish.min_tokens)
    tokens = wish.max_tokens if length is None else min(length + 1, wish.max_tokens)
    natural = tokens if length is None else min(length, tokens)
    if wish.stop:
        stopped = _stopped(speech, natural, wish)
        if stopped is not None:
            return stopped
    ends_itself = length is not None and tokens == length + 1
    return Script(speech, tokens, natural, "stop" if ends_itself else "length")


def _stopped(speech: Speech, natural: int, wish: Wish) -> Script | None:
    """Return the script cut at the first completed stop string; None if none is completed."""
    text = "".join(speech.pieces(0, natural))
    begin = len("".join(speech.pieces(0, min(wish.min_tokens, natural))))
    found = _first_stop(text, begin, wish.stop)
    if found is None:
        return None
    at, stop = found
    end = at + len(stop)
    tokens = next(at for at, reached in enumerate(accumulate(map(len, speech.pieces(0, natural))), 1) if reached >= end)
    return Script(speech, tokens, tokens, "stop", stop, end if wish.shows_stop else at)


def _first_stop(text: str, begin: int, stops: Sequence[str]) -> tuple[int, str] | None:
    found = [(text.find(stop, begin) + len(stop), stop) for stop in stops if stop and stop in text[begin:]]
    if not found:
        return None
    end, stop = min(found)
    return end - len(stop), stop

"""The rest of a stream, as the client is to see it: events of another pod in, events of one unbroken answer out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from gateway.resume.delivered import END, Event, Said, read_event, read_told
from routing.request import Api, Usage

DONE_EVENT = b"data: [DONE]\n\n"

DETAILS = ("prompt_tokens_details", "input_tokens_details")

THINKING = "completion_tokens_details"

UNLIKE = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What is raised where an event has another shape than its API gives it."""


class Stitch(Protocol):
    """One pod's rest of one answer. `api` is the pod's dialect; whole events are put in."""

    @property
    def api(self) -> Api: ...
    @property
    def joint(self) -> Joint: ...
    def event(self, event: Event) -> Iterator[bytes]:
        """What the client is sent for one event of the pod's."""
        ...

    def done(self) -> Iterator[bytes]:
        """What it is sent at [DONE]."""
        ...


class Joint:
    """Where both parts of an answer meet: what they count as together."""

    def __init__(self, said: Said, *, is_full: bool, again: str) -> None:
        """`is_full`: nothing that the pod says is to be heard; `again`: what it says first was heard before."""
        self.tokens = said.tokens - said.tells_end if (said.text or said.thoughts) and not again else 0
        """In the continuation's prompt, and of the answer."""
        has_ended_itself = said.is_over and not is_full and said.api is Api.RESPONSES
        # In events of that API the end of the text shows, the token that it ends with does not.
        self._begun = 0 if again else said.tokens + has_ended_itself
        self.thoughts = 0
        """So many tokens of thoughts are in the continuation's prompt."""
        self.is_silent = is_full or said.is_over
        self._prompt_tokens = said.prompt_tokens
        self._again = again
        self.usage: Usage | None = None
        """By the word of the pod that goes on, of what it was asked."""
        self.whole: Usage | None = None
        """Of the answer as its client is told it."""

    @property
    def is_behind(self) -> bool:
        """Whether not all has been said again that is asked for once more."""
        return False

    @property
    def repeated(self) -> int:
        """So many tokens of the answer were made once more."""
        return 0

    def text(self, text: str) -> str:
        """What of this text is new."""
        if self.is_silent:
            return ""
        if not self._again:
            return text
        common = 0
        while common < min(len(text), len(self._again)) and text[common] == self._again[common]:
            common += 1
        self._again = self._again[common:] if common == len(text) else ""
        return text[common:]

    def usage_told(self, told: Event) -> Event:
        """Usage of the whole answer, in the words that the pod has used."""
        self.usage = read_told(told) or self.usage
        asked, answered = (
            ("prompt_tokens", "completion_tokens") if "prompt_tokens" in told else ("input_tokens", "output_tokens")
        )
        made = 0 if self.is_silent else told.get(answered) or 0
        prompt, unseen = max(0, told[asked] - self.tokens), 0
        if self._prompt_tokens is not None:
            # A busy engine puts several tokens into one event: what the prompt did not have at first was said.
            prompt, unseen = self._prompt_tokens, max(0, prompt - self._prompt_tokens)
        whole = {**told, asked: prompt, answered: made + self._begun + unseen}
        if "total_tokens" in told:
            whole["total_tokens"] = whole[asked] + whole[answered]
        thought = told.get(THINKING)
        if isinstance(thought, dict) and type(thought.get("reasoning_tokens")) is int:
            whole[THINKING] = {**thought, "reasoning_tokens": thought["reasoning_tokens"] + self.thoughts}
        for name in DETAILS:
            details = told.get(name)
            if isinstance(details, dict) and details.get("cached_tokens") is not None:
                whole[name] = {**details, "cached_tokens": min(details["cached_tokens"], whole[asked])}
        self.whole = read_told(whole) or self.whole
        return whole


class Differs(Exception):  # noqa: N818 - no error of ours
    """A pod has said something else than the client was told: what comes behind is of another answer."""


def stitched(stitch: Stitch, events: bytes) -> bytes | None:
    """What a client is sent for these whole events; None where one of them is no event of this API.

    Raises `Differs`.
    """
    out: list[bytes] = []
    try:
        for raw in _split(events):
            event = read_event(raw)
            if event is None:
                return None
            if event:
                out += stitch.event(event)
            elif raw.startswith(b"data:"):
                out += stitch.done()
    except UNLIKE:
        return None
    return b"".join(out)


def plain(event: Event) -> bytes:
    return b"data: " + msgspec.json.encode(event) + END


def named(event: Event) -> bytes:
    return b"event: %b\n" % str(event["type"]).encode() + plain(event)


def _split(events: bytes) -> Iterator[bytes]:
    at = 0
    while (end := events.find(END, at)) >= 0:
        yield events[at : end + len(END)]
        at = end + len(END)
    if events[at:].strip():
        yield events[at:]

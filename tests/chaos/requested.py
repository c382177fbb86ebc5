"""What clients ask, drawn from a seed, and what they hear. Knows no SDK."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

WORDS = ("warm", "cold", "prefix", "decode", "ledger", "rung", "ü", "日本", "pair", "tenant")

GROUPS = 8
"""Prompts share beginnings, so that warmth is at work."""


class Api(StrEnum):
    """Which of the four they speak."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


class Wanted(StrEnum):
    """What is to come of it."""

    TEXT = "text"
    CALL = "call"
    """Tools are offered: most prompts are answered with a call or two, some with text."""
    ORDERED_CALL = "ordered call"
    """A tool must be called."""
    SCHEMA = "schema"
    """A JSON text of a given structure."""


class Tenant(StrEnum):
    """Whose key they show."""

    WIDE = "wide"
    """Without limits: nothing of theirs may fail."""
    NARROW = "narrow"
    """With limits on requests, tokens and requests at a time: what is beyond them is refused, and nothing else."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    number: int
    api: Api
    tenant: Tenant
    prompt: str
    is_streamed: bool
    most_tokens: int
    leaves_after: int | None
    """Pieces of the stream after which the client goes away; None: it stays."""
    wanted: Wanted = Wanted.TEXT
    thinks: bool = False
    """The answer may begin with thoughts, on pods that think."""
    is_drawn: bool = False
    """A temperature is stated, so that nobody may take two answers for the same. Simulated pods draw the same."""


@dataclass(slots=True)
class Heard:
    """What a client was told, as far as it had come. Seconds are of the loop's clock."""

    pieces: list[str] = field(default_factory=list)
    """Where it turns from thoughts to text, or to a call, a mark stands before the piece."""
    ended: str | None = None
    """Its finish reason, in the words of its API."""
    tokens: int | None = None
    """Those that were generated, by the usage it was told."""
    _kind: str = "text"
    _calls: int = 0

    def hear(self, piece: str | None, kind: str = "text") -> None:
        """Text, or thoughts."""
        if piece:
            self.pieces.append(piece if kind == self._kind else f"\n[{kind}] {piece}")
            self._kind = kind

    def hear_call(self, name: str | None, arguments: str | None) -> None:
        """Of a call: its name where it begins, and more of its arguments."""
        if name is not None:
            self._calls += 1
            self._kind = f"call {self._calls}"
            self.pieces.append(f"\n[{self._kind}] {name} ")
        self.hear(arguments, self._kind)

    @property
    def text(self) -> str:
        """All of it, one behind the other."""
        return "".join(self.pieces)

    @property
    def answer(self) -> tuple[str, str | None, int | None]:
        """All that must be the same as undisturbed."""
        return self.text, self.ended, self.tokens


def draw_request(number: int, draw: Random, *, thinks: bool = False) -> Asked:
    """One of all that is asked: mostly streams of chat, some of everything; `thinks`: of pods that think, and call."""
    group = draw.randrange(GROUPS)
    prompt = f"group {group} " + " ".join(WORDS[group % 5 :] * 20) + f" question {number} {draw.random()}"
    plain = Asked(
        number,
        draw.choice((Api.CHAT, Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)),
        Tenant.NARROW if draw.random() < 0.2 else Tenant.WIDE,
        prompt,
        is_streamed=draw.random() < 0.8,
        most_tokens=draw.choice((5, 40, 150)),
        leaves_after=draw.randrange(1, 40) if draw.random() < 0.1 else None,
    )
    if not thinks or plain.api is Api.COMPLETIONS:
        return plain
    requested = replace(plain, wanted=draw.choice((Wanted.TEXT, *Wanted)), thinks=draw.random() < 0.6)
    is_text = requested.api in (Api.CHAT, Api.MESSAGES) and requested.wanted is Wanted.TEXT
    return replace(requested, is_drawn=is_text and number % 2 == 1)

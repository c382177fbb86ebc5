"""What clients ask, drawn from a seed, and what they hear. Knows no SDK."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Heard:
    """What a client was told, as far as it had come. Seconds are of the loop's clock."""

    pieces: list[str] = field(default_factory=list)
    ended: str | None = None
    """Its finish reason, in the words of its API."""
    tokens: int | None = None
    """Those that were generated, by the usage it was told."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def answer(self) -> tuple[str, str | None, int | None]:
        """All that must be the same as undisturbed."""
        return self.text, self.ended, self.tokens


def draw_request(number: int, draw: Random) -> Asked:
    """One of all that is asked: mostly streams of chat, some of everything."""
    group = draw.randrange(GROUPS)
    prompt = f"group {group} " + " ".join(WORDS[group % 5 :] * 20) + f" question {number} {draw.random()}"
    return Asked(
        number,
        draw.choice((Api.CHAT, Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)),
        Tenant.NARROW if draw.random() < 0.2 else Tenant.WIDE,
        prompt,
        is_streamed=draw.random() < 0.8,
        most_tokens=draw.choice((5, 40, 150)),
        leaves_after=draw.randrange(1, 40) if draw.random() < 0.1 else None,
    )

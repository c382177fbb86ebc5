"""The seam between who carries an answer and who judges it.

A carrier holds an answer back, shows what it has heard of it, and does as it is told; it knows no ladder and no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.cascades.evidence import Evidence
from gateway.cascades.logprobs import Trim


class Verdict(StrEnum):
    """What becomes of an answer that is held back."""

    KEEP = "keep"
    """The client gets it."""
    ESCALATE = "escalate"
    """It is thrown away, and the next rung is asked."""


class Moment(StrEnum):
    """Why it is judged now."""

    WINDOW = "window"
    """As many tokens have come as are held."""
    ENDED = "ended"
    """All of it has come."""
    TIME = "time"
    """It has been held for as long as it may."""
    ROOM = "room"
    """More is held than there is room for."""


class AtTime(StrEnum):
    """What becomes of an answer that is held when its time is up."""

    JUDGE = "judge"
    """It is judged by the tokens that have come."""
    RELEASE = "release"
    """The client gets it: nobody waits longer, and no promise covers it."""
    ESCALATE = "escalate"
    """It is thrown away: the promise covers all that is kept."""


@dataclass(frozen=True, slots=True)
class HoldBack:
    """How much of an answer is held, and for how long."""

    tokens: int = 48
    """Of the answer; reasoning is not counted."""
    max_added_s: float = 0.15
    """From the first answer token that is held: no kept stream begins later by more than this."""
    streams_reasoning: bool = False
    """Reasoning is judged by its own first tokens, and everything goes on from there; else it is held with the rest,
    and the bound in seconds counts from the first token of the answer itself."""
    whole: bool = False
    """Streams are held to their end too, and judged as whole answers."""
    at_time: AtTime = AtTime.JUDGE


HELD_BYTES = 4 << 20
"""Of one answer. What is longer is judged by what has come."""


class Judge(Protocol):
    """Of one answer of one rung."""

    @property
    def hold_back(self) -> HoldBack: ...

    @property
    def trim(self) -> Trim | None:
        """What the client did not ask for."""
        ...

    def weigh(self, evidence: Evidence, moment: Moment) -> Verdict:
        """What becomes of it. Called once, and again never."""
        ...

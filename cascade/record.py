"""Result of one request to a cascade: every model that was asked, its signal, tokens, cost and verdict.

A value for log, metrics, receipt and `hearth cascade report`. Holds no text.
"""

from __future__ import annotations

from msgspec import Struct

KEPT = "kept"
"""Judged good enough."""
ESCALATED = "escalated"
"""Judged not good enough: thrown away."""
UNJUDGED = "unjudged"
"""Nobody was to judge it: the highest rung that may answer, or one that answers for want of another."""
FAILED = "failed"
"""It gave no answer."""

KEPT_FOR_SHARE = "share"
"""Why an answer was kept that was not good enough: its tenant may have no more answers thrown away."""


class Step(Struct, frozen=True):
    """One rung that was asked."""

    model: str
    ended: str
    why: str = ""
    """When and by what it was judged: the window, its end, a fault of its shape; or why it was kept all the same."""
    signal: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """By the prices of the rungs; what was thrown away by what was counted here."""
    held_s: float = 0.0


class Climbed(Struct, frozen=True):
    """The way up of one request. Costs are in the currency of the prices."""

    ladder: str
    bucket: str
    started: str
    """The model that was to be asked first."""
    rungs: tuple[Step, ...] = ()
    """Those that were asked, in order."""
    skipped: tuple[str, ...] = ()
    """Those that could not or might not answer."""
    judged: int = 0
    """How many answers were judged."""
    cost: float = 0.0
    """Of everything that was asked for it."""
    wasted_cost: float = 0.0
    """Of what the client did not get."""
    wasted_tokens: int = 0
    """Output that was thrown away."""
    cost_always_top: float = 0.0
    """What an answer of the same length would have cost there."""
    cost_always_first: float = 0.0

    @property
    def answered(self) -> Step | None:
        """The rung whose answer the client got."""
        return answered_of(self.rungs)

    @property
    def is_escalated(self) -> bool:
        return any(step.ended == ESCALATED for step in self.rungs)


def answered_of(rungs: tuple[Step, ...]) -> Step | None:
    """The rung whose answer the client got, where one did."""
    return rungs[-1] if rungs and rungs[-1].ended in (KEPT, UNJUDGED) else None

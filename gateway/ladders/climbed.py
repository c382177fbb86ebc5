"""What became of a request on its ladder: every rung that was asked, what it said of itself, and what it took.

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
HEDGE_LOST = "hedge lost"
"""Begun early, and not needed."""


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
    """The way up of one request."""

    ladder: str
    bucket: str
    started: str
    """The model that was to be asked first."""
    steps: tuple[Step, ...] = ()
    skipped: tuple[str, ...] = ()
    """Rungs that could not or might not answer."""
    cost_always_top: float = 0.0
    """What the same answer would have cost there."""
    cost_always_first: float = 0.0

    @property
    def answered(self) -> Step | None:
        """The rung whose answer the client got."""
        last = self.steps[-1] if self.steps else None
        return last if last is not None and last.ended in (KEPT, UNJUDGED) else None

    @property
    def is_escalated(self) -> bool:
        return any(step.ended == ESCALATED for step in self.steps)

    @property
    def cost(self) -> float:
        """Of everything that was asked for it."""
        return sum(step.cost for step in self.steps)

    @property
    def wasted_cost(self) -> float:
        """Of what the client did not get."""
        return self.cost - (answered.cost if (answered := self.answered) else 0.0)

    @property
    def wasted_tokens(self) -> int:
        return sum(step.output_tokens for step in self.steps if step is not self.answered)
